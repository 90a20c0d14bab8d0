"""The ledger: a Postgres table of tool calls in which every call runs once. This is its design page.

**Promise.** A protected call is started at most once, whatever is redelivered, re-dispatched, killed or paused,
unless the tool said that it did not act, its probe said so, or a person released the call. Once a generation is raised,
no call of an older one starts. An outcome that nobody can know is recorded, refused, and never silently retried.

**States** (`State`; each one's arrows stand beside it in `calls.py`)::

    (none) ──reserve──▶ executing ──result recorded──▶ completed
                         ▲  │ │ └──tool: did not act──▶ failed          (retryable: attempt+1 → executing)
                         │  │ └──unclear / lease over, not safe to re-run──▶ indeterminate
                         │  └──lease over, safe to re-run: attempt+1, new holder
                         └──released by a person, or the probe says "not done"
    indeterminate ──a person, the probe, or the late truth──▶ completed | failed

**Two terms.** The *generation* is the orchestrator's: it counts dispatches of a node, and `calls.generation` is the
fence column, the generation under which the current attempt was started. The *attempt* is the holder's: it counts how
often this call was started. Every write names the attempt (or the revision, which counts every change of state) and
looks at the number of rows that it changed: zero means that somebody else moved the call.

**Rulings.** A person, or the probe, decides how one attempt ended (`decided_attempt`), or a person releases it. Nothing
overwrites that, the late truth of the attempt included. Once the call has started again, the ruling stays on the row
and on the outcomes, and decides nothing any more.

**Memory.** It is an operational record that remembers `TTL_HOURS`, explicitly not an audit trail. What still needs
somebody (executing, unacknowledged, undecided) is never forgotten: it stands in `unsettled` as well.

**Isolation.** The org of a call is the one on its execution's row. Row-level security stands behind every question that
is about an org: see `isolation.py`.

**Clock.** Leases, deadlines and memory are judged by the database's clock alone.
"""

from fencepost_ledger.blobs import BlobDamaged, BlobMissing, BlobsUnavailable
from fencepost_ledger.calls import CallRow, Ruling, Source, State, Term
from fencepost_ledger.connect import LedgerUnavailable, NotMigrated
from fencepost_ledger.desk import Ambiguous, Desk, Execution, NotFound, OrgConflict
from fencepost_ledger.isolation import ROLES_SQL, make_roles
from fencepost_ledger.ledger import Ledger, new_holder
from fencepost_ledger.rulings import Moved
from fencepost_ledger.schema import migrate, require_current, schema_status
from fencepost_ledger.sweep import Swept, sweep

__all__ = [
    "ROLES_SQL",
    "Ambiguous",
    "BlobDamaged",
    "BlobMissing",
    "BlobsUnavailable",
    "CallRow",
    "Desk",
    "Execution",
    "Ledger",
    "LedgerUnavailable",
    "Moved",
    "NotFound",
    "NotMigrated",
    "OrgConflict",
    "Ruling",
    "Source",
    "State",
    "Swept",
    "Term",
    "make_roles",
    "migrate",
    "new_holder",
    "require_current",
    "schema_status",
    "sweep",
]
