"""The services that the tests run against: which ones there are here, and how they are started and hurt."""


class Unavailable(Exception):
    """A service cannot be had here; the text says why, in a line."""
