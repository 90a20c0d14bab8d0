"""The kinds of field that events are made of, with the limits of the contract."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from fencepost_schemas.canonical import canonical

METADATA_BYTES = 4096
"""Size of an event's metadata, as canonical JSON in UTF-8."""

# Postgres text holds everything but U+0000, so no id may contain it.
_STORABLE = r"^[^\x00]+$"
_NO_CONTROLS = r"^[^\x00-\x1f\x7f-\x9f]+$"
_RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt]((?:[01]\d|2[0-3]):[0-5]\d):([0-5]\d|60)(\.\d+)?([Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)",
    re.ASCII,
)


def _whole(value: Any) -> Any:
    # JSON does not tell 1.0 from 1, and some writers have only doubles.
    return int(value) if type(value) is float and value.is_integer() else value


def _instant(value: Any) -> datetime:
    moment = value if isinstance(value, datetime) else _from_rfc3339(value)
    if moment.tzinfo is None:
        raise ValueError("a time needs its offset from UTC")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("a time outside the years 1 to 9999") from None


def _from_rfc3339(value: Any) -> datetime:
    found = _RFC3339.fullmatch(value) if isinstance(value, str) else None
    if not found:
        raise ValueError("not an RFC 3339 time with its offset")
    day, minute, second, fraction, offset = found.groups()
    leap = second == "60"  # RFC 3339 §5.7 allows it, datetime does not: it is the second after :59
    text = f"{day}T{minute}:{'59' if leap else second}{(fraction or '')[:7]}{offset.upper()}"
    try:
        return datetime.fromisoformat(text) + timedelta(seconds=leap)
    except OverflowError:
        raise ValueError("a time outside the years 1 to 9999") from None


def _small(value: dict[str, str] | None) -> dict[str, str] | None:
    if value is not None and len(canonical(value)) > METADATA_BYTES:
        raise ValueError(f"larger than {METADATA_BYTES} bytes")
    return value


EventId = Annotated[str, Field(min_length=1, max_length=128, pattern=_STORABLE)]
ScopeId = Annotated[str, Field(min_length=1, max_length=256, pattern=_NO_CONTROLS)]
OrgId = Annotated[str, Field(min_length=1, max_length=128, pattern=_STORABLE)]
ForeignId = Annotated[str, Field(min_length=1, max_length=256, pattern=_STORABLE)]
ToolName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.:/-]+$")]
CallIndex = Annotated[int, Field(ge=0, le=2**31 - 1), BeforeValidator(_whole)]
Generation = Annotated[int, Field(ge=1, le=2**63 - 1), BeforeValidator(_whole)]
Instant = Annotated[datetime, BeforeValidator(_instant), WithJsonSchema({"type": "string", "format": "date-time"})]
Metadata = Annotated[dict[str, str] | None, AfterValidator(_small)]
