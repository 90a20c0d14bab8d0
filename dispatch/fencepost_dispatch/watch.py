"""What an engine tells of its calls, for whoever counts them."""

from __future__ import annotations


class Watch:
    """Is told of every call, on the loop's thread, and must return at once and never raise. This one does not listen.

    It is called on the hot path, where microseconds count.
    """

    def waited(self, seconds: float) -> None:
        """A call has its slot, after so long in line."""

    def ran(self, tool: str, seconds: float) -> None:
        """A run of the tool has ended, however it ended, after so long."""
