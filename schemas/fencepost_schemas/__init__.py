"""Fencepost: what crosses the wire."""
