"""What the ledger tells of its own work, for whoever counts it. It knows nothing of metrics and their libraries."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backlog:
    """What the ledger as a whole, all workers' calls together, has open.

    `undecided`: calls whose outcome is unknown and that nobody has ruled on; `oldest_undecided`: how many seconds ago
    the attempt of the oldest one began, 0 without any. `unsettled`: recorded ends whose outcome the brokers have not
    acknowledged.
    """

    undecided: int
    oldest_undecided: float
    unsettled: int


class Watch:
    """Is told what happens, in the ledger's threads, and must return at once and never raise. This one does not listen.

    Each method is called in one thread only: `committed` in the writer's, `renewed` in the lease keeper's, the others
    in the sweeper's.
    """

    def committed(self, items: int, seconds: float) -> None:
        """A batch of so many operations is in the ledger, after a transaction of so many seconds."""

    def renewed(self, leases: int, lost: int) -> None:
        """So many leases were to be renewed; so many of them are no longer ours and had not been missed before."""

    def swept(self, backlog: Backlog | None) -> None:
        """The ledger has answered the sweeper; None: another sweeper was at work."""

    def unswept(self, reason: str) -> None:
        """The ledger has not answered the sweeper: why, in one line."""
