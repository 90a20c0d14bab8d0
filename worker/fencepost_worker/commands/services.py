"""`fencepost worker`, `migrate`, `topics`, `doctor`, `sweep`, `demo`, `dev`: what runs, and what it needs to run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fencepost_worker.commands import output
from fencepost_worker.commands.options import Json, options

if TYPE_CHECKING:
    from fencepost_worker.topics import Finding

Tools = Annotated[
    list[str], typer.Option("--tools", metavar="MODULE", help="A module with @tool functions; repeatable.")
]


def worker(  # noqa: PLR0917 - options, all given by name
    context: typer.Context,
    tools: Tools,
    concurrency: Annotated[int | None, typer.Option(metavar="N", help="Calls executing at once.")] = None,
    group_id: Annotated[str | None, typer.Option(metavar="ID", help="The consumer group.")] = None,
    log_format: Annotated[str | None, typer.Option(metavar="json|console", help="How it logs, on stderr.")] = None,
    metrics_port: Annotated[int | None, typer.Option(metavar="PORT", help="Metrics and health; 0: none.")] = None,
) -> None:
    """Run a worker of the consumer group until SIGTERM or Ctrl-C; it drains, then leaves."""
    import uvloop  # noqa: PLC0415

    from fencepost_worker.logs import set_up_logs  # noqa: PLC0415
    from fencepost_worker.worker import run_worker  # noqa: PLC0415

    chosen = options(context)
    settings = chosen.settings(
        concurrency=concurrency, group_id=group_id, log_format=log_format, metrics_port=metrics_port
    )
    set_up_logs(settings.log_format, settings.redact, debug=chosen.debug)
    here()
    raise typer.Exit(uvloop.run(run_worker(settings, tools)))


def migrate(
    context: typer.Context,
    roles: Annotated[
        bool, typer.Option("--roles", help="Also make the roles of workers, operators and readers, with their rights.")
    ] = False,
) -> None:
    """Bring the ledger's schema up to date; safe to run twice, and beside running workers."""
    from fencepost_ledger import make_roles  # noqa: PLC0415
    from fencepost_ledger import migrate as to_head  # noqa: PLC0415

    dsn = options(context).settings().require_dsn()
    output.line(to_head(dsn))
    if roles:
        output.line(make_roles(dsn))


def topics(
    context: typer.Context,
    partitions: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Of the topics that it creates: the most workers at once.")
    ] = None,
    json: Json = False,
) -> None:
    """Create the missing topics with sound settings, and say what there is."""
    from fencepost_worker.topics import PARTITIONS, create  # noqa: PLC0415

    settings = options(context).settings()
    findings = create(settings.kafka_config(), settings, PARTITIONS if partitions is None else partitions)
    report(findings, json)
    raise typer.Exit(1 if any(finding.level == "error" for finding in findings) else 0)


def doctor(context: typer.Context, json: Json = False) -> None:
    """Check brokers, topics, retention against the ledger's memory, database, schema and clock; change nothing.

    Exit 0 when nothing is wrong (warnings are not), 1 on a fault, 3 when a service cannot be reached.
    """
    from fencepost_worker.doctor import examine  # noqa: PLC0415

    findings, reached = examine(options(context).settings())
    report(findings, json)
    fault = any(finding.level == "error" for finding in findings)
    raise typer.Exit(3 if not reached else int(fault))


def sweep(context: typer.Context, json: Json = False) -> None:
    """One pass of the sweeper by hand: what every worker does by itself, every few seconds.

    Publishes outcomes that nobody has acknowledged (after a crash, after a ruling), ends calls whose worker is gone and
    for which nobody came back, and forgets what is past its time. Exit 0 also when another sweeper is at work.
    """
    from fencepost_worker.sweeping import sweep_by_hand  # noqa: PLC0415

    done = sweep_by_hand(options(context).settings())
    if json:
        output.record({"swept": done is not None} | ({} if done is None else asdict(done)))
    elif done is None:
        output.line("another sweeper is at work: nothing is left to do here")
    else:
        output.line(
            f"published {done.published} outcomes, ended {done.orphans} orphans,"
            f" forgot {done.forgotten} rows and {done.blobs} stored results"
        )
    if done is not None and done.faults:
        for fault in done.faults:
            output.note(fault)
        raise typer.Exit(1)


def demo(json: Json = False) -> None:
    """Run the main job on embedded services, with redeliveries, a crash and a zombie; exit 0 if every promise held."""
    from fencepost_worker.demo import run_demo  # noqa: PLC0415

    raise typer.Exit(run_demo(json=json))


def dev(
    context: typer.Context,
    tools: Annotated[
        list[str] | None, typer.Option("--tools", metavar="MODULE", help="A module with @tool functions; repeatable.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="FOLDER", file_okay=False, help="Where the ledger is kept.")
    ] = None,
) -> None:
    """Run an embedded broker, Postgres and worker until Ctrl-C; prints the addresses to use."""
    from fencepost_worker.dev import run_dev  # noqa: PLC0415

    here()
    chosen = options(context)
    raise typer.Exit(run_dev(tools or [], data=data, config=chosen.config, debug=chosen.debug))


def here() -> None:
    """Modules of the working directory can be named, as with `python -m`."""
    if os.getcwd() not in sys.path:  # noqa: PTH109 - what sys.path holds is text
        sys.path.insert(0, os.getcwd())  # noqa: PTH109


def report(findings: Iterable[Finding], json: bool) -> None:
    """Each finding with its cure."""
    for finding in findings:
        if json:
            output.record(
                {"level": finding.level, "subject": finding.subject, "text": finding.text, "cure": finding.cure}
            )
        else:
            output.line(f"{finding.level:<8} {finding}")
