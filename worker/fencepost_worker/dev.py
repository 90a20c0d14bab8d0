"""`fencepost dev`: a broker, a Postgres and a worker in this process, that stay up until Ctrl-C."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import uvloop

from fencepost_dispatch.settings import Settings
from fencepost_ledger import migrate
from fencepost_worker.demo.tickets import TicketSystem
from fencepost_worker.demo.tools import URL
from fencepost_worker.embedded import EmbeddedBroker, EmbeddedPostgres
from fencepost_worker.guard import sigterm_unwinds
from fencepost_worker.logs import set_up_logs
from fencepost_worker.topics import create
from fencepost_worker.worker import run_worker

_DEMO_TOOLS = "fencepost_worker.demo.tools"
# Unless they are set: what makes a first try easy, on a machine where other workers may run.
_EASY = {"default_org": "dev", "log_format": "console", "metrics_port": 0}
_FETCH_WAIT = {"fetch.wait.max.ms": "50"}  # the embedded broker sleeps through all of it
_EXAMPLE = (
    "fencepost dispatch --execution try --node first --index 0 --tool tickets.create --wait 10"
    """ --arguments '{"project": "OPS", "title": "Disk full"}'"""
)


def run_dev(tools: list[str], *, data: Path | None = None, config: Path | None = None, debug: bool = False) -> int:
    """Serve the tools of these modules, or the demo's, until SIGINT or SIGTERM → exit code, 0 after an orderly end.

    On stdout are the two settings that other programs need, as lines for a shell. With `data` the ledger is kept in
    that folder; the broker's records are always gone at the end.

    Raises:
        EmbeddedUnavailable, SettingsError, ToolsNotLoaded: one line with the cure.
    """
    with sigterm_unwinds(), ExitStack() as opened:
        settings = _open(opened, data, config)
        set_up_logs(settings.log_format, settings.redact, debug=debug)
        if not tools:
            tickets = _open_tickets(opened, data)
            _say("Paste the two lines into another shell, and file a ticket there:", _EXAMPLE, f"curl {tickets}")
        return uvloop.run(run_worker(settings, tools or [_DEMO_TOOLS]))


def _open(opened: ExitStack, data: Path | None, config: Path | None) -> Settings:
    given = Settings.load(config)  # a wrong setting is said before anything starts
    postgres = opened.enter_context(EmbeddedPostgres(None if data is None else data / "postgres"))
    broker = opened.enter_context(EmbeddedBroker())
    services: dict[str, Any] = {"kafka_bootstrap": broker.bootstrap, "ledger_dsn": postgres.dsn(), "kafka": _FETCH_WAIT}
    easy = {name: value for name, value in _EASY.items() if name not in given.model_fields_set}
    settings = Settings.load(config, **easy, **services)
    migrate(postgres.dsn())
    create(settings.kafka_config(), settings)
    for name in ("kafka_bootstrap", "ledger_dsn"):
        sys.stdout.write(f"export FENCEPOST_{name.upper()}={shlex.quote(services[name])}\n")
    sys.stdout.flush()
    return settings


def _open_tickets(opened: ExitStack, data: Path | None) -> str:
    """The demo's ticket system → its URL, where the demo's tools find it."""
    folder = data or Path(tempfile.mkdtemp(prefix="fencepost-tickets-"))
    if data is None:
        opened.callback(shutil.rmtree, folder, ignore_errors=True)
    tickets = opened.enter_context(TicketSystem(folder / "tickets.sqlite"))
    os.environ[URL] = tickets.url
    return tickets.url


def _say(*lines: str) -> None:
    sys.stderr.write("\n".join(lines) + "\n")
