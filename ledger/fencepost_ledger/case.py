"""What the steps of an admission share: who asks (`House`), an event on its way (`Case`), a batch in one statement."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from psycopg import Cursor

from fencepost_ledger.calls import CallRow, Term, call_row
from fencepost_ledger.verdicts import Admit, Admitted, Expired, OnDivergence, Rejected, Verdict, Waiting

Key = tuple[str, bytes]
Node = tuple[str, str]
Rows = Cursor[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class House:
    """Who this process is to the ledger and by which rules it plays; `holder` is unique per process start."""

    holder: str
    lease: timedelta
    ttl: timedelta
    default_org: str | None = None
    on_divergence: OnDivergence = "refuse"


class Holding:
    """The calls that this process executes: (execution, key) → attempt. Written by the ledger's writer thread alone.

    What a transaction grants counts only once it has committed (`keep`); a rollback takes it back (`drop`).
    """

    def __init__(self) -> None:
        self._running: dict[Key, int] = {}
        self._granted: dict[Key, int] = {}
        self._ended: list[Term] = []

    def __contains__(self, key: Key) -> bool:
        return key in self._running or key in self._granted

    def grant(self, term: Term) -> None:
        self._granted[term.execution_id, term.key] = term.attempt

    def end(self, term: Term) -> None:
        self._ended.append(term)

    def keep(self) -> None:
        for term in self._ended:
            key = term.execution_id, term.key
            if self._running.get(key) == term.attempt:  # a lost attempt ends beside a later one of the same call
                del self._running[key]
        self._running.update(self._granted)
        self.drop()

    def drop(self) -> None:
        self._granted.clear()
        self._ended.clear()

    def terms(self) -> list[Term]:
        """A snapshot, safe to take from another thread (one C call copies the dict)."""
        return [Term(execution_id, key, attempt) for (execution_id, key), attempt in self._running.copy().items()]


@dataclass(slots=True, eq=False)
class Case:
    """One event on its way through the admission. `barred` says what to answer when nothing is on record."""

    item: Admit
    org: str | None = None
    key: bytes = b""
    on_divergence: OnDivergence = "refuse"
    barred: Expired | Rejected | None = None
    verdict: Verdict | None = None

    @property
    def id(self) -> Key:
        return self.item.execution_id, self.key

    @property
    def node(self) -> Node:
        return self.item.execution_id, self.item.node_id

    def answer(self) -> Admitted:
        return Admitted(self.org, self.key or None, self.verdict or Waiting())


def still_open(cases: Iterable[Case]) -> list[Case]:
    return [case for case in cases if case.verdict is None]


def run(cur: Rows, statement: str, items: Sequence[Any], **rest: Any) -> Rows:
    return cur.execute(statement.encode(), {"items": json.dumps(items), **rest})


def select(cur: Rows, statement: str, items: Sequence[Any], house: House) -> list[CallRow]:
    return [call_row(row) for row in run(cur, statement, items, lease=house.lease)]
