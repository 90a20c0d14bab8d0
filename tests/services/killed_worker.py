"""A worker that kills itself at one arrow of the line: `python -m services.killed_worker ARROW`.

The hooks are patches of this program alone; nothing in the product can be told to die.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn
from unittest import mock

from fencepost_ledger import batch
from fencepost_ledger.verdicts import Admit, Finalize, Settle
from fencepost_worker import cli, consumer, spans, worker
from services import desk_tools


def die(*_: Any, **__: Any) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def after(target: Any, name: str, when: Callable[..., bool] = lambda *_, **__: True) -> Any:
    """Die right after the call has returned, where its arguments are those that are waited for."""
    original = getattr(target, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        answer = original(*args, **kwargs)
        return die() if when(*args, **kwargs) else answer

    return mock.patch.object(target, name, call)


def before(target: Any, name: str) -> Any:
    return mock.patch.object(target, name, die)


def carries(kind: type[Any]) -> Callable[..., bool]:
    return lambda _connection, ops, *_: any(type(op) is kind for op in ops)


def _some(_cur: Any, items: Sequence[Any], *_: Any) -> bool:
    return bool(items)


def _past_a_record(_thread: Any, offsets: Sequence[Any]) -> bool:
    return any(at.offset > 0 for at in offsets)


ARROWS: dict[str, Callable[[], Any]] = {
    "taken, not decoded": lambda: before(worker, "decode"),
    "decoded, not admitted": lambda: before(spans, "event"),
    "admitted, not committed": lambda: after(batch, "admit"),
    "committed, tool not entered": lambda: after(batch, "transact", carries(Admit)),
    "entered, not acted": lambda: before(desk_tools, "act"),
    "acted, not returned": lambda: after(desk_tools, "act"),
    "finalized, not committed": lambda: after(batch, "finalize", _some),
    "finalize committed, not published": lambda: after(batch, "transact", carries(Finalize)),
    "publishing, not acknowledged": lambda: before(worker.Worker, "_published"),
    "settled, not committed": lambda: after(batch, "settle"),
    "settle committed": lambda: after(batch, "transact", carries(Settle)),
    "offset not stored": lambda: before(consumer.PollThread, "done"),
    "offset stored, not committed": lambda: after(consumer.PollThread, "_store_offsets", _past_a_record),
}

if __name__ == "__main__":
    arrow = sys.argv.pop(1)
    sys.argv[1:1] = ["worker", "--tools", "services.desk_tools"]
    with ARROWS[arrow]():
        cli.main()
