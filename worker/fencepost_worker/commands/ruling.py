"""`fencepost calls resolve` and `release`: what a person decides about an unknown outcome."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fencepost_worker.commands import output
from fencepost_worker.commands.options import Json, Org, options

if TYPE_CHECKING:
    from fencepost_dispatch.settings import Settings
    from fencepost_ledger import CallRow, Desk
    from fencepost_worker.replay import Original

Text = str | None
Evidence = Annotated[Text, typer.Option(metavar="TEXT", help="What that rests on; kept with the ruling.")]
Revision = Annotated[int | None, typer.Option(metavar="N", help="Only if the call is still as shown at this revision.")]


def resolve(  # noqa: PLR0917 - options, all given by name
    context: typer.Context,
    key: Annotated[Text, typer.Argument(metavar="KEY", help="The invocation key, or any unique prefix of it.")] = None,
    succeeded: Annotated[Text, typer.Option(metavar="JSON", help="It happened, with this result; - is stdin.")] = None,
    failed: Annotated[Text, typer.Option(metavar="CODE", help="It did not happen, and is not to be run again.")] = None,
    message: Annotated[Text, typer.Option(metavar="TEXT", help="Of the error; by default the reason.")] = None,
    by: Annotated[Text, typer.Option(metavar="WHO", help="Who decides.")] = None,
    reason: Annotated[Text, typer.Option(metavar="WHY", help="Why; it goes out with the outcome.")] = None,
    evidence: Evidence = None,
    revision: Revision = None,
    file: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Many: a file of rulings, one a line; - is stdin.")
    ] = None,
    org: Org = None,
    json: Json = False,
) -> None:
    """Say how a call of unknown outcome ended; that is published as another outcome of its event.

    It holds against everybody who comes later, and is not taken back; the same ruling once more is fine. Exit 1 when
    the call is not of unknown outcome (any more).

    With --from each line is a JSON object: key, succeeded or failed, by, reason; also message, evidence and revision.
    --by, --reason and --evidence are for lines that have none. Bad lines are named on stderr and make the exit code 1.
    """
    who = {"by": by, "reason": reason, "evidence": evidence}
    what = {"key": key, "succeeded": succeeded, "failed": failed, "message": message, "revision": revision}
    if file is not None:
        _resolve_file(context, file, org, what, who, json)
    _require(what, who)
    _resolve_one(context, org, {name: value for name, value in (what | who).items() if value is not None}, json)


def release(  # noqa: PLR0917 - options, all given by name
    context: typer.Context,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The invocation key, or any unique prefix of it.")],
    by: Annotated[str, typer.Option(metavar="WHO", help="Who decides.")],
    reason: Annotated[str, typer.Option(metavar="WHY", help="Why; it goes out with later outcomes.")],
    evidence: Evidence = None,
    replay: Annotated[bool, typer.Option("--replay", help="Dispatch its event again, as it was.")] = False,
    revision: Revision = None,
    org: Org = None,
    json: Json = False,
) -> None:
    """Let a call of unknown outcome start again, once, because it did not happen.

    Without --replay it starts with its next delivery. With it, the event's own record is produced again; when that is
    there no more, the release holds all the same and the exit code is 1. A replay is a delivery like any other: behind
    a raised generation it is answered `fenced`, past its deadline `expired`.
    """
    from fencepost_ledger import Desk  # noqa: PLC0415
    from fencepost_worker.commands.resolving import as_shown, is_changed, tell  # noqa: PLC0415

    settings = options(context).settings()
    with Desk(settings.require_dsn(), org) as desk:
        shown = as_shown(desk, key, revision)
        # Looked for before the release: while Kafka does not answer, nothing is changed.
        again = _Again(settings, desk, shown) if replay else None
        row = desk.release(shown, by, reason, evidence)
    if again is None:
        tell(row, is_changed(shown, row), json)
        return
    again.produce()
    tell(row, is_changed(shown, row), json, replayed=again.record is not None)
    again.say()


class _Again:
    """A replay: the record of a call's event, where it still is."""

    def __init__(self, settings: Settings, desk: Desk, row: CallRow) -> None:
        from fencepost_worker.replay import original  # noqa: PLC0415

        self._settings, self._event_id = settings, row.event_id
        self._source = desk.origin(row)
        self.record: Original | None = None if self._source is None else original(settings, row, self._source)

    def produce(self) -> None:
        from fencepost_worker.replay import produce_again  # noqa: PLC0415

        if self.record is not None:
            produce_again(self._settings, self.record)

    def say(self) -> None:
        """What came of it; raises Exit when it came to nothing."""
        if self.record is None:
            output.note(f"the release holds, but its event {self._event_id} {self._gone()}: dispatch the call again")
            raise typer.Exit(1)
        late = ", past its deadline: it will be answered `expired`" if self.record.late else ""
        output.note(f"event {self._event_id} is dispatched again{late}")

    def _gone(self) -> str:
        match self._source:
            case None:
                return "came from no record that is known"
            case at:
                return f"is no longer at {at.topic}/{at.partition}/{at.offset}"


def _resolve_file(  # noqa: PLR0917 - what the command was given
    context: typer.Context, file: Path, org: Text, what: dict[str, Any], who: dict[str, Text], json: bool
) -> None:
    from fencepost_worker.commands.resolving import resolve_file  # noqa: PLC0415

    if given := [_option(name) for name, value in what.items() if value is not None]:
        raise typer.BadParameter(f"{given[0]} comes from the file", param_hint="--from")
    raise typer.Exit(resolve_file(options(context).settings(), file, org, who, json))


def _require(what: dict[str, Any], who: dict[str, Text]) -> None:
    needed = {"key": what["key"], "by": who["by"], "reason": who["reason"]}
    if missing := [_option(name) for name, value in needed.items() if value is None]:
        raise typer.BadParameter(f"needed for one call (or give --from): {', '.join(missing)}")
    if (what["succeeded"] is None) == (what["failed"] is None):
        raise typer.BadParameter("give either --succeeded or --failed")
    if what["message"] is not None and what["failed"] is None:
        raise typer.BadParameter("goes with --failed", param_hint="--message")


def _resolve_one(context: typer.Context, org: Text, said: dict[str, Any], json: bool) -> None:
    from fencepost_ledger import Desk  # noqa: PLC0415
    from fencepost_schemas import parse  # noqa: PLC0415
    from fencepost_worker.commands.resolving import resolve_one, tell  # noqa: PLC0415

    if (text := said.get("succeeded")) is not None:
        said["succeeded"] = parse(typer.get_binary_stream("stdin").read() if text == "-" else text)
    settings = options(context).settings()
    with Desk(settings.require_dsn(), org) as desk:
        row, changed = resolve_one(desk, said, settings.inline_result_bytes)
    tell(row, changed, json)


def _option(name: str) -> str:
    return "KEY" if name == "key" else f"--{name}"
