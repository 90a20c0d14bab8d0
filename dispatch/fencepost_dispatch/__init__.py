"""Fencepost: tools, dispatching and outcomes."""
