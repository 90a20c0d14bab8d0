"""`fencepost calls`: the operator's desk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fencepost_worker.commands import output, ruling
from fencepost_worker.commands.options import Execution, Json, Org, options

if TYPE_CHECKING:
    from fencepost_ledger import Desk

app = typer.Typer(no_args_is_help=True, help="The ledger's calls: what ran, what is running, what nobody knows.")

Key = Annotated[str, typer.Argument(metavar="KEY", help="The invocation key, or any unique prefix of it.")]
Filter = Literal["executing", "completed", "failed", "indeterminate", "released"]

COLUMNS = {
    "key": "invocation_key",
    "state": "state",
    "org": "org_id",
    "execution": "execution_id",
    "node": "node_id",
    "index": "call_index",
    "tool": "tool",
    "attempt": "attempt",
    "started": "started_at",
}


@app.command("list")
def list_(  # noqa: PLR0917 - options, all given by name
    context: typer.Context,
    state: Annotated[Filter | None, typer.Option(help="Only calls in this state.")] = None,
    execution: Execution = None,
    org: Org = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most this many.")] = None,
    json: Json = False,
) -> None:
    """List calls, oldest first."""
    from fencepost_ledger import State  # noqa: PLC0415

    wanted = None if state is None else State(state)
    with desk(context, org) as ledger:
        rows = (_row(call.as_json(), json) for call in ledger.calls(wanted, execution, limit=limit))
        output.listing(rows, COLUMNS, json)


@app.command("show")
def show(
    context: typer.Context,
    key: Key,
    org: Org = None,
    json: Json = False,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Read a large result from where it is stored.")
    ] = True,
) -> None:
    """Show everything that is known about one call; exit 1 when its large result is missing or damaged."""
    with desk(context, org) as ledger:
        row = ledger.call(key)
    call = row.as_json()
    try:
        if follow and row.result_ref is not None:
            call["result"] = _followed(row.result_ref, row.org_id)
    finally:  # what the ledger knows is shown whatever the store says
        (output.record if json else output.card)(call)


app.command()(ruling.resolve)
app.command()(ruling.release)


def _followed(ref: str, org_id: str) -> Any:
    from fencepost_ledger.blobs import fetch  # noqa: PLC0415
    from fencepost_schemas import ResultRef, loads  # noqa: PLC0415

    return loads(fetch(ResultRef(**loads(ref)), org_id))


def _row(call: dict[str, Any], json: bool) -> dict[str, Any]:
    """People get as much of the key as `show` needs."""
    return call if json else call | {"invocation_key": call["invocation_key"][:12]}


def desk(context: typer.Context, org: str | None) -> Desk:
    """The ledger's desk, of one org alone when it is given; a context manager."""
    from fencepost_ledger import Desk  # noqa: PLC0415

    return Desk(options(context).settings().require_dsn(), org)
