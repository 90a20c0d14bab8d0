"""What the world can see of a worker: its meters, its spans, a line for each call, and the port that tells of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import structlog

from fencepost_dispatch.answers import Answer
from fencepost_dispatch.engine import Engine
from fencepost_dispatch.registry import Registry
from fencepost_dispatch.settings import Settings
from fencepost_dispatch.tracing import around_runs, find_tracer
from fencepost_ledger import CallRow, State
from fencepost_schemas import Outcome, Status
from fencepost_worker.consumer import PollThread
from fencepost_worker.events import Done
from fencepost_worker.health import Broker, Probes, Signs
from fencepost_worker.meters import Meters
from fencepost_worker.metrics import Parts, registry
from fencepost_worker.publisher import Publisher
from fencepost_worker.pulse import Pulse
from fencepost_worker.records import Record
from fencepost_worker.spans import passages

# A line costs a hundred times what counting does, so calls are told of at debug alone, under a name of their own.
log = structlog.get_logger("fencepost.call")
_calls = logging.getLogger("fencepost.call")


class Telemetry:
    """Of one worker. Whether anybody traces is looked up once, here: the tools have been imported by now."""

    def __init__(self, settings: Settings, tools: Registry) -> None:
        tracer = find_tracer()
        self.meters = Meters([*tools.names(), *(blocked.tool.name for blocked in tools.blocked())])
        self.around = around_runs(tracer)
        self.passage = passages(tracer, settings)
        self.leaving: str | None = None
        """That the worker drains, or why it ends; None while it serves."""
        self._settings = settings
        self._tools = tools

    @contextmanager
    def opened(self, engine: Engine, poll: PollThread, publisher: Publisher) -> Iterator[None]:
        """Meanwhile the port answers and the loop is watched.

        Raises:
            PortUnavailable
        """
        pulse = Pulse(engine, self.meters.stalled)
        probes = Probes(
            partial(self._signs, engine, poll, publisher, pulse),
            Broker(partial(publisher.ask, self._settings.outcome_topic)),
            registry(Parts(self.meters, engine, poll, publisher, self._tools)),
            self._settings.redact,
        )
        with probes.opened(self._settings.metrics_port):
            pulse.start()
            try:
                yield
            finally:
                pulse.stop()

    def done(self, record: Record, done: Done) -> None:
        """A record needs nothing more."""
        self.meters.done(record, done)
        if _calls.isEnabledFor(logging.DEBUG) and isinstance(done, Answer):
            _tell(done.outcome)

    def left(self, row: CallRow) -> None:
        """An outcome that the sweeper came upon is published."""
        status = Status.succeeded if row.state is State.completed else Status(row.state.value)
        self.meters.left(row.tool, status)

    def _signs(self, engine: Engine, poll: PollThread, publisher: Publisher, pulse: Pulse) -> Signs:
        return Signs(
            poll=poll.health(),
            sent=publisher.health(),
            leaving=self.leaving,
            still=pulse.still,
            holding=pulse.holding,
            ledger=self.meters.ledger_trouble,
            lapsed=engine.slots.paused,
        )


def _tell(outcome: Outcome) -> None:
    began, ended = outcome.started_at, outcome.finished_at
    log.debug(
        "call",
        event_id=outcome.event_id,
        execution=outcome.execution_id,
        node=outcome.node_id,
        tool=outcome.tool,
        status=outcome.status.value,
        attempt=outcome.attempt,
        replayed=outcome.replayed,
        seconds=None if began is None or ended is None else (ended - began).total_seconds(),
    )
