"""Admission (protocol §5): many events in one transaction, in this order: org, fence, inbox, reserve, find.

Called inside a transaction (READ COMMITTED). Each step narrows the cases that are still open; what is left at the end
was there before and is decided row by row. Nothing here commits, and nothing is started before the commit.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from fencepost_ledger import statements as sql
from fencepost_ledger.calls import CallRow, Ruling, State, Term, call_row
from fencepost_ledger.case import Case, Holding, House, Key, Node, Rows, run, select, still_open
from fencepost_ledger.decide import Decision, Found, GiveUp, Rearm, Resume, decide
from fencepost_ledger.diverge import Claim, New, Own, turn
from fencepost_ledger.fence import executions, fence
from fencepost_ledger.verdicts import (
    Admit,
    Admitted,
    Ask,
    Diverged,
    Expired,
    Policy,
    Rejected,
    Replay,
    Start,
    Verdict,
    Waiting,
)
from fencepost_schemas.identity import invocation_key

LOST_HOLDER = json.dumps(
    {
        "code": "lost_holder",
        "message": "the worker that ran it is gone, and nobody can say how it ended",
        "detail": None,
    }
)


def admit(cur: Rows, items: Sequence[Admit], house: House, holding: Holding) -> list[Admitted]:
    """Admit `items` in the transaction of `cur`; what is reserved is granted in `holding`."""
    cases = [Case(item) for item in items]
    now = _orgs(cur, cases, house)
    fence(cur, still_open(cases))
    for case in still_open(cases):
        case.verdict = None if case.key else case.barred
    keyed = sorted((c for c in still_open(cases) if c.item.policy.effect != "read_only"), key=lambda c: (c.node, c.key))
    _inbox(cur, keyed, house)
    _diverge(cur, still_open(keyed), house)
    _reserve(cur, [c for c in still_open(keyed) if c.barred is None], house, holding, now)
    _find(cur, still_open(keyed), house, holding, now)
    for case in still_open(cases):
        if case.item.policy.effect == "read_only":
            case.verdict = case.barred or Start(None, 1, now)
    return [case.answer() for case in cases]


# --- 1. org: the execution's row alone is believed ------------------------------------------------------------------


def _orgs(cur: Rows, cases: list[Case], house: House) -> datetime:
    rows = executions(cur, {case.item.execution_id for case in cases}, house)
    found = {row[0]: row for row in rows}
    now: datetime = rows[0][4]
    for case in cases:
        _, org, on_divergence, closed, _ = found[case.item.execution_id]
        item = case.item
        if org is None:
            case.verdict = Rejected("unknown_execution", f"execution {item.execution_id!r} is not open")
        elif item.org_claim is not None and item.org_claim != org:
            case.verdict = Rejected("org_mismatch", "the event claims another org than its execution's")
        else:
            case.org = org
            case.key = _key(item, org)
            case.on_divergence = item.policy.on_divergence or on_divergence or house.on_divergence
            case.barred = _barred(item, closed, now, house.ttl)
    return now


def _key(item: Admit, org: str) -> bytes:
    """The call's identity; empty where the arguments have no canonical form (`item.refused` says why)."""
    if item.arguments_hash is None:
        return b""
    return invocation_key(org, item.execution_id, item.node_id, item.call_index, item.tool, item.arguments_hash)


def _barred(item: Admit, closed: bool, now: datetime, ttl: timedelta) -> Expired | Rejected | None:
    if item.refused is not None:
        return Rejected(item.refused.code, item.refused.message)
    if closed:
        return Rejected("unknown_execution", f"execution {item.execution_id!r} is closed")
    if item.deadline is not None and item.deadline < now:
        return Expired("deadline_passed", f"its deadline {item.deadline.isoformat()} is over")
    produced = _produced(item, now)
    if produced is not None and now - produced > ttl:
        return Expired("beyond_memory", "it is older than the ledger remembers, so nobody can say whether it ran")
    return None


def _produced(item: Admit, now: datetime) -> datetime | None:
    """When the event was written, by its record's word; never in the future."""
    stamp = item.source.timestamp if item.source else None
    return None if stamp is None else datetime.fromtimestamp(min(max(stamp, 0) / 1000, now.timestamp()), UTC)


# --- 3. inbox: the same id with other content is refused ----------------------------------------------------------


def _inbox(cur: Rows, cases: list[Case], house: House) -> None:
    if not cases:
        return
    new = run(cur, sql.INBOX, [_event(case) for case in cases], ttl=house.ttl).rowcount
    if new == len(cases):
        return
    items = [{"e": case.item.execution_id, "v": case.item.event_id} for case in cases]
    digests = {(e, v): bytes(digest) for e, v, digest in run(cur, sql.DIGESTS, items)}
    for case in cases:
        if digests.get((case.item.execution_id, case.item.event_id), case.item.digest) != case.item.digest:
            case.verdict = Rejected("event_id_reused", "this event id was used before with other content")


def _event(case: Case) -> dict[str, Any]:
    item, source = case.item, case.item.source
    event = {"e": item.execution_id, "v": item.event_id, "d": item.digest.hex(), "k": case.key.hex()}
    return event if source is None else {**event, "t": source.topic, "p": source.partition, "o": source.offset}


# --- 4. reserve ------------------------------------------------------------------------------------------------------


def _reserve(cur: Rows, cases: list[Case], house: House, holding: Holding, now: datetime) -> None:
    first = {case.id: case for case in reversed(cases)}  # of several events of one call, the first in the batch
    if not first:
        return
    items = [_call(case) for case in cases if first[case.id] is case]
    made = run(cur, sql.RESERVE, items, holder=house.holder, lease=house.lease, ttl=house.ttl, now=now)
    for execution_id, key in made:
        case = first[execution_id, bytes(key)]
        _start(case, Term(execution_id, case.key, 1), now, holding)


def _start(case: Case, term: Term, started_at: datetime, holding: Holding, ruling: Ruling | None = None) -> None:
    holding.grant(term)
    case.verdict = Start(term, term.attempt, started_at, ruling)


def _call(case: Case) -> dict[str, Any]:
    item = case.item
    return {
        "e": item.execution_id,
        "k": case.key.hex(),
        "o": case.org,
        "n": item.node_id,
        "x": item.call_index,
        "t": item.tool,
        "h": (item.arguments_hash or b"").hex(),
        "g": item.generation,
        **_delivery(item),
    }


def _delivery(item: Admit) -> dict[str, Any]:
    tool_call_id = None if item.tool_call_id is None else json.dumps(item.tool_call_id)
    return {"v": item.event_id, "c": tool_call_id, "m": item.metadata}


# --- 5. find: in a statement of its own, which sees what was committed while the reservation waited ----------------


def _find(cur: Rows, cases: list[Case], house: House, holding: Holding, now: datetime) -> None:
    if not cases:
        return
    items = [{"e": e, "k": key.hex()} for e, key in {case.id for case in cases}]
    found = {(row.execution_id, row.key): row for row in select(cur, sql.FIND, items, house)}
    pairs = [(case, found[case.id]) for case in cases if case.id in found]
    _remember(cur, pairs, house, now)
    _decide_all(cur, pairs, house, holding, now)
    _missing(cur, [case for case in cases if case.id not in found], house)


def _remember(cur: Rows, pairs: list[tuple[Case, CallRow]], house: House, now: datetime) -> None:
    """A call is remembered for as long as any event that asked for it may be delivered again."""
    until: dict[Key, datetime] = {}
    for case, row in pairs:
        produced = _produced(case.item, now)
        if produced is not None and produced + house.ttl > until.get(case.id, row.expires_at):
            until[case.id] = produced + house.ttl
    if until:
        run(cur, sql.REMEMBER, [{"e": e, "k": k.hex(), "u": u.isoformat()} for (e, k), u in sorted(until.items())])


def _missing(cur: Rows, cases: list[Case], house: House) -> None:
    """Not reserved and not there: barred, or its position is taken; else just deleted, and looked at again."""
    for case in cases:
        case.verdict = case.barred
    taken = _positions(cur, still_open(cases), house)
    for case in still_open(cases):
        if case in taken:
            case.verdict = Rejected("position_reused", f"{taken[case].tool} of this generation has this position")


def _positions(cur: Rows, cases: list[Case], house: House) -> dict[Case, CallRow]:
    """The other call that stands at each case's position and generation, where there is one."""
    if not cases:
        return {}
    items = [
        {"e": i.execution_id, "n": i.node_id, "x": i.call_index, "g": i.generation} for i in (c.item for c in cases)
    ]
    rows = {
        (r.execution_id, r.node_id, r.call_index, r.generation): r for r in select(cur, sql.FIND_POSITION, items, house)
    }
    there = ((c, rows.get((*c.node, c.item.call_index, c.item.generation))) for c in cases)
    return {case: row for case, row in there if row is not None and row.key != case.key}


def _decide_all(cur: Rows, pairs: list[tuple[Case, CallRow]], house: House, holding: Holding, now: datetime) -> None:
    again: list[tuple[Case, CallRow]] = []
    lost: list[tuple[Case, CallRow]] = []
    mine: list[tuple[Case, CallRow]] = []
    for case, row in pairs:
        match _decide(case, row, house, holding):
            case Rearm():
                again.append((case, row))
            case GiveUp():
                lost.append((case, row))
            case Found() as found:
                _found(cur, case, row, found)
            case Resume():
                mine.append((case, row))
            case verdict:
                case.verdict = verdict
    _rearm(cur, again, house, holding, now)
    _resume(cur, mine, house, holding)
    _lose(cur, lost)


def _decide(case: Case, row: CallRow, house: House, holding: Holding) -> Decision | Expired | Rejected:
    same = (row.tool, row.arguments_hash) == (case.item.tool, case.item.arguments_hash)
    decision = decide(
        row,
        case.item.policy if same else Policy(),  # of another call it is not known what may be done with a lost attempt
        holder=house.holder,
        running=(row.execution_id, row.key) in holding,
        probe=case.item.probe,
    )
    if case.item.refused is not None and row.state is State.executing:
        return Waiting()  # this worker does not know the tool, so it cannot say what may be done with a lost attempt
    if not isinstance(decision, Rearm | Resume) or (case.barred is None and row.key == case.key):
        return decision
    # It must not start (barred, or it only answers for another position): say what is known of it.
    match row.state:
        case State.executing:
            return GiveUp()
        case State.released if case.barred is not None:
            return case.barred
        case _:
            return Replay(row)


def _rearm(cur: Rows, pairs: list[tuple[Case, CallRow]], house: House, holding: Holding, now: datetime) -> None:
    moved = [case for case, row in pairs if row.generation != case.item.generation]
    taken = _positions(cur, moved, house)
    for case in taken:
        case.verdict = Rejected("position_reused", f"{taken[case].tool} of this generation has this position")
    # Of several that want one position the first in the batch; the others look again.
    free = {(*case.node, case.item.call_index): (case, row) for case, row in reversed(pairs) if case.verdict is None}
    if not free:
        return
    first = {case.id: (case, row) for case, row in free.values()}
    items = [
        {
            "e": row.execution_id,
            "k": row.key.hex(),
            "r": row.revision,
            "g": case.item.generation,
            **_delivery(case.item),
        }
        for case, row in free.values()
    ]
    params = {"holder": house.holder, "lease": house.lease, "ttl": house.ttl, "now": now}
    for execution_id, key, attempt in run(cur, sql.REARM, items, **params):
        case, row = first[execution_id, bytes(key)]
        _start(case, Term(execution_id, row.key, attempt), now, holding, row.ruling)


def _resume(cur: Rows, pairs: list[tuple[Case, CallRow]], house: House, holding: Holding) -> None:
    """Start what is ours with its lease made new: nobody else may take it for lost from here on, or has taken it."""
    free = {case.id: (case, row) for case, row in reversed(pairs)}
    if not free:
        return
    items = [{"e": e, "k": key.hex(), "a": row.attempt} for (e, key), (_, row) in free.items()]
    for execution_id, key in run(cur, sql.RENEW, items, holder=house.holder, lease=house.lease):
        case, row = free[execution_id, bytes(key)]
        _start(case, row.term, row.started_at, holding, row.ruling)


def _found(cur: Rows, case: Case, row: CallRow, found: Found) -> None:
    what = {"x": found.result, "f": found.result_ref, "y": found.error}
    item = {"e": row.execution_id, "k": row.key.hex(), "r": row.revision, **what}
    changed = [call_row(values) for values in run(cur, sql.FOUND, [item])]
    case.verdict = Replay(changed[0]) if changed else Waiting()


def give_up(cur: Rows, rows: Iterable[CallRow]) -> dict[Key, CallRow]:
    """Executing rows whose lease is over → indeterminate; the rows that this call moved, as they are now."""
    items = [
        {"e": row.execution_id, "k": row.key.hex(), "r": row.revision, "x": LOST_HOLDER}
        for row in sorted(rows, key=lambda row: (row.execution_id, row.key))
    ]
    if not items:
        return {}
    return {(row.execution_id, row.key): row for row in map(call_row, run(cur, sql.GIVE_UP, items))}


def _lose(cur: Rows, pairs: list[tuple[Case, CallRow]]) -> None:
    changed = give_up(cur, {(row.execution_id, row.key): row for _, row in pairs}.values())
    for case, row in pairs:
        unknown = changed.get((row.execution_id, row.key))
        case.verdict = Replay(unknown) if unknown else Waiting()


# --- §7: what an older generation did at this node ----------------------------------------------------------------


def _diverge(cur: Rows, cases: list[Case], house: House) -> None:
    """Only a raised generation has an older one; the first generation pays nothing for this."""
    raised = [case for case in cases if case.item.generation > 1]
    if not raised:
        return
    nodes: dict[Node, list[CallRow]] = defaultdict(list)
    items = [{"e": e, "n": n} for e, n in sorted({case.node for case in raised})]
    for row in select(cur, sql.FIND_NODE, items, house):
        nodes[row.execution_id, row.node_id].append(row)
    # Each call's own row first, so that no other call of the batch takes it; then in the order of the calls.
    own = {row.key for rows in nodes.values() for row in rows}
    for case in sorted(raised, key=lambda case: (case.key not in own, case.item.call_index)):
        _turn(cur, case, nodes[case.node], house)


def _turn(cur: Rows, case: Case, rows: list[CallRow], house: House) -> None:
    match turn(case.item, case.key, rows, case.on_divergence):
        case Own(row):
            if not _claimed(cur, case, row, rows, house):
                case.verdict = Waiting()
        case Claim(row, adopted):
            case.verdict = (
                _from_older(cur, case, row, house, adopted) if _claimed(cur, case, row, rows, house) else Waiting()
            )
        case New():
            pass
        case Diverged() | Rejected() as verdict:
            case.verdict = verdict


def _claimed(cur: Rows, case: Case, row: CallRow, rows: list[CallRow], house: House) -> bool:
    item = case.item
    claim = {"e": row.execution_id, "k": row.key.hex(), "b": case.key.hex(), "g": item.generation, "x": item.call_index}
    if run(cur, sql.CLAIM, [claim], ttl=house.ttl).rowcount == 0:
        return False
    # The next case of this batch must see the claim too.
    rows[rows.index(row)] = replace(
        row, claimed_by=case.key, claimed_generation=item.generation, claimed_index=item.call_index
    )
    return True


def _from_older(cur: Rows, case: Case, row: CallRow, house: House, adopted: bool) -> Verdict | None:
    match _decide(case, row, house, Holding()):
        case GiveUp():
            _lose(cur, [(case, row)])
            return case.verdict
        case Found() as found:
            _found(cur, case, row, found)
            return case.verdict
        case Replay(recorded):
            return Replay(recorded, adopted=adopted)
        case Ask() | Expired() | Rejected() as verdict:
            return verdict
        case _:
            return Waiting()
