"""Large results lie beside the ledger, in a store of objects: S3 and its like, GCS, Azure or a folder (by obstore).

A result's JSON text lies at `BLOBS/<org>/<sha256>`. It is named in the ledger before it is there (`names.py`), and is
there before the call is finalized. Whoever reads it has its hash and its org, and takes nothing else for an answer.
Credentials and endpoints come from the store's own variables, as obstore reads them (`AWS_…`, `GOOGLE_…`, `AZURE_…`:
https://developmentseed.org/obstore/latest/authentication/). obstore is imported when the first store is opened.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote

import structlog

from fencepost_schemas import ResultRef

if TYPE_CHECKING:
    from obstore.store import ObjectStore, RetryConfig

MEDIA_TYPE = "application/json"
PAUSES = (0.5, 2.0, 5.0, 15.0)
"""Seconds between the tries of an upload: a result that nobody can store is lost, so a short outage must not do it."""

_SCHEMES = re.compile(r"(s3|gs|az|file|memory)://")
# Of one request; what fails for longer is for PAUSES.
_RETRY: RetryConfig = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}
_PARTS_AT_ONCE = 4  # of 5 MiB each, in memory beside the result
_LONGEST_NAME = 200  # bytes; file systems take 255

log = structlog.get_logger("fencepost.blobs")


class BlobsUnavailable(Exception):
    """The store cannot be reached, refuses, or cannot be opened here."""


class BlobMissing(Exception):
    """There is no such blob, or it is not one of this org."""


class BlobDamaged(Exception):
    """What lies there is not what was stored."""


def reference(blobs: str, org_id: str, data: bytes) -> ResultRef:
    """Where these bytes (a JSON text) belong in the store `blobs`; nothing is written."""
    digest = hashlib.sha256(data).hexdigest()
    uri = f"{blobs.rstrip('/')}/{folder(org_id)}/{digest}"
    return ResultRef(uri=uri, sha256=digest, size=len(data), media_type=MEDIA_TYPE)


def folder(org_id: str) -> str:
    """The org's folder: `=` and two hex digits for every byte but letters, digits, `_`, `-` and `~`.

    That is percent-encoding with another sign: stores decode `%2E%2E` once more than one would like, and climb.
    """
    name = quote(org_id, safe="").replace("%", "=").replace(".", "=2E")
    # A dot begins no encoded name, so no org can be called what this makes.
    return name if len(name) <= _LONGEST_NAME else f".{hashlib.sha256(org_id.encode()).hexdigest()}"


def check(blobs: str) -> None:
    """Whether this process may write there: an empty object `.fencepost` is put. Makes the folder of a `file://` store.

    Raises:
        BlobsUnavailable
    """
    base = blobs.rstrip("/")
    with _explained(base):
        import obstore  # noqa: PLC0415

        if base.startswith("file:"):
            obstore.store.LocalStore.from_url(base, mkdir=True)
        obstore.put(_store(base), ".fencepost", b"")


async def store(ref: ResultRef, data: bytes) -> None:
    """Put the blob, and again after each of `PAUSES` when that fails.

    What is there already is overwritten: it is the same, or damaged. (A conditional put would send the bytes as well,
    and not every S3-compatible store knows it.)

    Raises:
        BlobsUnavailable: the last try failed too.
    """
    for pause in PAUSES:
        try:
            return await _put(ref.uri, data)
        except BlobsUnavailable as error:
            log.warning("a result could not be stored, trying again", uri=ref.uri, seconds=pause, reason=str(error))
        await asyncio.sleep(pause)
    return await _put(ref.uri, data)


def fetch(ref: ResultRef, org_id: str | None) -> str:
    """The JSON text that the reference names, checked; blocks.

    Raises:
        BlobMissing, BlobDamaged, BlobsUnavailable: one line each.
    """
    base, path = _split(ref.uri)
    if org_id is None or path != f"{folder(org_id)}/{ref.sha256}":
        raise BlobMissing(f"{ref.uri} is no blob of org {org_id!r}")
    with _explained(base):
        import obstore  # noqa: PLC0415

        try:
            found = obstore.get(_store(base), path)
            data = found.bytes() if found.meta["size"] == ref.size else None
        except FileNotFoundError:
            raise BlobMissing(f"{ref.uri} is not there: forgotten with its call, or deleted") from None
    if data is None or hashlib.sha256(data).hexdigest() != ref.sha256:
        raise BlobDamaged(f"{ref.uri} is not what was stored: its size or its SHA-256 differs")
    return str(data, "utf-8")  # out of the store's own buffer: no second copy in bytes


def delete(uri: str) -> None:
    """Delete the blob, if it is there.

    Raises:
        BlobsUnavailable
    """
    base, path = _split(uri)
    with _explained(base), suppress(FileNotFoundError):
        import obstore  # noqa: PLC0415

        obstore.delete(_store(base), path)


async def _put(uri: str, data: bytes) -> None:
    base, path = _split(uri)
    with _explained(base):
        import obstore  # noqa: PLC0415

        await obstore.put_async(_store(base), path, data, max_concurrency=_PARTS_AT_ONCE)


def _split(uri: str) -> tuple[str, str]:
    """The store and the path in it."""
    base, _, rest = uri.rpartition("/")
    base, _, org = base.rpartition("/")
    return base, f"{org}/{rest}"


@lru_cache(maxsize=64)
def _store(base: str) -> ObjectStore:
    from obstore.store import LocalStore, MemoryStore, from_url  # noqa: PLC0415

    if not _SCHEMES.match(base):
        raise BlobsUnavailable(f"{base!r} is no store: s3://, gs://, az:// or file:///")
    if base.startswith("file:"):
        return LocalStore.from_url(base)
    return MemoryStore() if base.startswith("memory:") else from_url(base, retry_config=_RETRY)


@contextmanager
def _explained(base: str) -> Iterator[None]:
    try:
        yield
    except (BlobsUnavailable, BlobMissing):
        raise
    except ModuleNotFoundError:
        raise BlobsUnavailable("large results need obstore, which is not here: pip install 'fencepost[s3]'") from None
    except Exception as error:  # noqa: BLE001 - a store's client may raise anything
        cure = "check FENCEPOST_BLOBS and the store's own variables (AWS_…, GOOGLE_…, AZURE_…)"
        raise BlobsUnavailable(f"the store {base} cannot be used ({_reason(error)}): {cure}") from None


def _reason(error: Exception) -> str:
    """What the client says, on one line; behind its words come its innards."""
    words = " ".join(str(error).partition("\n\nDebug source")[0].split()) or type(error).__name__
    return words if len(words) <= 400 else words[:400] + "…"
