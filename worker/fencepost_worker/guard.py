"""Servers that are started for a while and never outlive the process that wanted them."""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The standard input is a pipe whose other end only our process holds: it ends when we do, SIGKILL included.
# The server gets its signal, ten seconds for it, then SIGKILL; a temporary folder goes with it.
_WATCH = """
read -r _
kill -s "$1" "$2"
turn=0
while [ "$turn" -lt 100 ] && kill -0 "$2"; do turn=$((turn + 1)); sleep 0.1; done
kill -s KILL "$2"
[ -z "$3" ] || rm -rf -- "$3"
"""


@dataclass(frozen=True, slots=True)
class Account:
    """Who a server runs as: ``uid`` and ``gid`` of the system, for a server that refuses root."""

    uid: int
    gid: int


class Guarded:
    """One running server: ended by `stop`, and with this process at the latest, however that one ends.

    ``log`` takes the server's output, ``end`` is the signal that the server understands as an order to stop, and
    ``remove`` a temporary folder that goes when this process dies. The server is a process group of its own: Ctrl-C in
    the terminal reaches us, not the server, so that what still needs it can finish.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        end: signal.Signals = signal.SIGTERM,
        account: Account | None = None,
        env: Mapping[str, str] | None = None,
        remove: Path | None = None,
    ) -> None:
        self._end = end
        with log.open("ab") as output:
            self._server = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, start_new_session=True,
                **credentials(account),
            )  # fmt: skip
        watch = ["/bin/sh", "-c", _WATCH, "watch", end.name.removeprefix("SIG"), str(self.pid), str(remove or "")]
        quiet = subprocess.DEVNULL
        self._watch = subprocess.Popen(
            watch, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, cwd="/", start_new_session=True
        )

    @property
    def pid(self) -> int:
        return self._server.pid

    @property
    def running(self) -> bool:
        return self._server.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the server; one that has ended already does not mind."""
        self._server.send_signal(number)

    def stop(self, how: signal.Signals | None = None, *, timeout: float = 10.0) -> int:
        """Ends the server with its own signal, or with ``how``; SIGKILL after ``timeout`` seconds. Its exit code."""
        self.send(how or self._end)
        try:
            return self._server.wait(timeout)
        except subprocess.TimeoutExpired:
            self._server.kill()
            return self._server.wait()
        finally:
            self._dismiss()

    def _dismiss(self) -> None:
        self._watch.kill()
        self._watch.wait()
        if self._watch.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._watch.stdin.close()


def credentials(account: Account | None) -> dict[str, Any]:
    """The keywords of `subprocess.Popen` that make it run as ``account``; none for our own."""
    return {} if account is None else {"user": account.uid, "group": account.gid, "extra_groups": ()}


@contextlib.contextmanager
def sigterm_unwinds() -> Iterator[None]:
    """Meanwhile SIGTERM ends this process as Ctrl-C does: what was started is ended on the way. Main thread only."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def free_ports(count: int) -> list[int]:
    """``count`` different ports that nobody listens on at 127.0.0.1.

    They lie below the range from which systems take the local end of connections: a server that is away for a moment
    finds its port free again, and a client that keeps trying cannot connect to itself.
    """
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        while len(ports) < count:
            taken = held.enter_context(socket.socket())
            port = random.randrange(15_000, 32_000)  # noqa: S311 (no secret)
            with contextlib.suppress(OSError):
                taken.bind(("127.0.0.1", port))
                ports.append(port)
        return ports
