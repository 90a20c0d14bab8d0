"""Whether a worker lives and whether it is ready, said on a port by threads that need nobody else's leave.

Live: the poll thread and the event loop turn; restart it when not. Ready: it takes calls, or stands by to take them.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from fencepost_worker.port import Reply, opened
from fencepost_worker.publisher import Sent
from fencepost_worker.records import Health

STUCK = 60.0  # seconds without a turn after which only a restart helps; a restart leaves calls with unknown outcomes
SLOW = 5.0  # seconds without a turn of the loop in which nothing can be answered
_ASK = 1.0  # seconds that a broker has for an answer, and for which an answer is good


@dataclass(frozen=True, slots=True)
class Signs:
    """What can be seen of a worker at one moment. Texts say what is wrong, in a line; None: nothing is.

    `leaving`: it drains, or why it ends. `still`: seconds since the loop last turned; `holding`: the tool that holds it
    up. `lapsed`: no lease could be renewed, so that nothing starts.
    """

    poll: Health
    sent: Sent
    leaving: str | None
    still: float
    holding: str | None
    ledger: str | None
    lapsed: bool


def not_live(signs: Signs) -> list[str]:
    """Why the process should be restarted; empty while it lives."""
    poll = signs.poll.turn_seconds
    hangs = [f"the poll thread has not turned for {poll:.0f} s"] if poll > STUCK else []
    return hangs + ([_loop(signs)] if signs.still > STUCK else [])


def not_ready(signs: Signs, broker: str | None) -> list[str]:
    """Why it takes no calls, or cannot answer them; empty while it is ready. `broker`: why no broker answers."""
    reasons = [
        signs.leaving,
        None if signs.poll.assigned else "the group has not let it in yet",
        signs.ledger,
        "leases could not be renewed in time: nothing starts until they can" if signs.lapsed else None,
        None if broker is None else f"no Kafka broker answers ({broker})",
        _refused(signs.poll.auth_error or signs.sent.auth_error),
        _loop(signs) if signs.still > SLOW else None,
    ]
    return [reason for reason in reasons if reason is not None]


def _loop(signs: Signs) -> str:
    inside = f", inside of {signs.holding}" if signs.holding else ""
    return f"the event loop has not turned for {signs.still:.0f} s{inside}"


def _refused(error: str | None) -> str | None:
    return None if error is None else f"Kafka refuses us ({error})"


class Broker:
    """A question to the brokers, asked once at a time; its answer is good for a moment, however often one asks."""

    def __init__(self, ask: Callable[[float], str | None]) -> None:
        self._ask = ask
        self._one_at_a_time = threading.Lock()
        self._answer: str | None = None
        self._good_until = 0.0

    def trouble(self) -> str | None:
        """Why no broker answers; None when one does."""
        with self._one_at_a_time:
            if time.monotonic() > self._good_until:
                self._answer = self._ask(_ASK)
                self._good_until = time.monotonic() + _ASK
            return self._answer


class Probes:
    """What the port answers. `signs` is asked for each probe; `redact` takes secrets out of what is said."""

    def __init__(
        self, signs: Callable[[], Signs], broker: Broker, registry: CollectorRegistry, redact: Callable[[str], str]
    ) -> None:
        self._signs = signs
        self._broker = broker
        self._registry = registry
        self._redact = redact

    def opened(self, port: int) -> AbstractContextManager[int]:
        """Answers meanwhile, on a port; 0: on none.

        Raises:
            PortUnavailable: on entering.
        """
        routes = {"/livez": self.livez, "/readyz": self.readyz, "/metrics": self.metrics}
        return opened(port, routes) if port else nullcontext(0)

    def livez(self, _accept: str = "") -> Reply:
        return self._said("live", not_live(self._signs()))

    def readyz(self, _accept: str = "") -> Reply:
        signs = self._signs()
        return self._said("ready", not_ready(signs, None if signs.leaving else self._broker.trouble()))

    def metrics(self, accept: str = "") -> Reply:
        encode, kind = choose_encoder(accept)
        return Reply(200, kind, encode(self._registry))

    def _said(self, what: str, reasons: Iterable[str]) -> Reply:
        told = [" ".join(self._redact(reason).split()) for reason in reasons]
        line = {what: not told, **({"reasons": told} if told else {})}
        return Reply(503 if told else 200, "application/json", json.dumps(line, ensure_ascii=False).encode() + b"\n")
