"""A person's ruling on an unknown outcome: what may be said of it, and what is said when somebody was faster."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from fencepost_ledger.calls import CallRow, State
from fencepost_schemas import dumps, parse

# Characters at most: an outcome carries the ruling, and has to fit the broker's limit.
_MOST = {"by": 256, "reason": 4096, "evidence": 65_536, "code": 256, "message": 8192}
_PROBE = "probe"
_DIGITS = 12  # of a key, when it is told to people


class Moved(Exception):
    """The call is not what the operator was shown, and nothing was changed; the text is one line about what it is."""

    def __init__(self, now: CallRow, revision: int) -> None:
        key = now.key.hex()[:_DIGITS]
        what = f"revision {now.revision}, not {revision}" if now.state is State.indeterminate else _described(now)
        super().__init__(f"call {key} is {what}: nothing was changed, see `fencepost calls show {key}`")


def _described(row: CallRow) -> str:
    by = f", ruled by {row.decided_by}" if row.decided_attempt == row.attempt else ""
    return f"{row.state.value} now, not indeterminate (attempt {row.attempt}, revision {row.revision}{by})"


@dataclass(frozen=True, slots=True)
class Judgement:
    """What somebody says of an unknown outcome: `state` is completed, failed or released.

    `result` and `error` are JSON texts in ASCII. Raises ValueError for what cannot be kept.
    """

    state: State
    by: str
    reason: str
    evidence: str | None = None
    result: str | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        check_text("by", self.by)
        check_text("reason", self.reason)
        if self.evidence is not None:
            check_text("evidence", self.evidence)
        if self.by == _PROBE or not self.by.isprintable():
            raise ValueError("by: must be who decides, on one line, and `probe` is the tool's own")

    def stands(self, row: CallRow, attempt: int) -> bool:
        """Whether the row says exactly this of that attempt already, and that is still its attempt."""
        said = (row.state, row.decided_by, row.decided_reason, row.decided_evidence, row.result)
        same = said == (self.state, self.by, self.reason, self.evidence, self.result)
        # A released call keeps the error of the attempt that was released.
        same = same and (self.error == row.error or self.state is State.released)
        return same and row.decided_attempt == row.attempt == attempt

    def as_params(self) -> dict[str, Any]:
        """What the statement is told."""
        return asdict(self)


def happened(result: str, **who: Any) -> Judgement:
    """It happened, with this result (a JSON text). Raises Refused with the path of what is no strict JSON."""
    return Judgement(State.completed, result=dumps(parse(result)), **who)


def did_not_happen(code: str, message: str | None, **who: Any) -> Judgement:
    """It did not happen; without a message the reason is it."""
    check_text("code", code)
    if message is not None:
        check_text("message", message)
    error = {"code": code, "message": who["reason"] if message is None else message, "detail": None}
    return Judgement(State.failed, error=dumps(error), **who)


def check_text(name: str, text: str) -> None:
    """Raises ValueError for a text that says nothing, is too long, or cannot be kept in the database."""
    if not text.strip():
        raise ValueError(f"{name}: must say something")
    if len(text) > _MOST[name]:
        raise ValueError(f"{name}: has {len(text)} characters, at most {_MOST[name]} are kept")
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"{name}: must be text without U+0000 and in UTF-8")
