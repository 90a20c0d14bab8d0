"""Fencepost: the ledger of calls."""
