"""Row-level security: whoever is not the owner of the tables sees the rows of its orgs. `isolation.py` is the design.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import text

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

ORG_ROLES = """
CREATE TABLE fencepost.org_roles (
    role text NOT NULL,
    org_id text NOT NULL,
    CONSTRAINT org_roles_pkey PRIMARY KEY (role, org_id)
)
"""

# In brackets with SELECT: asked once a statement, not once a row. The setting narrows, and never widens.
_ORG = """(
    (SELECT coalesce(pg_has_role(to_regrole('fencepost_every_org'), 'USAGE'), false))
    OR {row}.org_id IN (SELECT r.org_id FROM fencepost.org_roles r WHERE r.role = current_user)
) AND (SELECT coalesce(current_setting('fencepost.org', true), '')) IN ('', {row}.org_id)"""

# Its org is the one on the execution's row.
_ORG_OF_X = _ORG.format(row="x")
_EXECUTION = f"""EXISTS (
    SELECT FROM fencepost.executions x WHERE x.execution_id = {{row}}.execution_id AND {_ORG_OF_X}
)"""

POLICIES = {
    "executions": _ORG.format(row="executions"),
    "calls": _ORG.format(row="calls"),
    **{table: _EXECUTION.format(row=table) for table in ("generations", "events", "unsettled", "blobs")},
    "org_roles": "role = current_user",
}


def upgrade() -> None:
    op.execute(ORG_ROLES)
    for table in _tables():
        op.execute(f"ALTER TABLE fencepost.{table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"CREATE POLICY org ON fencepost.{table} USING ({POLICIES[table]})")


def downgrade() -> None:
    for table in _tables():
        op.execute(f"DROP POLICY org ON fencepost.{table}")
        op.execute(f"ALTER TABLE fencepost.{table} DISABLE ROW LEVEL SECURITY")
    op.execute("DROP TABLE fencepost.org_roles")


def _tables() -> list[str]:
    """Those that are tables: a deployer may have put a view over a table of their own in the place of `executions`."""
    found = "SELECT relname FROM pg_class WHERE relnamespace = 'fencepost'::regnamespace AND relkind IN ('r', 'p')"
    there = {name for (name,) in op.get_bind().execute(text(found))}
    return [table for table in POLICIES if table in there]
