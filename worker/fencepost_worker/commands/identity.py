"""`fencepost key`: what a call's identity is made of."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from fencepost_worker.commands import output
from fencepost_worker.commands.options import Json


def key(  # noqa: PLR0917 - options, all given by name
    org: Annotated[str, typer.Option(metavar="ORG", help="The org of the execution's row.")],
    execution: Annotated[str, typer.Option(metavar="ID")],
    node: Annotated[str, typer.Option(metavar="ID")],
    index: Annotated[int, typer.Option(metavar="N", help="Position of the call within the node's run, from 0.")],
    tool: Annotated[str, typer.Option(metavar="NAME")],
    arguments: Annotated[str, typer.Option(metavar="JSON", help="A JSON object; - reads it from stdin.")],
    json: Json = True,  # noqa: ARG001 - always
) -> None:
    """Show the canonical arguments, their hash and the call's invocation key, for authors of other clients.

    Arguments that are refused: exit 2, the reason with its JSON path on stderr.
    """
    from fencepost_schemas import arguments_hash, canonical, invocation_key  # noqa: PLC0415

    given = parse_arguments(arguments)
    _check(org=org, execution=execution, node=node, index=index, tool=tool)
    digest = arguments_hash(given)
    made = invocation_key(org, execution, node, index, tool, digest)
    output.record(
        {"canonical": canonical(given).decode(), "arguments_hash": digest.hex(), "invocation_key": made.hex()}
    )


def parse_arguments(text: str) -> dict[str, Any]:
    """The JSON object of an option, or of stdin.

    Raises:
        Refused: with its path.
    """
    from fencepost_schemas import Refused, parse  # noqa: PLC0415

    value = parse(typer.get_binary_stream("stdin").read() if text == "-" else os.fsencode(text))
    if not isinstance(value, dict):
        raise Refused("$", "an object is required")
    return value


def _check(*, org: str, execution: str, node: str, index: int, tool: str) -> None:
    """The ids keep the rules of a dispatch."""
    from fencepost_dispatch.event import new_event  # noqa: PLC0415
    from fencepost_schemas import Dispatch  # noqa: PLC0415

    ids = {"execution_id": execution, "node_id": node, "call_index": index, "org_id": org, "tool": tool}
    new_event(Dispatch, generation=1, arguments={}, **ids)
