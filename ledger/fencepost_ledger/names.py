"""Who needs which blob. A blob is named before it is stored and goes with the last of its names, whatever became of the
call: it was finalized and forgotten, its worker died on the way, or it was read-only and has no row at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import psycopg

from fencepost_ledger import blobs
from fencepost_ledger.case import House, Rows, run
from fencepost_ledger.verdicts import Name

# Blobs that go in one transaction, which waits for the store.
_LIMIT = 50

# Held until commit, in one order everywhere: between the last look at a blob's names and its deletion nobody names it
# anew, and whoever waits for that stores it afterwards.
_LOCK = """
SELECT pg_advisory_xact_lock(hashtextextended(i.u, 0))
FROM (SELECT e.u FROM json_array_elements_text(%(items)s::json) AS e(u) ORDER BY e.u) i
"""

_NAME = """
INSERT INTO fencepost.blobs AS b (execution_id, key, uri, expires_at)
SELECT i.e, decode(i.k, 'hex'), i.u, coalesce(c.expires_at, clock_timestamp() + %(ttl)s)
FROM json_to_recordset(%(items)s::json) AS i(e text, k text, u text)
LEFT JOIN fencepost.calls c ON c.execution_id = i.e AND c.key = decode(i.k, 'hex')
ON CONFLICT (execution_id, key, uri) DO UPDATE SET expires_at = greatest(b.expires_at, excluded.expires_at)
"""

# A call that is remembered for longer than it was meant to be keeps its names for as long.
_OVER = """b.expires_at < now() AND NOT EXISTS (
    SELECT FROM fencepost.calls c WHERE c.execution_id = b.execution_id AND c.key = b.key)"""

_PICK = f"SELECT b.uri FROM fencepost.blobs b WHERE {_OVER} ORDER BY b.expires_at LIMIT %(limit)s"
_FORGET = f"DELETE FROM fencepost.blobs b WHERE b.uri = ANY(%(uris)s) AND {_OVER}"
_NAMELESS = """
SELECT i.u FROM unnest(%(uris)s::text[]) AS i(u)
WHERE NOT EXISTS (SELECT FROM fencepost.blobs b WHERE b.uri = i.u)
"""


def name(cur: Rows, names: Iterable[Name], house: House) -> None:
    """Name blobs that are about to be stored, in the transaction of `cur`."""
    ordered = sorted({(n.execution_id, n.key.hex(), n.uri) for n in names})
    run(cur, _LOCK, [uri for _, _, uri in ordered])
    run(cur, _NAME, [{"e": e, "k": key, "u": uri} for e, key, uri in ordered], ttl=house.ttl)


def forget_blobs(connection: psycopg.Connection[tuple[Any, ...]]) -> int:
    """Delete the blobs whose last name is over → how many. What the store did not delete keeps its names.

    Raises:
        BlobsUnavailable, psycopg.Error
    """
    gone = 0
    while True:
        with connection.transaction(), connection.cursor() as cur:
            uris = [str(uri) for (uri,) in cur.execute(_PICK.encode(), {"limit": _LIMIT})]
            gone += _forgotten(cur, sorted(set(uris)))
        if len(uris) < _LIMIT:
            return gone


def _forgotten(cur: Rows, uris: list[str]) -> int:
    if not uris:
        return 0
    run(cur, _LOCK, uris)
    cur.execute(_FORGET.encode(), {"uris": uris})
    nameless = [str(uri) for (uri,) in cur.execute(_NAMELESS.encode(), {"uris": uris})]
    for uri in nameless:
        blobs.delete(uri)
    return len(nameless)
