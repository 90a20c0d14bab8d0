"""Whose rows somebody may see: Postgres' row-level security, and what it is worth.

Every question of the desk that is about an org has a WHERE for it. Behind that stands row-level security
(https://www.postgresql.org/docs/current/ddl-rowsecurity.html), for roles to which the WHERE cannot be entrusted.
Migration 0002 gives each table a policy, and `roles.sql` makes the roles:

- A **login role** sees the rows of the orgs that `fencepost.org_roles` lists beside its name (`current_user`), and
  nothing when none is listed. Only the tables' owner can write that list.
- A member of `fencepost_every_org` sees the rows of every org: operators, and applications that serve all tenants.
- The setting `fencepost.org` narrows that to one org, for a session or a transaction (`Desk(dsn, org)`). Anybody may
  set, change and unset it, so **it can only take away**: whoever sets it to another's org sees nothing. (A setting
  pinned by `ALTER ROLE … SET` would hold nobody: a plain SET overrides it. Hence the list.)
- A row without an org of its own belongs to the org of its execution.
- A **worker** serves all orgs. It is the tables' owner, to whom no policy applies, or a member of `fencepost_worker`,
  whose policy is the constant true: the planner drops all the others, and its plans are the owner's.

What a role may *do* is in its grants: readers read, and nobody but the owner can change whose a row is.

**Limits.** The owner, its members, superusers and roles with BYPASSRLS see everything. A member of
`fencepost_every_org` is held by the setting only as far as it sets it itself: the application is trusted, and the
setting is its seat belt. Roles go by their names: what is listed for a dropped role holds for a new one of that name,
and whoever may create roles may take a name. That an execution id is taken can be found out by opening it, since the
ids of all orgs are one space. How long a query takes and how large a table is (`pg_class.reltuples`) is not hidden.
Where `executions` is a deployer's view, who sees that view is the deployer's to say; the other tables ask it for the
org all the same. Kafka's topics have no orgs: give tenants no access to them.
"""

from __future__ import annotations

from pathlib import Path

import psycopg

from fencepost_ledger.connect import LedgerUnavailable, NotMigrated, connect, is_conflict, is_not_migrated, unreachable

ROLES_SQL = Path(__file__).with_name("roles.sql")
"""The SQL that makes the roles and gives them their rights; for the tables' owner, after each migration."""

# Asked of the largest table: the trusted one may be a deployer's view.
_SIGHT = """
SELECT current_user, row_security_active('fencepost.calls') AND NOT EXISTS (
    SELECT FROM pg_policy p, unnest(p.polroles) AS r(oid)
    WHERE p.polrelid = 'fencepost.calls'::regclass AND p.polname = 'worker' AND pg_has_role(r.oid, 'USAGE'))
"""

# Until the transaction ends: behind a pooler the session is somebody else's next.
NARROW = "SELECT set_config('fencepost.org', %s, true)"


def require_whole_sight(dsn: str) -> None:
    """Whether this role sees every row: to a worker, an execution that it cannot see is one that nobody opened.

    Raises:
        LedgerUnavailable: row-level security hides rows from it, or it cannot be asked; the text names the cure.
    """
    try:
        with connect(dsn) as connection:
            role, blind = connection.execute(_SIGHT).fetchone() or ("", False)
    except psycopg.Error as error:
        raise LedgerUnavailable(unreachable(dsn, error)) from None
    if blind:
        raise LedgerUnavailable(
            f"row-level security hides rows from the role {role!r}, and a worker needs them all: as the tables' owner"
            f' run `fencepost migrate --roles` and GRANT fencepost_worker TO "{role}"'
        )


def make_roles(dsn: str) -> str:
    """Run `roles.sql`, as the tables' owner with CREATEROLE → one line that says what there is now. Twice does no harm.

    Raises:
        LedgerUnavailable, NotMigrated
    """
    while True:
        try:
            with connect(dsn) as connection:
                connection.execute(ROLES_SQL.read_bytes())
        except psycopg.Error as error:
            if not is_conflict(error):  # else a worker was in the way, and it was rolled back whole
                raise _not_made(error) from None
        else:
            return "the roles fencepost_worker, _orchestrator, _operator, _reader and _every_org have their rights"


def _not_made(error: psycopg.Error) -> Exception:
    if is_not_migrated(error):
        return NotMigrated("the ledger's schema is not there: run `fencepost migrate`")
    reason = " ".join(str(error).split())
    return LedgerUnavailable(f"the roles cannot be made ({reason}): run it as the tables' owner, with CREATEROLE")
