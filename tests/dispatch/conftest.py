from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from typing import Protocol

import pytest
import pytest_asyncio

from fencepost_dispatch.line import Line
from fencepost_dispatch.settings import Settings
from services import answering
from services.answering import FakeWorker
from services.brokers import Broker
from services.holder import Book, Holder, emptied
from services.lines import MAIL, Gate, line


class HasTopics(Protocol):
    @property
    def dispatch(self) -> str: ...
    @property
    def outcome(self) -> str: ...
    @property
    def dead_letter(self) -> str: ...


@pytest.fixture
def settings(broker: Broker, topics: HasTopics) -> Settings:
    return Settings.load(
        kafka_bootstrap=broker.bootstrap,
        dispatch_topic=topics.dispatch,
        outcome_topic=topics.outcome,
        dead_letter_topic=topics.dead_letter,
    )


@pytest.fixture
def fake_worker(settings: Settings) -> Iterator[FakeWorker]:
    with answering.fake_worker(settings) as worker:
        yield worker


# --- the line in process ----------------------------------------------------------------------------------------------


@pytest.fixture
def book(module_database: str) -> Iterator[Book]:
    with closing(Book(emptied(module_database))) as book:
        book.open()
        yield book


@pytest.fixture
def gate() -> Gate:
    return Gate(MAIL)


@pytest_asyncio.fixture
async def gated(book: Book, gate: Gate) -> AsyncIterator[Line]:
    async with line(book.dsn, gate.tool) as opened:
        yield opened
        gate.let_go()


@pytest.fixture
def elsewhere(book: Book) -> Iterator[Holder]:
    """Another process that runs calls of the same ledger."""
    with closing(Holder(book.dsn, "elsewhere")) as holder:
        yield holder
