"""Large results: stored before they are recorded, named by their hash, read by nobody but their org."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost_dispatch import Settings, tool
from fencepost_dispatch.settings import SettingsError
from fencepost_ledger import BlobDamaged, BlobMissing, BlobsUnavailable, blobs
from fencepost_schemas import Outcome, Status, decode_outcome, encode_outcome
from services.holder import Book, Holder, call
from services.reports import INLINE, LARGE, TEXT, Reports, ask, line, row
from services.shelves import Bucket, Folder, Shelf, path_of


@pytest.fixture(params=["folder", "s3"])
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Shelf:
    """Each kind of store in turn."""
    store: Shelf = Folder(tmp_path / "a folder") if request.param == "folder" else request.getfixturevalue("bucket")
    return store


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "blobs")


@pytest.fixture
def reports() -> Reports:
    return Reports()


async def stored(database: str, reports: Reports, shelf: Shelf) -> Outcome:
    async with line(database, reports.tools, shelf.url) as entered:
        return await entered.run(ask())


# --- stored, and read back ------------------------------------------------------------------------------------------


async def test_a_large_result_lies_in_the_store_and_ledger_and_outcome_name_it(
    database: str, reports: Reports, shelf: Shelf
) -> None:
    outcome = await stored(database, reports, shelf)
    digest = hashlib.sha256(TEXT).hexdigest()
    assert (outcome.status, outcome.executed, outcome.error, outcome.result) == ("succeeded", True, None, None)
    assert shelf.objects() == {f"acme/{digest}": TEXT}
    ref = {
        "uri": f"{shelf.url}/acme/{digest}",
        "sha256": digest,
        "size": len(TEXT),
        "media_type": "application/json",
    }
    assert outcome.result_ref is not None
    assert outcome.result_ref.model_dump() == ref
    recorded = row(database, outcome)
    assert (recorded.state, recorded.result) == ("completed", None)
    assert json.loads(recorded.result_ref or "") == ref
    assert decode_outcome(encode_outcome(outcome).value).load_result() == LARGE


async def test_a_redelivery_gives_the_same_reference_and_stores_nothing_again(
    database: str, reports: Reports, shelf: Shelf
) -> None:
    async with line(database, reports.tools, shelf.url) as entered:
        first = await entered.run(ask())
        again = await entered.run(ask())
        other = await entered.run(ask(event_id="e9"))
    assert first.result_ref == again.result_ref == other.result_ref is not None
    assert (again.replayed, again.executed, reports.ran["make"]) == (True, False, 1)
    assert await asyncio.to_thread(again.load_result) == LARGE


async def test_what_fits_stays_in_the_ledger(database: str, folder: Folder) -> None:
    @tool("text.make")
    async def make(size: int) -> str:
        return "x" * (size - 2)

    async with line(database, [make], folder.url) as entered:
        at = await entered.run(ask(1, tool="text.make", arguments={"size": INLINE}))
        over = await entered.run(ask(2, tool="text.make", arguments={"size": INLINE + 1}))
    assert (at.result, at.result_ref) == ("x" * (INLINE - 2), None)
    assert at.load_result() == at.result
    assert over.result_ref is not None
    assert over.result_ref.size == INLINE + 1


async def test_without_a_store_a_large_result_is_dropped_and_never_run_again(database: str, reports: Reports) -> None:
    async with line(database, reports.tools, None) as entered:
        first = await entered.run(ask())
        again = await entered.run(ask())
    for outcome in (first, again):
        assert (outcome.status, outcome.result, outcome.result_ref) == ("succeeded", None, None)
        assert outcome.error is not None
        assert outcome.error.code == "result_too_large"
    assert reports.ran["make"] == 1


async def test_a_read_only_tools_large_result_is_stored_and_named(
    database: str, reports: Reports, folder: Folder
) -> None:
    async with line(database, reports.tools, folder.url) as entered:
        outcome = await entered.run(ask(tool="report.read"))
    assert outcome.load_result() == LARGE
    assert outcome.result_ref is not None
    with closing(Book(database)) as book:
        assert book.ask("SELECT uri FROM fencepost.blobs") == [(outcome.result_ref.uri,)]


async def test_what_a_probe_finds_is_stored_too(database: str, reports: Reports, folder: Folder) -> None:
    async with line(database, reports.tools, folder.url) as entered:
        lose(database, "report.make")
        outcome = await entered.run(ask())
    assert (outcome.status, outcome.executed, reports.ran) == ("succeeded", False, {"find": 1})
    assert outcome.resolution is not None
    assert outcome.load_result() == LARGE
    assert row(database, outcome).result is None


async def test_what_a_probe_finds_and_nobody_can_keep_is_dropped_and_says_so(database: str, reports: Reports) -> None:
    async with line(database, reports.tools, None) as entered:
        lose(database, "report.make")
        outcome = await entered.run(ask())
    assert (outcome.status, outcome.result) == ("succeeded", None)
    assert outcome.error is not None
    assert outcome.error.code == "result_too_large"


def lose(database: str, name: str) -> None:
    """Another worker has started the call of `ask()`, and is long gone."""
    with closing(Holder(database, "lost")) as holder, closing(Book(database)) as book:
        holder.start(call("lost", execution_id="x", node_id="n", call_index=0, tool=name))
        book.lease_over(seconds=3600)


# --- what is read is what was stored, by whose it is ----------------------------------------------------------------


@pytest.mark.parametrize("change", [lambda data: data[:-1] + b" ", lambda data: data + b" ", lambda _: b""])
async def test_a_damaged_blob_is_no_result(
    database: str, reports: Reports, shelf: Shelf, change: Callable[[bytes], bytes]
) -> None:
    outcome = await stored(database, reports, shelf)
    ((path, data),) = shelf.objects().items()
    shelf.write(path, change(data))
    with pytest.raises(BlobDamaged, match=r"is not what was stored") as damaged:
        outcome.load_result()
    assert "\n" not in str(damaged.value)


async def test_a_missing_blob_is_no_result(database: str, reports: Reports, shelf: Shelf) -> None:
    outcome = await stored(database, reports, shelf)
    ((path, _),) = shelf.objects().items()
    shelf.remove(path)
    with pytest.raises(BlobMissing, match=r"is not there") as missing:
        outcome.load_result()
    assert "\n" not in str(missing.value)


async def test_a_blob_of_one_org_never_answers_another(database: str, reports: Reports, shelf: Shelf) -> None:
    async with line(database, reports.tools, shelf.url) as entered:
        ours = await entered.run(ask())
        theirs = await entered.run(ask(execution_id="of another"))
    assert ours.result_ref is not None
    assert theirs.result_ref is not None
    assert ours.result_ref.sha256 == theirs.result_ref.sha256
    assert sorted(shelf.objects()) == sorted(path_of(one.result_ref.uri) for one in (ours, theirs) if one.result_ref)
    assert theirs.load_result() == LARGE
    for changed in (
        ours.model_copy(update={"org_id": "../acme"}),
        ours.model_copy(update={"org_id": None}),
        ours.model_copy(update={"result_ref": theirs.result_ref}),
        ours.model_copy(update={"result_ref": ours.result_ref.model_copy(update={"sha256": "0" * 64})}),
    ):
        with pytest.raises(BlobMissing, match=r"is no blob of org"):
            changed.load_result()


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=128)))
def test_every_org_has_a_folder_of_its_own_that_leads_nowhere_else(orgs: list[str]) -> None:
    tried = {*orgs, ".", "..", "a/b", "a=2Fb", "a%2Fb", "acme", "Acme", "a.b", "~", "é", "é" * 128, "." * 128}
    folders = {blobs.folder(org) for org in tried}
    assert len(folders) == len(tried)
    assert all(re.fullmatch(r"[\w=~-]{1,200}|\.[0-9a-f]{64}", name, re.ASCII) for name in folders)
    assert blobs.folder("acme_1-eu") == "acme_1-eu"


@pytest.mark.parametrize("uri", ["", "nonsense", "http://127.0.0.1:1/acme/{}", "s3:/acme/{}", "file:///etc/passwd"])
def test_a_reference_leads_to_stores_alone(uri: str) -> None:
    digest = "0" * 64
    ref = blobs.reference("file:///x", "acme", b"1").model_copy(update={"uri": uri.format(digest), "sha256": digest})
    with pytest.raises((BlobMissing, BlobsUnavailable)):
        blobs.fetch(ref, "acme")


def test_a_reader_of_ones_own_gets_the_reference_and_the_org() -> None:
    ref = blobs.reference("file:///nowhere", "acme", b"[1]")
    outcome = Outcome(
        outcome_id="o", **ask().model_dump(include={"event_id", "execution_id", "node_id", "call_index", "generation"}),
        tool="t", status=Status.succeeded, org_id="acme", result_ref=ref,
    )  # fmt: skip
    assert outcome.load_result(lambda asked, org: json.dumps([asked.uri, org])) == [ref.uri, "acme"]


# --- the store itself -----------------------------------------------------------------------------------------------


async def test_a_store_that_cannot_be_written_is_found_at_start(
    database: str, reports: Reports, bucket: Bucket, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    for url in ("s3://no-such-bucket-anywhere/x", (tmp_path / "file").as_uri()):
        with pytest.raises(BlobsUnavailable, match=r"cannot be used .*check FENCEPOST_BLOBS") as refused:
            async with line(database, reports.tools, url):
                pass
        assert "\n" not in str(refused.value)
        assert len(str(refused.value)) < 700


async def test_a_missing_extra_is_one_line_with_its_cure(
    database: str, reports: Reports, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(BlobsUnavailable, match=r"^.*pip install 'fencepost\[s3\]'$"):
        async with line(database, reports.tools, folder.url):
            pass
    with pytest.raises(BlobsUnavailable, match=r"pip install"):
        blobs.fetch(blobs.reference(folder.url, "acme", b"1"), "acme")


def test_obstore_is_imported_for_those_who_set_a_store_alone() -> None:
    program = "import sys, fencepost_worker.worker, fencepost_ledger.blobs; sys.exit('obstore' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("url", ["s3://", "s3:///x", "file://", "file:///", "file://x", "s3://b?x=1", "s3://b#x", "/x"])
def test_a_store_is_named_by_a_plain_url(url: str) -> None:
    with pytest.raises(SettingsError, match=r"FENCEPOST_|blobs.*must be s3://bucket/prefix"):
        Settings(blobs=url)
