"""`fencepost dev`: a broker, a Postgres and a worker in this process, that stay up until Ctrl-C."""

from __future__ import annotations

import os
import shlex
import sys
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
# What the embedded broker needs: it sleeps through all of a fetch's wait, and a classic group that its last member has
# left never takes one in again.
_FIT: dict[str, Any] = {"kafka": {"fetch.wait.max.ms": "50"}, "group_protocol": "consumer"}
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
        given = Settings.load(config)  # a wrong setting is said before anything starts
        postgres = opened.enter_context(EmbeddedPostgres(None if data is None else data / "postgres"))
        broker = opened.enter_context(EmbeddedBroker())
        settings = _settings(given, config, kafka_bootstrap=broker.bootstrap, ledger_dsn=postgres.dsn())
        migrate(postgres.dsn())
        create(settings.kafka_config(), settings)
        _export(FENCEPOST_KAFKA_BOOTSTRAP=broker.bootstrap, FENCEPOST_LEDGER_DSN=postgres.dsn())
        set_up_logs(settings.log_format, settings.redact, debug=debug)
        if not tools:
            tickets = opened.enter_context(TicketSystem(postgres.folder / "tickets.sqlite"))
            os.environ[URL] = tickets.url
            _say("Paste the two lines into another shell, and file a ticket there:", _EXAMPLE, f"curl {tickets.url}")
        return uvloop.run(run_worker(settings, tools or [_DEMO_TOOLS]))


def _settings(given: Settings, config: Path | None, **services: str) -> Settings:
    easy = {name: value for name, value in _EASY.items() if name not in given.model_fields_set}
    return Settings.load(config, **easy, **services, **_FIT)


def _export(**settings: str) -> None:
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in settings.items()]
    sys.stdout.write("".join(lines))
    sys.stdout.flush()


def _say(*lines: str) -> None:
    sys.stderr.write("\n".join(lines) + "\n")
