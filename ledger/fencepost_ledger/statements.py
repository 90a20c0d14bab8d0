"""The SQL of the hot path. One JSON parameter carries a whole batch (psycopg builds arrays element by element).

Every statement reaches its table through `execution_id`, the distribution column. Statements that write keep the
order of their input, which the callers sort, so that two workers lock rows in the same order.
"""

from __future__ import annotations

from fencepost_ledger.calls import COLUMNS

_ROW = ", ".join(f"c.{name}" for name in COLUMNS)
# Judged by the database's clock, as part of the row that is read.
_LEASE = "c.lease_until < clock_timestamp(), c.lease_until + %(lease)s < clock_timestamp()"
_BY_KEY = "c.execution_id = i.e AND c.key = decode(i.k, 'hex')"

OPEN_DEFAULT = """
INSERT INTO fencepost.executions (execution_id, org_id)
SELECT i.e, %(org)s FROM json_array_elements_text(%(items)s::json) AS i(e) ORDER BY i.e
ON CONFLICT (execution_id) DO NOTHING
"""

EXECUTIONS = """
SELECT i.e, x.org_id, x.on_divergence, x.closed_at IS NOT NULL, clock_timestamp()
FROM json_array_elements_text(%(items)s::json) AS i(e)
LEFT JOIN fencepost.executions x ON x.execution_id = i.e
"""

# A share lock until commit: a raise waits for the reservations that did not see it, and they for it (Postgres docs,
# "Row-level locks"). Rows come out, and are locked, in the order of the nodes; those that are to be raised are left
# out, since two workers that share a row and then both raise it wait for each other.
LOCK_GENERATIONS = """
SELECT g.execution_id, g.node_id, g.generation
FROM json_to_recordset(%(items)s::json) AS i(e text, n text, g bigint)
JOIN fencepost.generations g ON g.execution_id = i.e AND g.node_id = i.n AND g.generation >= i.g
ORDER BY g.execution_id, g.node_id
FOR SHARE OF g
"""

RAISE_GENERATIONS = """
INSERT INTO fencepost.generations AS g (execution_id, node_id, generation)
SELECT i.e, i.n, i.g FROM json_to_recordset(%(items)s::json) AS i(e text, n text, g bigint) ORDER BY i.e, i.n
ON CONFLICT (execution_id, node_id) DO UPDATE SET generation = excluded.generation, raised_at = now()
WHERE g.generation < excluded.generation
RETURNING g.execution_id, g.node_id, g.generation
"""

INBOX = """
INSERT INTO fencepost.events (execution_id, event_id, digest, key, topic, partition, "offset", expires_at)
SELECT i.e, i.v, decode(i.d, 'hex'), decode(i.k, 'hex'), i.t, i.p, i.o, clock_timestamp() + %(ttl)s
FROM json_to_recordset(%(items)s::json) AS i(e text, v text, d text, k text, t text, p integer, o bigint)
ON CONFLICT (execution_id, event_id) DO NOTHING
"""

DIGESTS = """
SELECT v.execution_id, v.event_id, v.digest
FROM json_to_recordset(%(items)s::json) AS i(e text, v text)
JOIN fencepost.events v ON v.execution_id = i.e AND v.event_id = i.v
"""

# No conflict target: the key and the position (same generation, other call) both stop a reservation.
RESERVE = """
WITH made AS (
    INSERT INTO fencepost.calls (execution_id, key, org_id, node_id, call_index, tool, arguments_hash, generation,
        attempt, state, holder, lease_until, event_id, tool_call_id, metadata, started_at, expires_at)
    SELECT i.e, decode(i.k, 'hex'), i.o, i.n, i.x, i.t, decode(i.h, 'hex'), i.g,
        1, 'executing', %(holder)s, clock_timestamp() + %(lease)s, i.v, i.c, i.m, %(now)s, %(now)s + %(ttl)s
    FROM json_to_recordset(%(items)s::json) AS i(e text, k text, o text, n text, x integer, t text, h text,
        g bigint, v text, c text, m text)
    ON CONFLICT DO NOTHING
    RETURNING execution_id, key
)
INSERT INTO fencepost.unsettled (execution_id, key, revision) SELECT execution_id, key, 1 FROM made
ON CONFLICT (execution_id, key) DO UPDATE SET revision = 1, acknowledged = 0, since = now()
RETURNING execution_id, key
"""

FIND = f"""
SELECT {_ROW}, {_LEASE}
FROM json_to_recordset(%(items)s::json) AS i(e text, k text)
JOIN fencepost.calls c ON {_BY_KEY}
"""

# An event that is younger than the call it asks for can be delivered again for longer than the call is remembered.
REMEMBER = f"""
UPDATE fencepost.calls c SET expires_at = i.u
FROM json_to_recordset(%(items)s::json) AS i(e text, k text, u timestamptz)
WHERE {_BY_KEY} AND c.expires_at < i.u
"""

FIND_POSITION = f"""
SELECT {_ROW}, {_LEASE}
FROM json_to_recordset(%(items)s::json) AS i(e text, n text, x integer, g bigint)
JOIN fencepost.calls c ON c.execution_id = i.e AND c.node_id = i.n AND c.call_index = i.x AND c.generation = i.g
"""

# What older generations left at a node, for the calls of a raised one (protocol §7).
FIND_NODE = f"""
SELECT {_ROW}, {_LEASE}
FROM json_to_recordset(%(items)s::json) AS i(e text, n text)
JOIN fencepost.calls c ON c.execution_id = i.e AND c.node_id = i.n
ORDER BY c.call_index
"""

CLAIM = f"""
UPDATE fencepost.calls c SET claimed_by = decode(i.b, 'hex'), claimed_generation = i.g, claimed_index = i.x,
    expires_at = greatest(c.expires_at, clock_timestamp() + %(ttl)s)
FROM json_to_recordset(%(items)s::json) AS i(e text, k text, b text, g bigint, x integer)
WHERE {_BY_KEY} AND (c.claimed_generation IS NULL OR c.claimed_generation < i.g
    OR (c.claimed_generation = i.g AND c.claimed_by = decode(i.b, 'hex')))
RETURNING c.execution_id, c.key
"""

# The revision counts every change of state: naming it names key, attempt and state at once. A renewed lease is no
# change of state unless it was over, so a lease that must be over is asked for beside it.
_AS_READ = f"{_BY_KEY} AND c.revision = i.r AND (c.lease_until IS NULL OR c.lease_until < clock_timestamp())"

# What was decided about an earlier attempt stays on the row, and no longer decides.
REARM = f"""
WITH changed AS (
    UPDATE fencepost.calls c SET attempt = c.attempt + 1, state = 'executing', generation = i.g, holder = %(holder)s,
        lease_until = clock_timestamp() + %(lease)s, event_id = i.v, tool_call_id = i.c, metadata = i.m,
        started_at = %(now)s, expires_at = greatest(c.expires_at, %(now)s + %(ttl)s),
        finished_at = NULL, result = NULL, result_ref = NULL, error = NULL, retryable = false, revision = c.revision + 1
    FROM json_to_recordset(%(items)s::json) AS i(e text, k text, r integer, g bigint, v text, c text, m text)
    WHERE {_AS_READ}
    RETURNING c.execution_id, c.key, c.attempt, c.revision
), kept AS (
    INSERT INTO fencepost.unsettled (execution_id, key, revision) SELECT execution_id, key, revision FROM changed
    ON CONFLICT (execution_id, key) DO UPDATE SET revision = excluded.revision, since = now()
)
SELECT execution_id, key, attempt FROM changed
"""

GIVE_UP = f"""
WITH changed AS (
    UPDATE fencepost.calls c SET state = 'indeterminate', lease_until = NULL, error = i.x, revision = c.revision + 1
    FROM json_to_recordset(%(items)s::json) AS i(e text, k text, r integer, x text)
    WHERE {_AS_READ} AND c.state = 'executing'
    RETURNING {_ROW}
), kept AS (
    INSERT INTO fencepost.unsettled (execution_id, key, revision) SELECT execution_id, key, revision FROM changed
    ON CONFLICT (execution_id, key) DO UPDATE SET revision = excluded.revision, since = now()
)
SELECT c.*, NULL::boolean, NULL::boolean FROM changed c
"""

# The probe found the effect of a lost attempt: as good as a ruling, and never overwritten.
FOUND = f"""
WITH changed AS (
    UPDATE fencepost.calls c SET state = 'completed', lease_until = NULL, result = i.x, result_ref = i.f, error = i.y,
        finished_at = clock_timestamp(), decided_by = 'probe', decided_at = clock_timestamp(), decided_evidence = NULL,
        decided_attempt = c.attempt, decided_reason = 'the tool''s probe found that it happened',
        revision = c.revision + 1
    FROM json_to_recordset(%(items)s::json) AS i(e text, k text, r integer, x text, f text, y text)
    WHERE {_AS_READ} AND c.state IN ('executing', 'indeterminate')
    RETURNING {_ROW}
), kept AS (
    INSERT INTO fencepost.unsettled (execution_id, key, revision) SELECT execution_id, key, revision FROM changed
    ON CONFLICT (execution_id, key) DO UPDATE SET revision = excluded.revision, since = now()
)
SELECT c.*, NULL::boolean, NULL::boolean FROM changed c
"""

# What a person decides about an unknown outcome. It is remembered for as long as a call that starts now, which is what
# the row's own two times tell of the ledger's memory. A release leaves nothing to publish.
RULE = f"""
WITH ruled AS (
    UPDATE fencepost.calls c SET state = %(state)s, result = %(result)s, result_ref = NULL, retryable = false,
        error = CASE WHEN %(state)s::text = 'released' THEN c.error ELSE %(error)s END,
        finished_at = CASE WHEN %(state)s::text <> 'released' THEN clock_timestamp() END,
        decided_by = %(by)s, decided_reason = %(reason)s, decided_evidence = %(evidence)s,
        decided_at = clock_timestamp(), decided_attempt = c.attempt, revision = c.revision + 1,
        expires_at = greatest(c.expires_at, clock_timestamp() + (c.expires_at - c.started_at))
    WHERE c.execution_id = %(execution)s AND c.key = %(key)s AND c.revision = %(revision)s AND c.state = 'indeterminate'
    RETURNING {_ROW}
), kept AS (
    INSERT INTO fencepost.unsettled (execution_id, key, revision)
    SELECT execution_id, key, revision FROM ruled WHERE state <> 'released'
    ON CONFLICT (execution_id, key) DO UPDATE SET revision = excluded.revision, since = now()
), cleared AS (
    DELETE FROM fencepost.unsettled u USING ruled c
    WHERE c.state = 'released' AND u.execution_id = c.execution_id AND u.key = c.key
)
SELECT c.*, NULL::boolean, NULL::boolean FROM ruled c
"""

_ENDED = """json_to_recordset(%(items)s::json)
    AS i(e text, k text, a integer, s text, r text, f text, x text, y boolean)"""
_MINE = f"{_BY_KEY} AND c.attempt = i.a AND c.holder = %(holder)s"
_WRITE = """state = i.s, result = i.r, result_ref = i.f, error = i.x, retryable = i.y, lease_until = NULL,
    finished_at = CASE WHEN i.s = 'indeterminate' THEN NULL ELSE clock_timestamp() END, revision = c.revision + 1"""

FINALIZE = f"""
UPDATE fencepost.calls c SET {_WRITE}
FROM {_ENDED}
WHERE {_MINE} AND c.state = 'executing'
RETURNING c.execution_id, c.key, c.attempt, c.revision, c.finished_at
"""

# The rare ends: unknown, or the truth that arrives after the call was called unknown and before a person ruled.
FINALIZE_RARE = f"""
WITH changed AS (
    UPDATE fencepost.calls c SET {_WRITE}
    FROM {_ENDED}
    WHERE {_MINE} AND c.decided_attempt IS DISTINCT FROM c.attempt
        AND (c.state = 'executing' OR (c.state = 'indeterminate' AND i.s <> 'indeterminate'))
    RETURNING c.execution_id, c.key, c.attempt, c.revision, c.finished_at
), kept AS (
    INSERT INTO fencepost.unsettled (execution_id, key, revision) SELECT execution_id, key, revision FROM changed
    ON CONFLICT (execution_id, key) DO UPDATE SET revision = excluded.revision, since = now()
)
SELECT * FROM changed
"""

SETTLE = """
DELETE FROM fencepost.unsettled u
USING json_to_recordset(%(items)s::json) AS i(e text, k text, r integer)
WHERE u.execution_id = i.e AND u.key = decode(i.k, 'hex') AND u.revision <= i.r
"""

ACKNOWLEDGE = """
UPDATE fencepost.unsettled u SET acknowledged = i.r
FROM json_to_recordset(%(items)s::json) AS i(e text, k text, r integer)
WHERE u.execution_id = i.e AND u.key = decode(i.k, 'hex') AND u.acknowledged < i.r
"""

# Rows that a transaction of this same worker holds are being written: they need no renewal and must not be waited for.
# A lease that was over comes back as a change of state: what a probe said meanwhile is no longer believed.
RENEW = f"""
WITH mine AS (
    SELECT c.execution_id, c.key
    FROM json_to_recordset(%(items)s::json) AS i(e text, k text, a integer)
    JOIN fencepost.calls c ON {_MINE} AND c.state = 'executing'
    FOR NO KEY UPDATE OF c SKIP LOCKED
)
UPDATE fencepost.calls c SET lease_until = clock_timestamp() + %(lease)s,
    revision = c.revision + (c.lease_until < clock_timestamp())::integer
FROM mine WHERE c.execution_id = mine.execution_id AND c.key = mine.key
RETURNING c.execution_id, c.key
"""

STILL_MINE = f"""
SELECT c.execution_id, c.key
FROM json_to_recordset(%(items)s::json) AS i(e text, k text, a integer)
JOIN fencepost.calls c ON {_MINE} AND c.state = 'executing'
"""

# Picking puts `since` forward: a second sweeper leaves the row alone, and a crash lets it come up again. A ruling is
# due at once: unlike what a worker has just recorded, nobody else is about to publish it.
PICK_UNSETTLED = f"""
WITH picked AS (
    SELECT u.execution_id, u.key
    FROM fencepost.unsettled u JOIN fencepost.calls c ON c.execution_id = u.execution_id AND c.key = u.key
    WHERE c.state IN ('completed', 'failed', 'indeterminate') AND u.acknowledged < c.revision
        AND (greatest(u.since, c.finished_at) < now() - %(age)s
            OR (c.decided_attempt = c.attempt AND u.since <= c.decided_at))
    ORDER BY u.since LIMIT %(limit)s FOR UPDATE OF u SKIP LOCKED
), touched AS (
    UPDATE fencepost.unsettled u SET since = now() FROM picked
    WHERE u.execution_id = picked.execution_id AND u.key = picked.key
    RETURNING u.execution_id, u.key
)
SELECT {_ROW}, NULL::boolean, NULL::boolean
FROM touched t JOIN fencepost.calls c ON c.execution_id = t.execution_id AND c.key = t.key
"""

PICK_ORPHANS = f"""
SELECT {_ROW}, NULL::boolean, NULL::boolean
FROM fencepost.unsettled u JOIN fencepost.calls c ON c.execution_id = u.execution_id AND c.key = u.key
WHERE c.state = 'executing' AND c.lease_until < clock_timestamp() - %(age)s
ORDER BY c.execution_id, c.key LIMIT %(limit)s
"""

# What the metrics say of the whole ledger.
BACKLOG = """
SELECT count(*) FILTER (WHERE c.state = 'indeterminate'),
    coalesce(extract(epoch FROM now() - min(c.started_at) FILTER (WHERE c.state = 'indeterminate')), 0)::float8,
    count(*) FILTER (WHERE c.state IN ('completed', 'failed', 'indeterminate') AND u.acknowledged < c.revision)
FROM fencepost.unsettled u JOIN fencepost.calls c ON c.execution_id = u.execution_id AND c.key = u.key
"""
