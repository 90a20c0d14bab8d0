"""The events of Fencepost, their canonical form and their identity: what every part and every client agrees on."""

from fencepost_schemas.canonical import MAX_DEPTH, MAX_DIGITS, Refused, canonical, parse
from fencepost_schemas.codec import (
    MAX_ARGUMENTS_BYTES,
    Decoded,
    Encoded,
    Headers,
    Poison,
    Refusal,
    decode,
    decode_outcome,
    encode_dispatch,
    encode_outcome,
)
from fencepost_schemas.dispatch import DISPATCH_TYPE, FENCE_TYPE, Dispatch, Fence
from fencepost_schemas.identity import arguments_hash, event_digest, invocation_key, outcome_id, session_invocation_key
from fencepost_schemas.outcome import OUTCOME_TYPE, Outcome, OutcomeError, Resolution, ResultRef, Status
from fencepost_schemas.plain import dumps, loads

__all__ = [
    "DISPATCH_TYPE",
    "FENCE_TYPE",
    "MAX_ARGUMENTS_BYTES",
    "MAX_DEPTH",
    "MAX_DIGITS",
    "OUTCOME_TYPE",
    "Decoded",
    "Dispatch",
    "Encoded",
    "Fence",
    "Headers",
    "Outcome",
    "OutcomeError",
    "Poison",
    "Refusal",
    "Refused",
    "Resolution",
    "ResultRef",
    "Status",
    "arguments_hash",
    "canonical",
    "decode",
    "decode_outcome",
    "dumps",
    "encode_dispatch",
    "encode_outcome",
    "event_digest",
    "invocation_key",
    "loads",
    "outcome_id",
    "parse",
    "session_invocation_key",
]
