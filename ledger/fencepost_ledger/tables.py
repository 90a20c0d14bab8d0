"""The ledger's tables as SQLAlchemy sees them. The migrations make them; a test holds both equal.

Every key but that of `org_roles` contains `execution_id`: the tables can be hash-distributed by it, and
no constraint crosses a shard. `key`, `digest` and `arguments_hash` are SHA-256 values of 32 bytes.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from fencepost_ledger.calls import State

SCHEMA = "fencepost"
metadata = MetaData(
    schema=SCHEMA,
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "ck": "%(table_name)s_%(constraint_name)s",
        "uq": "%(table_name)s_%(constraint_name)s",
    },
)
_now = text("now()")


def _instant(name: str, *, nullable: bool = False, default: bool = False) -> Column[object]:
    return Column(name, DateTime(timezone=True), nullable=nullable, server_default=_now if default else None)


executions = Table(
    "executions",
    metadata,
    Column("execution_id", Text, nullable=False),
    Column("org_id", Text, nullable=False),
    Column("on_divergence", Text),
    _instant("opened_at", default=True),
    _instant("closed_at", nullable=True),
    PrimaryKeyConstraint("execution_id"),
    CheckConstraint("on_divergence IN ('refuse', 'adopt', 'execute')", name="on_divergence"),
)

generations = Table(
    "generations",
    metadata,
    Column("execution_id", Text, nullable=False),
    Column("node_id", Text, nullable=False),
    Column("generation", BigInteger, nullable=False),
    _instant("raised_at", default=True),
    PrimaryKeyConstraint("execution_id", "node_id"),
    CheckConstraint("generation >= 1", name="generation"),
)

events = Table(
    "events",
    metadata,
    Column("execution_id", Text, nullable=False),
    Column("event_id", Text, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("key", LargeBinary, nullable=False),
    Column("topic", Text),
    Column("partition", Integer),
    Column("offset", BigInteger),
    _instant("received_at", default=True),
    _instant("expires_at"),
    PrimaryKeyConstraint("execution_id", "event_id"),
    CheckConstraint("octet_length(digest) = 32", name="digest"),
    Index("events_expires", "expires_at"),
)

calls = Table(
    "calls",
    metadata,
    Column("execution_id", Text, nullable=False),
    Column("key", LargeBinary, nullable=False),
    Column("org_id", Text, nullable=False),
    Column("node_id", Text, nullable=False),
    Column("call_index", Integer, nullable=False),
    Column("tool", Text, nullable=False),
    Column("arguments_hash", LargeBinary, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("retryable", Boolean, nullable=False, server_default=text("false")),
    Column("holder", Text, nullable=False),
    _instant("lease_until", nullable=True),
    Column("event_id", Text, nullable=False),
    Column("tool_call_id", Text),
    Column("metadata", Text),
    Column("result", Text),
    Column("result_ref", Text),
    Column("error", Text),
    Column("decided_by", Text),
    Column("decided_reason", Text),
    Column("decided_evidence", Text),
    _instant("decided_at", nullable=True),
    Column("decided_attempt", Integer),
    Column("claimed_by", LargeBinary),
    Column("claimed_generation", BigInteger),
    Column("claimed_index", Integer),
    Column("revision", Integer, nullable=False, server_default=text("1")),
    _instant("started_at"),
    _instant("finished_at", nullable=True),
    _instant("expires_at"),
    PrimaryKeyConstraint("execution_id", "key"),
    UniqueConstraint("node_id", "execution_id", "call_index", "generation", name="position"),
    CheckConstraint(f"state IN ({', '.join(repr(s.value) for s in State)})", name="state"),
    CheckConstraint("octet_length(key) = 32 AND octet_length(arguments_hash) = 32", name="hashes"),
    CheckConstraint("generation >= 1 AND attempt >= 1 AND call_index >= 0", name="counts"),
    CheckConstraint("(state = 'executing') = (lease_until IS NOT NULL)", name="lease"),
    CheckConstraint("(state IN ('completed', 'failed')) = (finished_at IS NOT NULL)", name="finished"),
    CheckConstraint("state = 'completed' OR (result IS NULL AND result_ref IS NULL)", name="result"),
    CheckConstraint("state NOT IN ('failed', 'indeterminate') OR error IS NOT NULL", name="error"),
    CheckConstraint(
        "num_nulls(decided_by, decided_reason, decided_at, decided_attempt) IN (0, 4)"
        " AND (decided_evidence IS NULL OR decided_by IS NOT NULL)",
        name="decided",
    ),
    # A ruling holds for one attempt: the current one when it ended or released the call, else an earlier one.
    CheckConstraint(
        "CASE WHEN state = 'released' THEN decided_attempt IS NOT DISTINCT FROM attempt"
        " ELSE decided_attempt IS NULL OR decided_attempt < attempt"
        " OR (decided_attempt = attempt AND state IN ('completed', 'failed')) END",
        name="ruled",
    ),
    CheckConstraint(
        "(claimed_by IS NULL) = (claimed_generation IS NULL) AND (claimed_by IS NULL) = (claimed_index IS NULL)",
        name="claimed",
    ),
    # No index may name a column that finalizing writes (state, lease, result …), not even in its predicate: that update
    # is then heap-only (HOT) and writes no index at all.
    Index("calls_expires", "expires_at"),
)

# The calls that still need somebody: executing, an outcome that the broker has not acknowledged, or undecided. A small
# table of its own keeps the sweeper's look and the operator's list cheap however many calls the ledger remembers.
unsettled = Table(
    "unsettled",
    metadata,
    Column("execution_id", Text, nullable=False),
    Column("key", LargeBinary, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("acknowledged", Integer, nullable=False, server_default=text("0")),
    _instant("since", default=True),
    PrimaryKeyConstraint("execution_id", "key"),
)

# Who needs which blob (`names.py`). Not columns of `calls`, for the index that finds the other names of a blob.
blobs = Table(
    "blobs",
    metadata,
    Column("execution_id", Text, nullable=False),
    Column("key", LargeBinary, nullable=False),
    Column("uri", Text, nullable=False),
    _instant("expires_at"),
    PrimaryKeyConstraint("execution_id", "key", "uri"),
    Index("blobs_uri", "uri"),
    Index("blobs_expires", "expires_at"),
)

# Whose rows a role may see (`isolation.py`); the owner of the tables fills it in. Small, the same on every shard.
org_roles = Table(
    "org_roles",
    metadata,
    Column("role", Text, nullable=False),
    Column("org_id", Text, nullable=False),
    PrimaryKeyConstraint("role", "org_id"),
)
