"""`fencepost executions`: the trusted rows, which say whose execution it is."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from fencepost_worker.commands import output
from fencepost_worker.commands.options import Json, Org, options

app = typer.Typer(no_args_is_help=True, help="The trusted rows: which execution belongs to which org.")

OnDivergence = Literal["refuse", "adopt", "execute"]
Id = Annotated[str, typer.Argument(metavar="ID", help="The execution.")]


@app.command("open")
def open_(
    context: typer.Context,
    execution: Id,
    org: Annotated[str, typer.Option(metavar="ORG", help="The org it belongs to, for good.")],
    on_divergence: Annotated[
        OnDivergence | None,
        typer.Option(help="What its re-dispatched nodes get where they diverge, over the workers' setting."),
    ] = None,
) -> None:
    """Open an execution under an org; open already under the same org is fine."""
    from fencepost_ledger import Desk  # noqa: PLC0415

    with Desk(options(context).settings().require_dsn()) as desk:
        new = desk.open_execution(execution, org, on_divergence=on_divergence)
    output.line(f"{execution} {'is open' if new else 'was open already'} under {org}")


@app.command("close")
def close(context: typer.Context, execution: Id) -> None:
    """Close an execution: no new call of it starts, what is recorded is still answered."""
    from fencepost_ledger import Desk  # noqa: PLC0415

    with Desk(options(context).settings().require_dsn()) as desk:
        desk.close_execution(execution)
    output.line(f"{execution} is closed")


@app.command("list")
def list_(context: typer.Context, org: Org = None, json: Json = False) -> None:
    """List the executions, oldest first."""
    from fencepost_ledger import Desk  # noqa: PLC0415

    columns = {"execution": "execution_id", "org": "org_id", "opened": "opened_at", "closed": "closed_at"}
    with Desk(options(context).settings().require_dsn(), org) as desk:
        output.listing((row.as_json() for row in desk.executions()), columns, json)
