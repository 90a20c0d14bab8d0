"""Blobs are named before they are stored, and go with the last of their names."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fencepost_ledger import BlobsUnavailable, Term, blobs, sweep
from fencepost_ledger.verdicts import Name, Policy, Settle
from fencepost_schemas import ResultRef
from services.holder import Book, Holder, Thread, call, key_of
from services.shelves import Folder, Shelf

DATA = b'"a large result"'


@pytest.fixture(params=["folder", "s3"])
def shelf(request: pytest.FixtureRequest, folder: Folder) -> Shelf:
    """Each kind of store in turn."""
    store: Shelf = folder if request.param == "folder" else request.getfixturevalue("bucket")
    return store


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def put(shelf: Shelf, org: str = "acme", data: bytes = DATA) -> ResultRef:
    ref = blobs.reference(shelf.url, org, data)
    asyncio.run(blobs.store(ref, data))
    return ref


def named(holder: Holder, term: Term, ref: ResultRef) -> None:
    assert holder.do(Name(term.execution_id, term.key, ref.uri)) == [None]


def ended(holder: Holder, shelf: Shelf, number: int = 0) -> ResultRef:
    """A call whose large result was named, stored, recorded and published."""
    term = holder.start(call(f"e{number}", call_index=number))
    named(holder, term, ref := put(shelf))
    end = holder.finalize(term, result=None, result_ref=ref.model_dump_json())
    assert end.mine
    holder.do(Settle(term.execution_id, term.key, end.revision))
    return ref


def swept(holder: Holder, book: Book) -> int:
    """How many blobs a pass deleted."""
    done = sweep(book.dsn, holder.house, lambda _: None)
    assert done is not None
    return done.blobs


def names(book: Book) -> int:
    return len(book.ask("SELECT 1 FROM fencepost.blobs"))


def test_a_blob_is_forgotten_with_its_call(holder: Holder, book: Book, shelf: Shelf) -> None:
    ended(holder, shelf)
    book.age(hours=47)
    assert swept(holder, book) == 0
    assert len(shelf.objects()) == 1
    book.age(hours=2)
    assert swept(holder, book) == 1
    assert (shelf.objects(), names(book), book.rows()) == ({}, 0, [])


def test_a_blob_stays_while_another_call_names_it(holder: Holder, book: Book, shelf: Shelf) -> None:
    assert ended(holder, shelf, 1) == ended(holder, shelf, 2)
    other_org = put(shelf, "other")
    book.ask("UPDATE fencepost.calls SET expires_at = now() - interval '1 h' WHERE call_index = 1")
    book.ask("UPDATE fencepost.blobs b SET expires_at = now() - interval '1 h'")
    assert swept(holder, book) == 0
    assert (len(book.rows()), names(book), len(shelf.objects())) == (1, 1, 2)
    book.age(hours=49)
    assert swept(holder, book) == 1
    assert list(shelf.objects()) == ["/".join(other_org.uri.split("/")[-2:])], "another org's, of the same content"


def test_a_call_that_is_remembered_for_longer_keeps_its_blob(holder: Holder, book: Book, folder: Folder) -> None:
    ended(holder, folder)
    book.age(hours=49)
    book.ask("UPDATE fencepost.calls SET expires_at = now() + interval '1 h'")
    assert swept(holder, book) == 0
    assert folder.objects()


def test_a_name_lasts_as_long_as_its_call_is_meant_to(holder: Holder, book: Book, folder: Folder) -> None:
    term = holder.start(call())
    book.age(hours=40)
    named(holder, term, put(folder))
    assert book.ask("SELECT 1 FROM fencepost.blobs b JOIN fencepost.calls c USING (execution_id, key, expires_at)")


@pytest.mark.parametrize("died", ["before it was stored", "before it was recorded", "and its attempt was lost"])
def test_what_a_worker_left_half_way_is_swept_too(
    holder: Holder, other: Holder, book: Book, shelf: Shelf, died: str
) -> None:
    item = call(policy=Policy("idempotent"))
    term = holder.start(item)
    ref = blobs.reference(shelf.url, "acme", DATA)
    named(holder, term, ref)
    if died != "before it was stored":
        put(shelf)
    book.lease_over()
    taken = other.start(item)
    assert not holder.finalize(term, result=None, result_ref=ref.model_dump_json()).mine
    assert other.finalize(taken).mine
    other.do(Settle(taken.execution_id, taken.key, book.row().revision))
    book.age(hours=49)
    assert swept(holder, book) == 1
    assert (shelf.objects(), names(book)) == ({}, 0)


def test_the_blob_of_a_call_without_a_row_is_kept_for_as_long_as_a_call(
    holder: Holder, book: Book, folder: Folder
) -> None:
    item = call(policy=Policy("read_only"))
    assert holder.do(Name(item.execution_id, key_of(item), put(folder).uri)) == [None]
    book.age(hours=47)
    assert swept(holder, book) == 0
    named(holder, Term(item.execution_id, key_of(item), 1), put(folder))  # looked up again, with the same result
    book.age(hours=47)
    assert swept(holder, book) == 0
    book.age(hours=2)
    assert swept(holder, book) == 1


def test_names_of_one_batch_may_be_the_same(holder: Holder, book: Book, folder: Folder) -> None:
    name = Name("x", key_of(call()), put(folder).uri)
    assert holder.do(name, name) == [None, None]
    assert names(book) == 1


def test_what_the_store_does_not_delete_is_deleted_once_it_can(
    holder: Holder, book: Book, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(uri: str) -> None:
        raise BlobsUnavailable("it is away")

    ended(holder, folder)
    book.age(hours=49)
    with monkeypatch.context() as away:
        away.setattr(blobs, "delete", refuse)
        with pytest.raises(BlobsUnavailable):
            swept(holder, book)
    assert (names(book), book.rows()) == (1, []), "its name is there still, the rest was swept"
    assert swept(holder, book) == 1
    assert (names(book), folder.objects()) == (0, {})


def test_a_blob_that_somebody_else_deleted_is_no_trouble(holder: Holder, book: Book, shelf: Shelf) -> None:
    ended(holder, shelf)
    shelf.remove(*shelf.objects())
    book.age(hours=49)
    assert swept(holder, book) == 1
    assert names(book) == 0


def test_more_than_one_batch_of_blobs_is_swept_in_one_pass(
    holder: Holder, book: Book, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencepost_ledger.names._LIMIT", 2)
    for number in range(5):
        ref = put(folder, data=str(number).encode())
        holder.do(Name("x", bytes([number] * 32), ref.uri))
    book.age(hours=49)
    assert swept(holder, book) == 5
    assert not folder.objects()


class Hand:
    """Deletes when it is let."""

    def __init__(self, delete: Callable[[str], None]) -> None:
        self.reached, self.let, self._delete = threading.Event(), threading.Event(), delete

    def delete(self, uri: str) -> None:
        self.reached.set()
        assert self.let.wait(20)
        self._delete(uri)


def test_a_blob_that_is_just_being_deleted_is_named_anew_only_afterwards(
    holder: Holder, other: Holder, book: Book, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the same content, stored again in that moment, would be deleted under its new name."""
    ref = ended(holder, folder)
    book.age(hours=49)
    hand = Hand(blobs.delete)
    monkeypatch.setattr(blobs, "delete", hand.delete)
    sweeping = Thread(lambda: swept(holder, book))
    assert hand.reached.wait(20)
    term = other.start(call("e9"))
    naming = Thread(lambda: named(other, term, ref))
    book.wait_blocked(other.pid)
    hand.let.set()
    naming.result()
    assert sweeping.result() == 1
    put(folder)
    assert other.finalize(term, result=None, result_ref=ref.model_dump_json()).mine
    assert swept(holder, book) == 0
    assert blobs.fetch(ref, "acme") == DATA.decode()


def test_a_blob_that_is_just_being_named_is_not_deleted(
    holder: Holder, other: Holder, book: Book, folder: Folder
) -> None:
    ref = ended(holder, folder)
    book.age(hours=49)
    term = other.start(call("e9", call_index=9))
    with other.connection.transaction():
        named(other, term, ref)
        sweeping = Thread(lambda: swept(holder, book))
        book.wait(lambda: book.ask("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted") == [(1,)])
    assert sweeping.result() == 0
    assert folder.objects()
