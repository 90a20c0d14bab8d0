"""What a call is: the keys and digests by which it is known again.

Each one is SHA-256 over a canonical JSON array whose first element names what it is the identity of. An array keeps
its elements apart whatever an id contains, and two kinds of identity can never meet.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from fencepost_schemas.canonical import Refused, canonical

if TYPE_CHECKING:
    from fencepost_schemas.dispatch import Dispatch
    from fencepost_schemas.outcome import Status

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def arguments_hash(arguments: Mapping[str, Any]) -> bytes:
    """SHA-256 (32 bytes) of the canonical JSON. Raises `Refused` with the path of what is not JSON."""
    if type(arguments) is not dict:
        raise Refused("$", "an object is required")
    return sha256(canonical(arguments)).digest()


def invocation_key(  # noqa: PLR0917 - an identity has as many parts as it has
    org_id: str, execution_id: str, node_id: str, call_index: int, tool: str, arguments_hash: bytes
) -> bytes:
    """The idempotency key (32 bytes) of a call. Generation, event id and attempt are not in it: they may change.

    SHA-256 of the canonical ``["fencepost.call.v1", org_id, execution_id, node_id, call_index, tool, hash]``, the hash
    of the arguments as 64 lower-case hex digits. `vectors/identities.json` has examples.
    """
    parts = ["fencepost.call.v1", org_id, execution_id, node_id, call_index, tool, arguments_hash.hex()]
    return sha256(canonical(parts)).digest()


def session_invocation_key(session_key: str, tool_call_id: str) -> str:
    """The key (64 hex digits) of a call in a host without Kafka: the model provider's id, scoped to its session."""
    return sha256(canonical(["fencepost.session.v1", session_key, tool_call_id])).hexdigest()


def event_digest(event: Dispatch, arguments_hash: bytes) -> bytes:
    """SHA-256 (32 bytes) of what the event says: the same on every redelivery, other when its id is reused.

    Everything the contract names but the event id; the deadline as an instant, so that ``12:00Z`` is ``14:00+02:00``.
    """
    parts = [
        "fencepost.event.v1",
        event.execution_id,
        event.node_id,
        event.call_index,
        event.generation,
        event.tool,
        arguments_hash.hex(),
        event.tool_call_id,
        event.session_key,
        event.org_id,
        None if event.deadline is None else (event.deadline - _EPOCH) // _MICROSECOND,
        event.metadata,
    ]
    return sha256(canonical(parts)).digest()


def outcome_id(execution_id: str, event_id: str, status: Status) -> str:
    """64 hex digits, the same for the same event and status: a subscriber drops repeats by it."""
    return sha256(canonical(["fencepost.outcome.v1", execution_id, event_id, status.value])).hexdigest()
