"""What operators say in tests: two of them, and each kind of ruling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fencepost_ledger import CallRow, Desk

Rule = Callable[[Desk, CallRow], CallRow]

ANN: dict[str, Any] = {"by": "ann", "reason": "looked in the ticket system"}
BOB: dict[str, Any] = {"by": "bob", "reason": "asked the customer"}
RULINGS: dict[str, Rule] = {
    "succeeded": lambda desk, row: desk.resolve(row, succeeded='{"id": 7}', **ANN),
    "failed": lambda desk, row: desk.resolve(row, failed="not_there", **ANN),
    "released": lambda desk, row: desk.release(row, **ANN),
}
OTHERS: dict[str, Rule] = {
    "succeeded": lambda desk, row: desk.resolve(row, succeeded='{"id": 8}', **BOB),
    "failed": lambda desk, row: desk.resolve(row, failed="not_there", **BOB),
    "released": lambda desk, row: desk.release(row, **BOB),
}
every_ruling = pytest.mark.parametrize("ruling", RULINGS)
