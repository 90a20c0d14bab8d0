"""The events of Fencepost, their canonical form and their identity: what every part and every client agrees on."""

from .canonical import MAX_DEPTH, MAX_DIGITS, Refused, canonical, parse
from .codec import (
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
from .dispatch import DISPATCH_TYPE, FENCE_TYPE, Dispatch, Fence
from .identity import arguments_hash, event_digest, invocation_key, outcome_id, session_invocation_key
from .outcome import OUTCOME_TYPE, Outcome, OutcomeError, Resolution, ResultRef, Status
from .plain import dumpb, dumps, loads

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
    "dumpb",
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
