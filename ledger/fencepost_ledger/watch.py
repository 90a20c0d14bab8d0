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

    `committed` is called in the writer's thread, `renewed` and `lost` in the lease keeper's, the others in the
    sweeper's.
    """

    def committed(self, items: int, seconds: float) -> None:
        """A batch of so many operations is in the ledger, after a transaction of so many seconds."""

    def renewed(self, leases: int) -> None:
        """So many leases are as good as new."""

    def lost(self, leases: int) -> None:
        """So many calls that run here are no longer ours."""

    def found(self, backlog: Backlog) -> None:
        """A pass of the sweeper has found this."""

    def swept(self, trouble: str | None) -> None:
        """A pass is over: None when the ledger has answered, else in one line why it has not."""
