"""`fencepost dispatch`, `redispatch` and `outcomes`: what an orchestrator does, by hand."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fencepost_worker.commands import output
from fencepost_worker.commands.identity import parse_arguments
from fencepost_worker.commands.options import Json, Org, options

if TYPE_CHECKING:
    from fencepost_dispatch.settings import Settings
    from fencepost_schemas import Dispatch, Outcome

Text = str | None
NEEDED = ("execution", "node", "index", "tool", "arguments")


def dispatch(  # noqa: PLR0917 - options, all given by name
    context: typer.Context,
    execution: Annotated[Text, typer.Option(metavar="ID")] = None,
    node: Annotated[Text, typer.Option(metavar="ID")] = None,
    index: Annotated[int | None, typer.Option(metavar="N", help="Position of the call in the node's run.")] = None,
    tool: Annotated[Text, typer.Option(metavar="NAME")] = None,
    arguments: Annotated[Text, typer.Option(metavar="JSON", help="A JSON object; - reads it from stdin.")] = None,
    generation: Annotated[int, typer.Option(metavar="N", help="Which dispatch of the node.")] = 1,
    event_id: Annotated[Text, typer.Option(metavar="ID", help="By default a new UUIDv7.")] = None,
    tool_call_id: Annotated[Text, typer.Option(metavar="ID", help="The model provider's id of the call.")] = None,
    session_key: Annotated[Text, typer.Option(metavar="KEY")] = None,
    org: Annotated[Text, typer.Option(metavar="ORG", help="Claim that the execution is this org's.")] = None,
    deadline: Annotated[Text, typer.Option(metavar="TIME", help="RFC 3339; not started after it.")] = None,
    wait: Annotated[float | None, typer.Option(metavar="S", min=0, help="Wait, and print the outcome.")] = None,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Many: a file of events, one a line; - is stdin.")
    ] = None,
) -> None:
    """Dispatch one call, or a file of them; returns once the brokers have it.

    Prints the event id, or with --wait the outcome as JSON (exit 0 whatever its status, 1 when there is none in time).
    With --file each line is an event of the contract (event_id and generation may be left out); bad lines are named on
    stderr and make the exit code 1, the others are sent.
    """
    fields = {"execution": execution, "node": node, "index": index, "tool": tool, "arguments": arguments}
    given = [name for name in NEEDED if fields[name] is not None]
    if file is not None:
        if given:
            raise typer.BadParameter(
                f"an event comes from the file or from --{given[0]}, not both", param_hint="--file"
            )
        from fencepost_worker.commands.batch import dispatch_file  # noqa: PLC0415

        raise typer.Exit(asyncio.run(dispatch_file(options(context).settings(), file, generation, wait)))
    if missing := [f"--{name}" for name in NEEDED if name not in given]:
        raise typer.BadParameter(f"needed for one event (or give --file): {', '.join(missing)}")
    event = _event(
        fields,
        generation=generation,
        event_id=event_id,
        tool_call_id=tool_call_id,
        session_key=session_key,
        org_id=org,
        deadline=deadline,
    )
    asyncio.run(_dispatch(options(context).settings(), event, wait))


def _event(fields: dict[str, Any], **others: Any) -> Dispatch:
    from fencepost_dispatch.event import new_event  # noqa: PLC0415
    from fencepost_schemas import Dispatch  # noqa: PLC0415

    return new_event(
        Dispatch,
        execution_id=fields["execution"],
        node_id=fields["node"],
        call_index=fields["index"],
        tool=fields["tool"],
        arguments=parse_arguments(fields["arguments"]),
        **others,
    )


async def _dispatch(settings: Settings, event: Dispatch, wait: float | None) -> None:
    from fencepost_dispatch.client import Dispatcher  # noqa: PLC0415

    async with Dispatcher(settings, listen=wait is not None) as dispatcher:
        call = await dispatcher.send(event)
        if wait is None:
            output.line(call.event_id)
            return
        try:
            print_outcome(await call.outcome(timeout=wait))
        except TimeoutError:
            output.note(f"no outcome of event {call.event_id} within {wait:g} s: is a worker running?")
            raise typer.Exit(1) from None


def redispatch(
    context: typer.Context,
    execution: Annotated[str, typer.Argument(metavar="EXECUTION")],
    node: Annotated[str, typer.Argument(metavar="NODE")],
) -> None:
    """Raise a node's generation and print it: from here on, no older call of the node can start."""
    from fencepost_ledger import Desk  # noqa: PLC0415

    with Desk(options(context).settings().require_dsn()) as desk:
        output.line(str(desk.redispatch(execution, node)))


def outcomes(
    context: typer.Context,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Also what is there already (the default without --follow).")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what comes, until interrupted.")] = False,
    org: Org = None,
    json: Json = True,  # noqa: ARG001 - always
) -> None:
    """Print the outcome topic, one JSON object a line, each outcome once."""
    settings = options(context).settings()
    asyncio.run(_outcomes(settings, from_beginning=from_beginning or not follow, follow=follow, org=org))


async def _outcomes(settings: Settings, *, from_beginning: bool, follow: bool, org: str | None) -> None:
    from fencepost_dispatch.outcomes import Outcomes  # noqa: PLC0415

    async with Outcomes(settings, org=org, from_beginning=from_beginning, follow=follow) as found:
        async for outcome in found:
            print_outcome(outcome)
            if follow:
                sys.stdout.flush()


def print_outcome(outcome: Outcome) -> None:
    """As on the topic, on one line, in ASCII."""
    from fencepost_schemas import encode_outcome, loads  # noqa: PLC0415

    output.record(loads(encode_outcome(outcome).value))
