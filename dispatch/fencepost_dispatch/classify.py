"""Evidence that a tool which claims to be read-only acts. A hint may raise protection; none lowers it.

Only `effect="read_only"` is looked at: it alone goes past the ledger.
"""

from __future__ import annotations

import re
from typing import Any

from fencepost_dispatch.tools import Effect, Tool

# RFC 9110 §9.2.1. Any other method, known or not, may change something.
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})

# Whole words only: `created`, `updates` and `payments` are things one reads about. Words that are nouns as often as
# verbs (order, book, comment, release, schedule …) are not here: a false alarm costs an override, but so does each.
_VERBS = (
    "activate add append apply approve archive assign attach ban buy cancel charge clear close configure copy "
    "create deactivate decrement delete deploy deposit destroy detach disable drop edit enable erase fire grant "
    "import increment insert install invite kill make mark merge migrate modify move mutate notify overwrite patch "
    "pause pay post provision publish purchase purge push put reboot refund register reject remove rename replace "
    "reply reserve reset restart restore resume revoke rollback rotate save sell send set shutdown start stop "
    "submit subscribe terminate transfer trigger truncate unassign uninstall unlock unregister unsubscribe update "
    "upload upsert wipe withdraw write"
)
VERBS = frozenset(_VERBS.split(" "))

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def words(name: str) -> list[str]:
    """A name's words in lower case, cut at separators and at camelCase: `HTTPApi.createUser` → http api create user."""
    return [word.lower() for word in _WORD.findall(name)]


def evidence(tool: Tool[..., Any]) -> tuple[str, ...]:
    """What speaks against this tool's `read_only`, each in a few words; empty for the other effects."""
    if tool.effect is not Effect.read_only:
        return ()
    found: list[str] = []
    if tool.http_method is not None and tool.http_method.strip().upper() not in SAFE_METHODS:
        found.append(f"its HTTP method is {tool.http_method.strip().upper()}")
    if tool.mcp_hints.get("destructiveHint"):
        found.append("destructiveHint is true")
    if tool.mcp_hints.get("readOnlyHint") is False:
        found.append("readOnlyHint is false")
    if tool.probe_body is not None:
        found.append("it has a probe")
    found += [f"it takes an idempotency key, {name!r}" for name in _idempotency_parameters(tool)]
    found += [f"its name says {word!r}" for word in words(tool.name) if word in VERBS]
    return tuple(dict.fromkeys(found))


def _idempotency_parameters(tool: Tool[..., Any]) -> list[str]:
    declared = [tool.idempotency_parameter] if tool.idempotency_parameter is not None else []
    names = (parameter.name for parameter in tool.body.parameters)
    return declared + [name for name in names if {"idempotency", "idempotent"} & set(words(name))]
