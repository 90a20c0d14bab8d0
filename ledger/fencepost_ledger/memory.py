"""What the ledger forgets, and what it must not.

A **call** is forgotten once it is past `expires_at`, has ended, and needs nobody: what is executing, unpublished or
undecided stands in `unsettled` and stays. `expires_at` covers every event that asked for the call, so that whatever is
delivered again after that is older than the memory, and answered `expired`. An **event** is forgotten the same way. (A
record from the future counts as one of now, each time: where producers' clocks cannot be trusted, let the topic's
`message.timestamp.after.max.ms` be less than what `retention.ms` leaves of the memory.)

A **generation** keeps older calls of its node from starting, also those that a paused orchestrator has yet to ask for:
of an open execution it is never forgotten. A closed execution starts nothing at all, so its generations have nothing to
keep from starting: they go when the closing and the last raise are past the memory and no call of the node is left.

An **execution** is never forgotten. Its row is what says that it is closed, and whose it was: without it a late event
would open it anew under `DEFAULT_ORG`, and its id could go to another org. Where `DEFAULT_ORG` is not set and ids are
never used twice, a deployer may delete closed ones that have no generation left.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg

from fencepost_ledger.case import House

# How long beyond its time everything is kept. An admission first judges how old its event is, and then looks for the
# call, in one transaction: that ends long before this.
GRACE = timedelta(minutes=15)
# Rows of a kind in one pass, so that what has waited for the sweeper for weeks does not keep it from outcomes.
PASS = 20_000
# Generations that one pass looks at.
PIECE = 2_000
# What is forgotten is read in the order of an index and found by a key, whatever the statistics say of a table that was
# empty, or full, a moment ago.
_NEVER = ("seqscan", "bitmapscan", "sort", "hashjoin", "mergejoin")
PLANS = " ".join(["-c jit=off", *(f"-c enable_{way}=off" for way in _NEVER)])

# The index is walked from where the last batch ended: a backup's snapshot keeps what was deleted in it, and walking
# through all of that again for each batch would take the square of the time.
_CALLS = """
WITH over AS (
    SELECT c.execution_id, c.key, c.expires_at FROM fencepost.calls c
    WHERE c.expires_at >= %(after)s::timestamptz AND c.expires_at < now() - %(grace)s
        AND c.state IN ('completed', 'failed', 'released') AND NOT EXISTS (
            SELECT FROM fencepost.unsettled u WHERE u.execution_id = c.execution_id AND u.key = c.key)
    ORDER BY c.expires_at LIMIT %(limit)s FOR UPDATE OF c SKIP LOCKED
), gone AS (
    DELETE FROM fencepost.calls d USING over WHERE d.execution_id = over.execution_id AND d.key = over.key
)
SELECT count(*), max(expires_at)::text FROM over
"""
_EVENTS = """
WITH over AS (
    SELECT v.execution_id, v.event_id, v.expires_at FROM fencepost.events v
    WHERE v.expires_at >= %(after)s::timestamptz AND v.expires_at < now() - %(grace)s
    ORDER BY v.expires_at LIMIT %(limit)s FOR UPDATE OF v SKIP LOCKED
), gone AS (
    DELETE FROM fencepost.events d USING over WHERE d.execution_id = over.execution_id AND d.event_id = over.event_id
)
SELECT count(*), max(expires_at)::text FROM over
"""

# Most generations stay, so no index would find those that do not: the table is walked a piece a pass, by its key.
_GENERATIONS = """
WITH piece AS (
    SELECT g.execution_id, g.node_id FROM fencepost.generations g
    WHERE (g.execution_id, g.node_id) > (%(execution)s, %(node)s)
    ORDER BY g.execution_id, g.node_id LIMIT %(limit)s
), over AS (
    SELECT g.execution_id, g.node_id
    FROM piece JOIN fencepost.generations g USING (execution_id, node_id)
        JOIN fencepost.executions x USING (execution_id)
    WHERE x.closed_at < now() - %(kept)s AND g.raised_at < now() - %(kept)s AND NOT EXISTS (
        SELECT FROM fencepost.calls c WHERE c.node_id = g.node_id AND c.execution_id = g.execution_id)
    FOR UPDATE OF g SKIP LOCKED
), gone AS (
    DELETE FROM fencepost.generations d USING over WHERE d.execution_id = over.execution_id AND d.node_id = over.node_id
)
SELECT execution_id, node_id, (SELECT count(*) FROM over) FROM piece ORDER BY execution_id DESC, node_id DESC LIMIT 1
"""
_START = ("", "")

Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass(slots=True)
class Walk:
    """Where the walk through the generations has come to: the last (execution, node) that was looked at."""

    at: tuple[str, str] = _START


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What went in one pass, and whether more is there to go at once."""

    rows: int
    more: bool


def forget(connection: Connection, house: House, limit: int, walk: Walk | None) -> Forgotten:
    """Forget what is past its time, `limit` rows a transaction and about `PASS` of a kind at most.

    Of the generations the next `PIECE` after `walk`, which moves on; without a walk all of them.
    """
    calls, events = (_past(connection, statement, limit) for statement in (_CALLS, _EVENTS))
    generations = _piece(connection, house, walk) if walk else _pieces(connection, house)
    return Forgotten(calls + events + generations, more=max(calls, events) >= PASS)


def _past(connection: Connection, statement: str, limit: int) -> int:
    gone, after = 0, "-infinity"
    while gone < PASS:
        params = {"after": after, "grace": GRACE, "limit": limit}
        ((count, after),) = connection.execute(statement.encode(), params).fetchall()
        gone += count
        if count < limit:
            break
    return gone


def _pieces(connection: Connection, house: House) -> int:
    walk = Walk()
    gone = _piece(connection, house, walk)
    while walk.at != _START:
        gone += _piece(connection, house, walk)
    return gone


def _piece(connection: Connection, house: House, walk: Walk) -> int:
    execution, node = walk.at
    params = {"execution": execution, "node": node, "kept": house.ttl + GRACE, "limit": PIECE}
    found = connection.execute(_GENERATIONS.encode(), params).fetchone()
    walk.at = _START if found is None else (found[0], found[1])
    return 0 if found is None else int(found[2])
