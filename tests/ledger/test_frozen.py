"""A worker that is frozen in the middle of a transaction, as a suspended machine is, holds nobody else up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from threading import Event
from typing import Any

import pytest

from fencepost_ledger import batch
from fencepost_ledger.admit import admit as admit_for_real
from fencepost_ledger.case import House
from fencepost_ledger.verdicts import Raise, Start, Waiting
from services.holder import PATIENCE, Book, Writer, call

LEASE = timedelta(seconds=1)


class Freezer:
    """Freezes the next batch that a writer admits, with its locks taken and nothing committed, until `thaw`."""

    def __init__(self) -> None:
        self.frozen, self._thawed = Event(), Event()

    def admit(self, *args: Any) -> list[Any]:
        answers = admit_for_real(*args)
        if not self.frozen.is_set():
            self.frozen.set()
            assert self._thawed.wait(PATIENCE)
        return answers

    def thaw(self) -> None:
        self._thawed.set()


@pytest.fixture
def freezer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Freezer]:
    made = Freezer()
    monkeypatch.setattr(batch, "admit", made.admit)
    yield made
    made.thaw()


@pytest.fixture
def frozen(freezer: Freezer, book: Book) -> Iterator[Writer]:
    """A worker that has reserved a call, and was frozen before it could commit."""
    with closing(Writer(book.dsn, House("frozen", LEASE, timedelta(hours=1)))) as writer:
        writer.submit(call())
        assert freezer.frozen.wait(PATIENCE)
        yield writer
        freezer.thaw()


@pytest.fixture
def other(frozen: Writer, book: Book) -> Iterator[Writer]:
    with closing(Writer(book.dsn, House("other", LEASE, timedelta(hours=1)))) as writer:
        yield writer


def test_a_call_that_a_frozen_worker_had_not_committed_starts_elsewhere_and_once(
    frozen: Writer, other: Writer, freezer: Freezer, book: Book
) -> None:
    (started,) = other.ask(call())
    assert isinstance(started.verdict, Start)
    freezer.thaw()
    (late,) = frozen.answers(1)
    assert late.verdict == Waiting()
    assert [(row.holder, row.attempt) for row in book.rows()] == [("other", 1)]


def test_a_generation_is_raised_past_a_frozen_worker_whose_call_then_does_not_start(
    frozen: Writer, other: Writer, freezer: Freezer, book: Book
) -> None:
    assert other.ask(Raise("x", "n", 2)) == [None]
    freezer.thaw()
    (late,) = frozen.answers(1)
    assert (type(late.verdict).__name__, book.rows()) == ("Fenced", [])
