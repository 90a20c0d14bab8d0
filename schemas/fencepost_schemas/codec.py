"""Records and events: bytes and headers in, models out, and back.

A record that cannot be understood at all is `Poison` and goes to the dead-letter topic. A dispatch whose envelope is
sound and whose ``arguments`` are not is understood, and carries a `Refusal`, so that it gets its outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypeVar

from pydantic import ValidationError

from .canonical import MAX_DEPTH, Refused, canonical, explain, read
from .dispatch import DISPATCH_TYPE, FENCE_TYPE, Dispatch, Fence
from .outcome import OUTCOME_TYPE, Outcome
from .plain import dumpb, loads

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

    ``code`` is one of ``no_value``, ``not_json``, ``not_an_object``, ``unknown_type``, ``invalid_header`` and
    ``invalid_field``; ``message`` is one line that names the place and never shows a value.
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


class _Arguments(NamedTuple):
    kept: dict[str, Any]
    digest: bytes | None
    refusal: Refusal | None


def decode(value: bytes | None, headers: Headers = None) -> Decoded:
    """A record of the dispatch topic. Raises `Poison`, and nothing else, whatever the bytes."""
    trace, ce_type = _from_headers(headers)
    record, fault = _record(value)
    kind = record.get("type", ce_type or DISPATCH_TYPE)
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
    kind = record.get("type", _from_headers(headers)[1] or OUTCOME_TYPE)
    if kind != OUTCOME_TYPE:
        raise Poison("unknown_type", f"not {OUTCOME_TYPE}")
    return _validated(Outcome, record)


def encode_dispatch(
    event: Dispatch | Fence, *, source: str = "fencepost", trace: Iterable[tuple[str, bytes]] = ()
) -> Encoded:
    """The record that asks. Raises `Refused` for arguments that every worker would refuse."""
    kind = FENCE_TYPE
    if isinstance(event, Dispatch):
        kind = DISPATCH_TYPE
        if len(canonical(event.arguments)) > MAX_ARGUMENTS_BYTES:
            raise Refused("$", _TOO_LARGE)
    body = {"type": kind} | {name: member for name, member in event if member is not None}
    if isinstance(event, Dispatch) and event.deadline is not None:
        body["deadline"] = _rfc3339(event.deadline)
    headers = _headers(event.event_id, kind, source, datetime.now(UTC), trace)
    return Encoded(event.execution_id.encode(), dumpb(body), headers)


def encode_outcome(outcome: Outcome, *, source: str = "fencepost", trace: Iterable[tuple[str, bytes]] = ()) -> Encoded:
    """The record that answers. Raises `Refused` when the result or the error's detail is not JSON."""
    body = {"type": OUTCOME_TYPE} | dict(outcome)
    for name in ("started_at", "finished_at"):
        body[name] = None if body[name] is None else _rfc3339(body[name])
    for name in ("result_ref", "error"):
        body[name] = None if body[name] is None else dict(body[name])
    if outcome.resolution is not None:
        body["resolution"] = dict(outcome.resolution) | {"at": _rfc3339(outcome.resolution.at)}
    happened = outcome.finished_at or datetime.now(UTC)
    headers = _headers(outcome.outcome_id, OUTCOME_TYPE, source, happened, trace)
    return Encoded(outcome.execution_id.encode(), dumpb(body), headers)


def _from_headers(headers: Headers) -> tuple[Trace, str | None]:
    if not headers:
        return (), None
    kept = {name: value for name, value in headers if name in _READ and value is not None}
    ce_type = kept.pop("ce_type", None)
    trace = tuple((name, value) for name, value in kept.items() if len(value) <= _TRACE_BYTES)
    try:
        return trace, None if ce_type is None else ce_type.decode()
    except UnicodeDecodeError:
        raise Poison("invalid_header", "ce_type is not UTF-8") from None


def _present(value: bytes | None) -> bytes:
    if value is None:
        raise Poison("no_value", "a record without a value (a tombstone)")
    return value


def _object(record: Any) -> dict[str, Any]:
    if type(record) is not dict:
        raise Poison("not_an_object", "the value is JSON, but not an object")
    return record


def _record(value: bytes | None) -> tuple[dict[str, Any], Refused | None]:
    text = _present(value)
    try:
        return _object(read(text)[0]), None
    except (ValueError, RecursionError):
        return _examined(text)


def _examined(text: bytes) -> tuple[dict[str, Any], Refused | None]:
    faults: list[Refused] = []

    def keep(fault: Refused) -> None:
        if not _in_arguments(fault.path):
            raise fault
        faults.append(fault)

    try:
        record = explain(text, MAX_DEPTH + 1, keep)
    except Refused as fault:
        raise Poison("not_json", str(fault)) from None
    return _object(record), faults[0] if faults else None


def _in_arguments(path: str) -> bool:
    return path.startswith("$.arguments") and path[11:12] in ("", ".", "[")


def _dispatch(record: dict[str, Any], fault: Refused | None, trace: Trace) -> Decoded:
    arguments = _arguments(record, fault)
    unknown = _unknown(record, _DISPATCH_FIELDS)
    event = _validated(Dispatch, record | {"arguments": arguments.kept})
    return Decoded(event, arguments.digest, arguments.refusal, unknown, trace)


def _arguments(record: dict[str, Any], fault: Refused | None) -> _Arguments:
    if fault is not None:
        return _Arguments({}, None, Refusal("invalid_arguments", str(fault)))
    arguments = record.get("arguments")
    if type(arguments) is not dict:
        return _Arguments({}, None, Refusal("invalid_arguments", "$.arguments: an object is required"))
    try:
        text = canonical(arguments)
    except Refused as refused:
        return _Arguments({}, None, Refusal("invalid_arguments", str(refused.inside("arguments"))))
    if len(text) > MAX_ARGUMENTS_BYTES:
        return _Arguments({}, None, Refusal("too_large", f"$.arguments: {_TOO_LARGE}"))
    return _Arguments(arguments, sha256(text).digest(), None)


def _fence(record: dict[str, Any], fault: Refused | None, trace: Trace) -> Decoded:
    if fault is not None:
        raise Poison("not_json", str(fault))
    return Decoded(_validated(Fence, record), None, None, _unknown(record, _FENCE_FIELDS), trace)


def _unknown(record: dict[str, Any], named: frozenset[str]) -> int:
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
        place = ".".join(str(step) for step in first["loc"])
        raise Poison("invalid_field", f"{place}: {first['msg']}") from None


def _rfc3339(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _headers(
    ident: str, kind: str, source: str, time: datetime, trace: Iterable[tuple[str, bytes]]
) -> list[tuple[str, bytes]]:
    return [
        ("ce_id", ident.encode()),
        ("ce_type", kind.encode()),
        ("ce_source", source.encode()),
        ("ce_specversion", b"1.0"),
        ("ce_time", _rfc3339(time).encode()),
        ("content-type", b"application/json"),
        *trace,
    ]
