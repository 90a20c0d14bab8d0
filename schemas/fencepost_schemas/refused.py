"""The one error of canonical JSON: what was refused, and where in the value it stands."""

from __future__ import annotations

import json
import re

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_SHOWN = 40  # characters of a long key that a path shows: errors travel in records and must stay small


class Refused(ValueError):
    """A value or a text is not JSON as this package understands it.

    ``path`` is where it stands: ``$`` is the whole value, ``$.a[0]`` the first element of member ``a``,
    ``$["a b"]`` a member whose name is no identifier. ``reason`` never shows the refused value itself, which may be
    a secret.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"

    def inside(self, step: str | int) -> Refused:
        """The same refusal, seen from the object or array that holds the value as its member ``step``."""
        return Refused(f"${shown(step)}{self.path[1:]}", self.reason)


def shown(step: str | int) -> str:
    """One step of a path: ``[0]``, ``.name`` or ``["other name"]`` (ASCII, long names cut)."""
    if isinstance(step, int):
        return f"[{step}]"
    if _PLAIN.fullmatch(step):
        return f".{step}"
    name = step if len(step) <= _SHOWN else step[:_SHOWN] + "…"
    return f"[{json.dumps(name)}]"
