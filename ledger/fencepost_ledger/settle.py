"""The far end of a call: finalize it by compare-and-set, and settle it once the broker has its outcome."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fencepost_ledger import statements as sql
from fencepost_ledger.calls import CallRow, State, Term
from fencepost_ledger.case import Holding, House, Key, Rows, run, select
from fencepost_ledger.verdicts import Finalize, Finalized, Settle

LOST = Finalized(mine=False, revision=0, finished_at=None)


def finalize(cur: Rows, ends: Sequence[Finalize], house: House, holding: Holding) -> list[Finalized]:
    """Record how attempts ended, in the transaction of `cur`.

    An attempt that no longer holds its call (or whose call a person ruled on) gets `mine=False`: the ledger knows
    better than this worker, and its result is not recorded.
    """
    common = [e for e in ends if e.state is not State.indeterminate]
    recorded = _write(cur, sql.FINALIZE, common, house)
    rest = [e for e in ends if e.term not in recorded]
    recorded |= _write(cur, sql.FINALIZE_RARE, rest, house)
    recorded |= _unheard(cur, [e for e in rest if e.term not in recorded], house)
    for end in ends:
        holding.end(end.term)
    return [recorded.get(end.term, LOST) for end in ends]


def settle(cur: Rows, settled: Sequence[Settle]) -> None:
    """Clear what the broker acknowledged; an undecided call stays listed until somebody has ruled."""
    done = [_settled(s) for s in _sorted(settled) if not s.undecided]
    undecided = [_settled(s) for s in _sorted(settled) if s.undecided]
    if done:
        run(cur, sql.SETTLE, done)
    if undecided:
        run(cur, sql.ACKNOWLEDGE, undecided)


def _write(cur: Rows, statement: str, ends: Iterable[Finalize], house: House) -> dict[Term, Finalized]:
    items = [_ended(end) for end in sorted(ends, key=_key)]
    if not items:
        return {}
    rows = run(cur, statement, items, holder=house.holder)
    return {Term(e, bytes(k), a): Finalized(True, revision, finished_at) for e, k, a, revision, finished_at in rows}


def _unheard(cur: Rows, ends: list[Finalize], house: House) -> dict[Term, Finalized]:
    """Our own end, recorded by a commit whose answer was lost with the connection, is no lost attempt."""
    if not ends:
        return {}
    items = [{"e": end.term.execution_id, "k": end.term.key.hex()} for end in ends]
    rows = {(row.execution_id, row.key): row for row in select(cur, sql.FIND, items, house)}
    pairs = ((end, rows.get(_key(end))) for end in ends)
    return {
        end.term: Finalized(True, row.revision, row.finished_at) for end, row in pairs if row and _is(end, row, house)
    }


def _is(end: Finalize, row: CallRow, house: House) -> bool:
    mine = (row.attempt, row.holder) == (end.term.attempt, house.holder) and not row.decided
    # Somebody who gave it up leaves the holder and an error of their own.
    return mine and (row.state, row.error) == (end.state, end.error)


def _key(end: Finalize) -> Key:
    return end.term.execution_id, end.term.key


def _ended(end: Finalize) -> dict[str, Any]:
    return {
        "e": end.term.execution_id,
        "k": end.term.key.hex(),
        "a": end.term.attempt,
        "s": end.state.value,
        "r": end.result,
        "f": end.result_ref,
        "x": end.error,
        "y": end.retryable,
    }


def _sorted(settled: Iterable[Settle]) -> list[Settle]:
    return sorted(settled, key=lambda s: (s.execution_id, s.key))


def _settled(s: Settle) -> dict[str, Any]:
    return {"e": s.execution_id, "k": s.key.hex(), "r": s.revision}
