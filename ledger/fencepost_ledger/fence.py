"""The trusted rows and the fence (protocol §5, steps 1, 2): whose execution it is, and which generation may start."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable
from typing import Any

from fencepost_ledger import statements as sql
from fencepost_ledger.case import Case, House, Node, Rows, run
from fencepost_ledger.verdicts import Fenced, Raise, Rejected


def executions(cur: Rows, ids: set[str], house: House) -> list[tuple[Any, ...]]:
    names = sorted(ids)
    rows = run(cur, sql.EXECUTIONS, names).fetchall()
    missing = [row[0] for row in rows if row[1] is None]
    if not missing or house.default_org is None:
        return rows
    run(cur, sql.OPEN_DEFAULT, missing, org=house.default_org)
    return run(cur, sql.EXECUTIONS, names).fetchall()


def fence(cur: Rows, cases: list[Case]) -> None:
    wanted: dict[Node, int] = defaultdict(int)
    for case in cases:
        wanted[case.node] = max(wanted[case.node], case.item.generation)
    current = _generations(cur, wanted)
    for case in cases:
        if case.item.generation < current[case.node]:
            case.verdict = Fenced(current[case.node])


def _generations(cur: Rows, wanted: dict[Node, int]) -> dict[Node, int]:
    """Each node's generation, at least the wanted one, locked until the commit."""
    current = _lock(cur, wanted)
    if lower := _others(wanted, current):
        current |= _raise(cur, lower)
        # Somebody raised it meanwhile: their commit is visible to a new statement.
        current |= _lock(cur, _others(lower, current))
    return current


def _others(wanted: dict[Node, int], known: Container[Node]) -> dict[Node, int]:
    return {node: generation for node, generation in wanted.items() if node not in known}


def _lock(cur: Rows, wanted: dict[Node, int]) -> dict[Node, int]:
    """Share the rows that are at the wanted generation or above → their generations."""
    items = [{"e": e, "n": n, "g": g} for (e, n), g in wanted.items()]
    if not items:
        return {}
    return {(e, n): g for e, n, g in run(cur, sql.LOCK_GENERATIONS, items)}


def _raise(cur: Rows, wanted: dict[Node, int]) -> dict[Node, int]:
    items = [{"e": e, "n": n, "g": g} for (e, n), g in wanted.items()]
    if not items:
        return {}
    return {(e, n): g for e, n, g in run(cur, sql.RAISE_GENERATIONS, items)}


def raise_generations(cur: Rows, raises: Iterable[Raise], house: House) -> list[Rejected | None]:
    """Fence events: raise each node's generation; an execution nobody opened is refused."""
    raises = list(raises)
    known = {row[0] for row in executions(cur, {r.execution_id for r in raises}, house) if row[1] is not None}
    wanted: dict[Node, int] = defaultdict(int)
    for r in raises:
        if r.execution_id in known:
            wanted[r.execution_id, r.node_id] = max(wanted[r.execution_id, r.node_id], r.generation)
    _raise(cur, wanted)
    unknown = Rejected("unknown_execution", "no such execution is open")
    return [None if r.execution_id in known else unknown for r in raises]
