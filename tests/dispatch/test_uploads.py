"""Uploads that take long, fail or are cancelled: the tool has acted, and that is recorded whatever becomes of it."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from pathlib import Path

import pytest

from fencepost_dispatch import engine, tool
from fencepost_ledger import BlobsUnavailable, blobs
from services.reports import LARGE, Reports, ask, line, row
from services.shelves import Folder


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.fixture
def reports() -> Reports:
    return Reports()


class Gate:
    """Uploads that begin, and end when they are let."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.open = asyncio.Event(), asyncio.Event()
        self._put = blobs._put
        monkeypatch.setattr(blobs, "_put", self._wait)

    async def _wait(self, uri: str, data: bytes) -> None:
        self.begun.set()
        await self.open.wait()
        await self._put(uri, data)


async def test_an_upload_is_shielded_from_what_cancels_tools_and_callers(
    database: str, reports: Reports, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    async with line(database, reports.tools, folder.url) as entered:
        caller = asyncio.create_task(entered.run(ask()))
        await gate.begun.wait()
        entered._engine.cancel_all()
        caller.cancel()
        joined = asyncio.create_task(entered.run(ask()))
        await asyncio.sleep(0)
        gate.open.set()
        outcome = await joined
    assert outcome.load_result() == LARGE
    assert (outcome.replayed, reports.ran["make"]) == (True, 1)


async def test_an_upload_that_outlasts_the_drain_is_given_up_and_the_end_recorded(
    database: str, reports: Reports, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    monkeypatch.setattr(engine, "_LAST_UPLOADS", 0.0)
    async with line(database, reports.tools, folder.url) as entered:
        running = asyncio.create_task(entered.run(ask()))
        await gate.begun.wait()
        entered._engine.cancel_all()
        outcome = await running
    assert outcome.error is not None
    assert (outcome.status, outcome.error.code) == ("succeeded", "result_too_large")
    assert row(database, outcome).state == "completed"


async def test_a_call_holds_its_slot_until_its_result_is_stored(
    database: str, reports: Reports, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    async with line(database, reports.tools, folder.url, concurrency=1) as entered:
        first = asyncio.create_task(entered.run(ask(1)))
        await gate.begun.wait()
        second = asyncio.create_task(entered.run(ask(2)))
        await asyncio.sleep(0)  # by now it stands in line
        assert (entered._engine.slots.waiting, reports.ran["make"]) == (1, 1)
        gate.open.set()
        assert [one.status for one in await asyncio.gather(first, second)] == ["succeeded"] * 2
    assert reports.ran["make"] == 2


class Flaky:
    """The first `failures` uploads fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
        self.tries, self._failures, self._put = 0, failures, blobs._put
        monkeypatch.setattr(blobs, "_put", self._try)
        monkeypatch.setattr(blobs, "PAUSES", (0.0, 0.0))

    async def _try(self, uri: str, data: bytes) -> None:
        self.tries += 1
        if self.tries <= self._failures:
            raise BlobsUnavailable("the disk is full")
        await self._put(uri, data)


async def test_an_upload_that_fails_is_tried_again(
    database: str, reports: Reports, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    flaky = Flaky(monkeypatch, failures=2)
    async with line(database, reports.tools, folder.url) as entered:
        outcome = await entered.run(ask())
    assert (flaky.tries, outcome.load_result()) == (3, LARGE)


async def test_after_the_last_try_the_result_is_dropped_and_the_call_never_run_again(
    database: str, reports: Reports, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    flaky = Flaky(monkeypatch, failures=100)
    async with line(database, reports.tools, folder.url) as entered:
        first = await entered.run(ask())
        again = await entered.run(ask())
    assert (flaky.tries, reports.ran["make"], folder.objects()) == (3, 1, {})
    assert (first.executed, again.replayed) == (True, True)
    for outcome in (first, again):
        assert outcome.error is not None
        assert (outcome.status, outcome.error.code) == ("succeeded", "result_too_large")
        assert "its upload failed" in outcome.error.message
        assert outcome.load_result() is None


async def test_one_copy_of_a_large_result_is_held_while_it_is_stored(
    database: str, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 16 * 2**20

    @tool("report.make")
    async def make() -> str:
        return "x" * size

    gate = Gate(monkeypatch)
    async with line(database, [make], folder.url) as entered:
        tracemalloc.start()
        running = asyncio.create_task(entered.run(ask()))
        await gate.begun.wait()
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        gate.open.set()
        assert (await running).result_ref is not None
    assert held < 1.1 * size
