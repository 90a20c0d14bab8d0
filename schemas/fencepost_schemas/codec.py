"""Records and events: bytes and headers in, models out, and back.

A record that cannot be understood at all is `Poison` and goes to the dead-letter topic. A dispatch whose envelope is
sound and whose ``arguments`` are not is understood, and carries a `Refusal`, so that it gets its outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from fencepost_schemas.canonical import MAX_DEPTH, Refused, canonical, read, scan
from fencepost_schemas.dispatch import DISPATCH_TYPE, FENCE_TYPE, Dispatch, Fence
from fencepost_schemas.outcome import OUTCOME_TYPE, Outcome
from fencepost_schemas.plain import dump_bytes, loads
from fencepost_schemas.refused import shown

Headers = Sequence[tuple[str, bytes | None]] | None
Trace = tuple[tuple[str, bytes], ...]

MAX_ARGUMENTS_BYTES: Final = 1_048_576
"""Size of a call's arguments, as canonical JSON in UTF-8. Larger things belong in a store, and their address here."""

_TOO_LARGE: Final = f"larger than {MAX_ARGUMENTS_BYTES} bytes of canonical JSON"
_TRACE_BYTES: Final = 8192  # a header beyond it is dropped: it would be copied onto every outcome
_READ: Final = frozenset({"traceparent", "tracestate", "ce_type"})
_DISPATCH_FIELDS: Final = frozenset({*Dispatch.model_fields, "type"})
_FENCE_FIELDS: Final = frozenset({*Fence.model_fields, "type"})


_Model = TypeVar("_Model", Dispatch, Fence, Outcome)


class Poison(Exception):
    """A record that cannot be decoded.

    ``code`` is one of ``no_value``, ``not_json``, ``not_an_object``, ``unknown_type`` and ``invalid_field``;
    ``message`` is one line that names the place and never shows a value.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a dispatch with a sound envelope is not run: ``invalid_arguments`` (with the JSON path) or ``too_large``."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Decoded:
    """A record understood. With a refusal, the event's arguments are ``{}`` and there is no hash of them."""

    event: Dispatch | Fence
    arguments_hash: bytes | None
    refusal: Refusal | None
    unknown_fields: int
    trace: Trace


@dataclass(frozen=True, slots=True)
class Encoded:
    """A record to produce."""

    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]


def decode(value: bytes | None, headers: Headers = None) -> Decoded:
    """A record of the dispatch topic. Raises `Poison`, and nothing else, whatever the bytes."""
    trace, ce_type = _from_headers(headers)
    record, fault = _record(_present(value))
    kind = _kind(record, ce_type, DISPATCH_TYPE)
    if kind == DISPATCH_TYPE:
        return _dispatch(record, fault, trace)
    if kind == FENCE_TYPE:
        return _fence(record, fault, trace)
    raise Poison("unknown_type", f"neither {DISPATCH_TYPE} nor {FENCE_TYPE}")


def decode_outcome(value: bytes | None, headers: Headers = None) -> Outcome:
    """A record of the outcome topic. Raises `Poison`, and nothing else."""
    try:
        record = _object(loads(_present(value)))
    except Refused as fault:
        raise Poison("not_json", str(fault)) from None
    if _kind(record, _from_headers(headers)[1], OUTCOME_TYPE) != OUTCOME_TYPE:
        raise Poison("unknown_type", f"not {OUTCOME_TYPE}")
    return _validated(Outcome, record)


def encode_dispatch(
    event: Dispatch | Fence, *, source: str = "fencepost", trace: Iterable[tuple[str, bytes]] = ()
) -> Encoded:
    """The record that asks. Raises `Refused` for arguments that every worker would refuse."""
    body = {name: member for name, member in event.__dict__.items() if member is not None}
    kind = FENCE_TYPE
    if isinstance(event, Dispatch):
        kind = DISPATCH_TYPE
        if len(canonical(event.arguments)) > MAX_ARGUMENTS_BYTES:
            raise Refused("$", _TOO_LARGE)
        if event.deadline is not None:
            body["deadline"] = _rfc3339(event.deadline)
    headers = _headers(event.event_id, kind, source, _rfc3339(datetime.now(UTC)), trace)
    return Encoded(event.execution_id.encode(), dump_bytes({"type": kind} | body), headers)


def encode_outcome(outcome: Outcome, *, source: str = "fencepost", trace: Iterable[tuple[str, bytes]] = ()) -> Encoded:
    """The record that answers. Raises `Refused` when the result or the error's detail is not JSON."""
    body = {"type": OUTCOME_TYPE} | outcome.__dict__
    started, finished, resolution = outcome.started_at, outcome.finished_at, outcome.resolution
    body["started_at"] = None if started is None else _rfc3339(started)
    body["finished_at"] = None if finished is None else _rfc3339(finished)
    body["result_ref"] = None if outcome.result_ref is None else outcome.result_ref.__dict__
    body["error"] = None if outcome.error is None else outcome.error.__dict__
    if resolution is not None:
        body["resolution"] = resolution.__dict__ | {"at": _rfc3339(resolution.at)}
    time = body["finished_at"] or _rfc3339(datetime.now(UTC))
    headers = _headers(outcome.outcome_id, OUTCOME_TYPE, source, time, trace)
    return Encoded(outcome.execution_id.encode(), dump_bytes(body), headers)


def _from_headers(headers: Headers) -> tuple[Trace, str | None]:
    if not headers:
        return (), None
    kept = {name: value for name, value in headers if name in _READ and value}
    ce_type = kept.pop("ce_type", b"").decode(errors="replace")
    return tuple((name, value) for name, value in kept.items() if len(value) <= _TRACE_BYTES), ce_type or None


def _kind(record: dict[str, Any], ce_type: str | None, default: str) -> Any:
    named = record.get("type")
    return (ce_type or default) if named is None else named


def _present(value: bytes | None) -> bytes:
    if value is None:
        raise Poison("no_value", "a record without a value (a tombstone)")
    return value


def _object(record: Any) -> dict[str, Any]:
    if type(record) is not dict:
        raise Poison("not_an_object", "the value is JSON, but not an object")
    return record


def _record(value: bytes) -> tuple[dict[str, Any], Refused | None]:
    """The record, and what is wrong with its arguments if the fast reader did not take them."""
    try:
        record = read(value.decode())
    except (ValueError, RecursionError):
        try:
            reading = scan(value, MAX_DEPTH + 1, "arguments")
            return _object(reading.document()), reading.fault
        except Refused as fault:
            raise Poison("not_json", str(fault)) from None
    return _object(record), None


def _dispatch(record: dict[str, Any], fault: Refused | None, trace: Trace) -> Decoded:
    unknown = _unknown(record, _DISPATCH_FIELDS)
    digest, refusal = _judged(record.get("arguments"), fault)
    if refusal is not None:
        record = record | {"arguments": {}}
    return Decoded(_validated(Dispatch, record), digest, refusal, unknown, trace)


def _judged(arguments: Any, fault: Refused | None) -> tuple[bytes | None, Refusal | None]:
    """The hash of the arguments, or why they are refused."""
    if fault is None and type(arguments) is not dict:
        fault = Refused("$.arguments", "an object is required")
    if fault is not None:
        return None, Refusal("invalid_arguments", str(fault))
    try:
        text = canonical(arguments)
    except Refused as refused:
        return None, Refusal("invalid_arguments", str(refused.inside("arguments")))
    if len(text) > MAX_ARGUMENTS_BYTES:
        return None, Refusal("too_large", f"$.arguments: {_TOO_LARGE}")
    return sha256(text).digest(), None


def _fence(record: dict[str, Any], fault: Refused | None, trace: Trace) -> Decoded:
    if fault is not None:
        raise Poison("not_json", str(fault))
    return Decoded(_validated(Fence, record), None, None, _unknown(record, _FENCE_FIELDS), trace)


def _unknown(record: dict[str, Any], named: frozenset[str]) -> int:
    """How many fields are not ours. They are ignored, but they must be JSON like the rest."""
    names = record.keys() - named
    for name in names:
        try:
            canonical(record[name])
        except Refused as fault:
            raise Poison("not_json", str(fault.inside(name))) from None
    return len(names)


def _validated(model: type[_Model], record: dict[str, Any]) -> _Model:
    try:
        return model.model_validate(record)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = "".join(shown(step) for step in first["loc"])
        reason = first["msg"].removeprefix("Value error, ")
        raise Poison("invalid_field", f"${place}: {reason}") from None


def _rfc3339(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat()[:-6] + "Z"


def _headers(
    ident: str, kind: str, source: str, time: str, trace: Iterable[tuple[str, bytes]]
) -> list[tuple[str, bytes]]:
    return [
        ("ce_id", ident.encode()),
        ("ce_type", kind.encode()),
        ("ce_source", source.encode()),
        ("ce_specversion", b"1.0"),
        ("ce_time", time.encode()),
        ("content-type", b"application/json"),
        *trace,
    ]
