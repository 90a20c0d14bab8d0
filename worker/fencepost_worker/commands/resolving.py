"""How a ruling gets from the command line, or from a line of a file, into the ledger, and what is said about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from fencepost_dispatch.settings import Settings
from fencepost_ledger import Ambiguous, CallRow, Desk, Moved, NotFound, State
from fencepost_schemas import dumps, parse
from fencepost_worker.commands import output
from fencepost_worker.commands.lines import opened, progress


class Resolve(BaseModel):
    """One ruling. A `succeeded` that is null is a result too: what counts is that it is there."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    key: str
    by: str
    reason: str
    evidence: str | None = None
    succeeded: Any = None
    failed: str | None = None
    message: str | None = None
    revision: int | None = None


def resolve_one(desk: Desk, said: Mapping[str, Any], most: int) -> tuple[CallRow, bool]:
    """Rule on one call → the row, and whether it is changed; a result may have `most` bytes.

    Raises:
        ValueError, NotFound, Ambiguous, Moved
    """
    try:
        ruling = Resolve.model_validate(said)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    result = dumps(ruling.succeeded) if "succeeded" in ruling.model_fields_set else None
    if result is not None and len(result) > most:
        raise ValueError(f"a result of {len(result)} bytes is over the {most} of FENCEPOST_INLINE_RESULT_BYTES")
    shown = as_shown(desk, ruling.key, ruling.revision)
    row = desk.resolve(
        shown,
        by=ruling.by,
        reason=ruling.reason,
        evidence=ruling.evidence,
        succeeded=result,
        failed=ruling.failed,
        message=ruling.message,
    )
    return row, is_changed(shown, row)


def resolve_file(
    settings: Settings, path: Path, org: str | None, defaults: Mapping[str, str | None], json: bool
) -> int:
    """Rule on every line's call → exit code. A bad line is named and stops no other; a rerun changes nothing."""
    file = _File(settings, path, {name: value for name, value in defaults.items() if value is not None}, json)
    good = bad = 0
    with opened(path) as lines, progress(path) as advance, Desk(settings.require_dsn(), org) as desk:
        try:
            for number, text in enumerate(lines, 1):
                if text.strip():
                    done = file.line(desk, number, text)
                    good, bad = good + done, bad + (not done)
                    advance(good + bad)
        finally:  # also when the ledger goes away half-way
            output.note(f"resolved {good} of {good + bad} calls")
    return 1 if bad else 0


class _File:
    def __init__(self, settings: Settings, path: Path, defaults: dict[str, str], json: bool) -> None:
        self._most, self._path, self._defaults, self._json = settings.inline_result_bytes, path, defaults, json

    def line(self, desk: Desk, number: int, text: bytes) -> bool:
        try:
            said = parse(text)
            if not isinstance(said, dict):
                raise ValueError("$: an object is required")
            row, changed = resolve_one(desk, self._defaults | said, self._most)
        except (ValueError, Ambiguous, Moved, NotFound) as error:
            output.note(f"{self._path}:{number}: {error}")
            if self._json:
                output.record({"line": number, "ok": False, "error": str(error)})
            return False
        tell(row, changed, self._json, line=number, ok=True)
        return True


def as_shown(desk: Desk, key: str, revision: int | None) -> CallRow:
    """The call as it is, or as it was at the revision that the operator insists on. Raises NotFound, Ambiguous."""
    row = desk.call(key)
    return row if revision is None else replace(row, revision=revision)


def is_changed(shown: CallRow, row: CallRow) -> bool:
    """Whether the ruling is a new one; a row that said so already has a revision of its own, not the next one."""
    return row.revision == shown.revision + 1 and shown.state is State.indeterminate


def tell(row: CallRow, changed: bool, json: bool, **more: Any) -> None:
    """Say what became of the call: as JSON the whole row, with whether it has just been changed."""
    if json:
        output.record(row.as_json() | {"changed": changed} | more)
    else:
        output.line(f"{row.key.hex()[:12]} {_became(row) if changed else f'was ruled {row.state.value} already'}")


def _became(row: CallRow) -> str:
    if row.state is State.released:
        return "is released: it starts again, once, with its next delivery"
    return f"is {row.state.value}: any worker publishes that within seconds, or `fencepost sweep`"
