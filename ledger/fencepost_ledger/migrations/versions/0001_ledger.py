"""The ledger's first tables.

Revision ID: 0001
Revises:
"""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

EXECUTIONS = """
CREATE TABLE fencepost.executions (
    execution_id text NOT NULL,
    org_id text NOT NULL,
    on_divergence text,
    opened_at timestamptz NOT NULL DEFAULT now(),
    closed_at timestamptz,
    CONSTRAINT executions_pkey PRIMARY KEY (execution_id),
    CONSTRAINT executions_on_divergence CHECK (on_divergence IN ('refuse', 'adopt', 'execute'))
)
"""

# Locked on every admission and rarely raised: free room in the page keeps a raise heap-only.
GENERATIONS = """
CREATE TABLE fencepost.generations (
    execution_id text NOT NULL,
    node_id text NOT NULL,
    generation bigint NOT NULL,
    raised_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT generations_pkey PRIMARY KEY (execution_id, node_id),
    CONSTRAINT generations_generation CHECK (generation >= 1)
) WITH (fillfactor = 80)
"""

EVENTS = """
CREATE TABLE fencepost.events (
    execution_id text NOT NULL,
    event_id text NOT NULL,
    digest bytea NOT NULL,
    key bytea NOT NULL,
    topic text,
    partition integer,
    "offset" bigint,
    received_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    CONSTRAINT events_pkey PRIMARY KEY (execution_id, event_id),
    CONSTRAINT events_digest CHECK (octet_length(digest) = 32)
)
"""

# Half of each page is left for the finalizing update, which is then heap-only. The position begins with the node: were
# there two indexes that begin with the execution, a plan made on the empty table could take the wrong one for good.
CALLS = """
CREATE TABLE fencepost.calls (
    execution_id text NOT NULL,
    key bytea NOT NULL,
    org_id text NOT NULL,
    node_id text NOT NULL,
    call_index integer NOT NULL,
    tool text NOT NULL,
    arguments_hash bytea NOT NULL,
    generation bigint NOT NULL,
    attempt integer NOT NULL,
    state text NOT NULL,
    retryable boolean NOT NULL DEFAULT false,
    holder text NOT NULL,
    lease_until timestamptz,
    event_id text NOT NULL,
    tool_call_id text,
    metadata text,
    result text,
    result_ref text,
    error text,
    decided_by text,
    decided_reason text,
    decided_evidence text,
    decided_at timestamptz,
    decided_attempt integer,
    claimed_by bytea,
    claimed_generation bigint,
    claimed_index integer,
    revision integer NOT NULL DEFAULT 1,
    started_at timestamptz NOT NULL,
    finished_at timestamptz,
    expires_at timestamptz NOT NULL,
    CONSTRAINT calls_pkey PRIMARY KEY (execution_id, key),
    CONSTRAINT calls_position UNIQUE (node_id, execution_id, call_index, generation),
    CONSTRAINT calls_state CHECK (state IN ('executing', 'completed', 'failed', 'indeterminate', 'released')),
    CONSTRAINT calls_hashes CHECK (octet_length(key) = 32 AND octet_length(arguments_hash) = 32),
    CONSTRAINT calls_counts CHECK (generation >= 1 AND attempt >= 1 AND call_index >= 0),
    CONSTRAINT calls_lease CHECK ((state = 'executing') = (lease_until IS NOT NULL)),
    CONSTRAINT calls_finished CHECK ((state IN ('completed', 'failed')) = (finished_at IS NOT NULL)),
    CONSTRAINT calls_result CHECK (state = 'completed' OR (result IS NULL AND result_ref IS NULL)),
    CONSTRAINT calls_error CHECK (state NOT IN ('failed', 'indeterminate') OR error IS NOT NULL),
    CONSTRAINT calls_decided CHECK (
        num_nulls(decided_by, decided_reason, decided_at, decided_attempt) IN (0, 4)
        AND (decided_evidence IS NULL OR decided_by IS NOT NULL)),
    CONSTRAINT calls_ruled CHECK (CASE WHEN state = 'released' THEN decided_attempt IS NOT DISTINCT FROM attempt
        ELSE decided_attempt IS NULL OR decided_attempt < attempt
            OR (decided_attempt = attempt AND state IN ('completed', 'failed')) END),
    CONSTRAINT calls_claimed CHECK (
        (claimed_by IS NULL) = (claimed_generation IS NULL) AND (claimed_by IS NULL) = (claimed_index IS NULL))
) WITH (fillfactor = 50)
"""

UNSETTLED = """
CREATE TABLE fencepost.unsettled (
    execution_id text NOT NULL,
    key bytea NOT NULL,
    revision integer NOT NULL,
    acknowledged integer NOT NULL DEFAULT 0,
    since timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT unsettled_pkey PRIMARY KEY (execution_id, key)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000)
"""

BLOBS = """
CREATE TABLE fencepost.blobs (
    execution_id text NOT NULL,
    key bytea NOT NULL,
    uri text NOT NULL,
    expires_at timestamptz NOT NULL,
    CONSTRAINT blobs_pkey PRIMARY KEY (execution_id, key, uri)
)
"""

INDEXES = (
    "CREATE INDEX blobs_uri ON fencepost.blobs (uri)",
    "CREATE INDEX blobs_expires ON fencepost.blobs (expires_at)",
    "CREATE INDEX events_expires ON fencepost.events (expires_at)",
    "CREATE INDEX calls_expires ON fencepost.calls (expires_at)",
)


def upgrade() -> None:
    for statement in (EXECUTIONS, GENERATIONS, EVENTS, CALLS, UNSETTLED, BLOBS, *INDEXES):
        op.execute(statement)


def downgrade() -> None:
    for table in ("blobs", "unsettled", "calls", "events", "generations", "executions"):
        op.execute(f"DROP TABLE fencepost.{table}")
