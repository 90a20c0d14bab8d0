"""Re-dispatch with another mind (protocol §7): what a call of a raised generation means to an older one's effects.

Pure: the rows of the node, as read under the fence's share lock, → what to do. Older generations cannot start
anything more by then, so their rows are all there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fencepost_ledger.calls import CallRow, State
from fencepost_ledger.verdicts import Admit, Diverged, OnDivergence, Rejected

# These acted, or may have; a failed or released call left nothing in the world that could be done twice.
_ACTED = frozenset({State.completed, State.executing, State.indeterminate})


@dataclass(frozen=True, slots=True)
class Own:
    """The call is there under its own key: claim it for this generation, so that no other call takes it."""

    row: CallRow


@dataclass(frozen=True, slots=True)
class Claim:
    """An older call answers this one: claim it by compare-and-set, and replay it."""

    row: CallRow
    adopted: bool = False


@dataclass(frozen=True, slots=True)
class New:
    """New work: reserve it."""


Turn = Own | Claim | New | Diverged | Rejected


def turn(item: Admit, key: bytes, rows: Iterable[CallRow], on_divergence: OnDivergence) -> Turn:
    """What `item` (its generation above 1, its key `key`) is, given all `rows` of its node."""
    rows = list(rows)
    for row in rows:
        if row.key == key:
            return _own(item, row)
    older = [row for row in rows if row.generation < item.generation and row.state in _ACTED]
    for row in older:
        if row.claimed_by == key and row.claimed_generation == item.generation:
            return Claim(row, adopted=row.call_index == item.call_index)
    if any(_taken(item, row) for row in rows if row.claimed_by != key):
        return Rejected("position_reused", "another call of this generation has this position")
    free = [row for row in older if (row.claimed_generation or 0) < item.generation]
    for row in free:
        if row.tool == item.tool and row.arguments_hash == item.arguments_hash:
            return Claim(row)
    changed = [row for row in free if row.call_index == item.call_index]
    return _changed(max(changed, key=_newest), on_divergence) if changed else New()


def _own(item: Admit, row: CallRow) -> Turn:
    if row.generation >= item.generation or row.state not in _ACTED:
        return New()
    if row.claimed_generation != item.generation:
        return Own(row)
    return New() if row.claimed_by == row.key else Diverged(row)


def _taken(item: Admit, row: CallRow) -> bool:
    claimed = row.claimed_generation == item.generation and row.claimed_index == item.call_index
    return claimed or (row.generation == item.generation and row.call_index == item.call_index)


def _changed(row: CallRow, on_divergence: OnDivergence) -> Turn:
    match on_divergence:
        case "refuse":
            return Diverged(row)
        case "adopt":
            return Claim(row, adopted=True)
        case "execute":
            return New()


def _newest(row: CallRow) -> int:
    return row.generation
