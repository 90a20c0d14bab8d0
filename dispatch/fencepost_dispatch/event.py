"""New events: their id, and the contract's rules about their fields."""

from __future__ import annotations

import os
import time
from typing import Any, TypeVar

from pydantic import ValidationError

from fencepost_schemas import Dispatch, Fence

Event = TypeVar("Event", Dispatch, Fence)


class InvalidDispatch(ValueError):
    """The event breaks a rule of the contract; nothing was sent. The text is one line that names the field."""


def new_event_id() -> str:
    """A UUIDv7 (RFC 9562 §5.7): ordered by its time in milliseconds, then random."""
    milliseconds = time.time_ns() // 1_000_000
    noise = int.from_bytes(os.urandom(10))
    number = milliseconds << 80 | 0x7 << 76 | (noise >> 62 & 0xFFF) << 64 | 0b10 << 62 | noise & (1 << 62) - 1
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def new_event(kind: type[Event], **fields: Any) -> Event:
    """The event, with an id of its own unless one is given.

    Raises:
        InvalidDispatch: a field breaks a rule.
    """
    try:
        return kind(**fields | {"event_id": fields.get("event_id") or new_event_id()})
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(step) for step in first["loc"])
        raise InvalidDispatch(f"{place}: {first['msg']}") from None
