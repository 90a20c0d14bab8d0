"""The judge: what was promised against what was counted. Pure, so that a test can hand it every broken promise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counts:
    """What was asked for and what was found, both after everything had ended.

    Calls are named like `acme-1/triage/7`, which is also the title of the ticket that each of them asks for.
    """

    calls: frozenset[str]
    """The calls that were asked for."""
    tickets: Mapping[str, int]
    """By title, counted in the ticket system's own database."""
    unanswered: int
    """Deliveries that got no outcome."""
    foreign: int
    """Outcomes under another organization than their execution's."""
    zombie: frozenset[str]
    """Calls that were sent once more under the older generation, after the newer one had begun."""
    fenced: frozenset[str]
    """Calls of which that late event was answered `fenced`, and nothing else."""
    interrupted: frozenset[str]
    """Calls inside of which a worker was killed."""
    unknown: frozenset[str]
    """Calls whose last answer was `indeterminate`."""
    listed: frozenset[str]
    """Calls that the ledger lists as indeterminate, for a person to settle."""
    frozen: frozenset[str]
    """Calls inside of which a worker was stopped for longer than its lease, and continued."""
    late: frozenset[str]
    """Calls that were answered `indeterminate` and after that `succeeded`."""
    poison: int
    """Records that are no dispatches."""
    dead_letters: int


@dataclass(frozen=True, slots=True)
class Promise:
    """One promise, what was wanted, what was counted, and whether it held."""

    text: str
    wanted: int
    counted: int
    held: bool


def judge(counts: Counts) -> list[Promise]:
    """Every promise; the demo succeeds when all of them held."""
    asked = Counter(dict.fromkeys(counts.calls, 1))
    filed = Counter(counts.tickets)
    owed = Counter({name: one for name, one in asked.items() if name not in counts.interrupted})
    unknown = counts.unknown | counts.listed
    return [
        _exactly("tickets made twice, or asked for by nobody", 0, (filed - asked).total()),
        _exactly("tickets that are missing", 0, (owed - filed).total()),
        _exactly("deliveries without an answer", 0, counts.unanswered),
        _exactly("answers under the wrong organization", 0, counts.foreign),
        _same("late calls of a stalled body, fenced", counts.zombie, counts.fenced),
        Promise(
            "calls cut off by a kill, named as unknown",
            len(counts.interrupted),
            len(unknown),
            counts.unknown == counts.listed == counts.interrupted,
        ),
        _same("late results of a frozen worker, recorded", counts.frozen, counts.late),
        _exactly("garbage records, in the dead letters", counts.poison, counts.dead_letters),
    ]


def _exactly(text: str, wanted: int, counted: int) -> Promise:
    return Promise(text, wanted, counted, wanted == counted)


def _same(text: str, wanted: frozenset[str], counted: frozenset[str]) -> Promise:
    return Promise(text, len(wanted), len(counted), wanted == counted)
