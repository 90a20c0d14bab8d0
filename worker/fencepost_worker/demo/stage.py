"""What runs for the demo: Postgres, the broker, the ticket system and the worker processes; nothing of it stays."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Self

from fencepost_ledger import CallRow, Desk, State, migrate
from fencepost_worker.demo.tickets import TicketSystem
from fencepost_worker.demo.tools import URL
from fencepost_worker.demo.wire import DEAD_LETTER, DISPATCH, FETCH_WAIT_MILLISECONDS, OUTCOME, Wire
from fencepost_worker.embedded import EmbeddedBroker, EmbeddedPostgres
from fencepost_worker.guard import Guarded

WORKERS, PARTITIONS = 3, 6
LEASE_SECONDS = 2
SESSION_MILLISECONDS = 2_000  # how soon the group notices that a member has gone
_COMMAND = [sys.executable, "-P", "-m", "fencepost_worker.cli", "worker", "--tools", "fencepost_worker.demo.tools"]


class Stage:
    """A context manager. Worker processes are named by their process ids."""

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            self.postgres = opened.enter_context(EmbeddedPostgres())
            self._folder = self.postgres.folder  # temporary, and gone even when this process is killed
            self.broker = opened.enter_context(EmbeddedBroker())
            for topic, partitions in ((DISPATCH, PARTITIONS), (OUTCOME, WORKERS), (DEAD_LETTER, 1)):
                self.broker.create_topic(topic, partitions)
            migrate(self.postgres.dsn())
            self.desk = opened.enter_context(Desk(self.postgres.dsn()))
            self.tickets = opened.enter_context(TicketSystem(self._folder / "tickets.sqlite"))
            self.workers: dict[int, Guarded] = {}
            opened.callback(self._kill_all)
            self._start_workers()
            self.wire = Wire(self.broker.bootstrap)
            self.wire.start()
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    def _start_workers(self) -> None:
        for number in range(1, WORKERS + 1):
            log = self._folder / f"worker-{number}.log"
            worker = Guarded(_COMMAND, log=log, env=self._environment())
            self.workers[worker.pid] = worker

    def _environment(self) -> dict[str, str]:
        """Ours, without the settings that somebody may have for workers of their own."""
        mine = {name: value for name, value in os.environ.items() if not name.upper().startswith("FENCEPOST_")}
        return mine | {
            "FENCEPOST_KAFKA_BOOTSTRAP": self.broker.bootstrap,
            "FENCEPOST_LEDGER_DSN": self.postgres.dsn(),
            "FENCEPOST_LEASE_SECONDS": str(LEASE_SECONDS),
            "FENCEPOST_METRICS_PORT": "0",
            "FENCEPOST_KAFKA__SESSION_TIMEOUT_MS": str(SESSION_MILLISECONDS),
            "FENCEPOST_KAFKA__HEARTBEAT_INTERVAL_MS": str(SESSION_MILLISECONDS // 10),
            "FENCEPOST_KAFKA__FETCH_WAIT_MAX_MS": str(FETCH_WAIT_MILLISECONDS),
            URL: self.tickets.url,
        }

    def inside(self, name: str) -> int:
        """The process that the ledger says is executing the call of this name; 0 when there is none."""
        holders = [row.holder for row in self.desk.calls(State.executing) if call_name(row) == name]
        return int(holders[0].rsplit(":", 2)[1]) if holders else 0

    def unknown(self) -> dict[str, str]:
        """What `fencepost calls list --state indeterminate` shows: name of the call → its invocation key."""
        return {call_name(row): row.key.hex() for row in self.desk.calls(State.indeterminate)}

    def kill(self, pid: int) -> None:
        """SIGKILL: it ends in the middle of whatever it does."""
        self.workers.pop(pid).stop(signal.SIGKILL)

    def freeze(self, pid: int) -> None:
        """SIGSTOP: it stands still, and does not know it."""
        self.workers[pid].send(signal.SIGSTOP)

    def thaw(self, pid: int) -> None:
        """SIGCONT: it goes on as if nothing had happened."""
        self.workers[pid].send(signal.SIGCONT)

    def end_workers(self) -> list[int]:
        """SIGTERM: they drain and leave → their exit codes."""
        with ThreadPoolExecutor() as threads:
            codes = list(threads.map(Guarded.stop, self.workers.values()))
        self.workers.clear()
        return codes

    def last_words(self) -> Iterator[str]:
        """The ends of the workers' logs, for somebody who has to find out what went wrong."""
        for log in sorted(self._folder.glob("*.log")):
            yield from (f"{log.stem}: {line}" for line in log.read_text(errors="replace").splitlines()[-15:])

    def _kill_all(self) -> None:
        while self.workers:
            self.workers.popitem()[1].stop(signal.SIGKILL)


def call_name(row: CallRow) -> str:
    """As `Call.name`."""
    return f"{row.execution_id}/{row.node_id}/{row.call_index}"
