"""Holders of one ledger, and the book that shows what they wrote. One execution is open, of one org."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import count
from typing import Any

import pytest

from services.holder import Book, Holder, Writer, emptied

NewHolder = Callable[..., Holder]


@pytest.fixture
def database(module_database: str) -> str:
    """One database for all tests of a module, emptied for each."""
    return emptied(module_database)


@pytest.fixture
def book(database: str) -> Iterator[Book]:
    with closing(Book(database)) as book:
        book.open()
        yield book


@pytest.fixture
def new_holder(book: Book) -> Iterator[NewHolder]:
    """Makes holders, each one a process start of its own: ``h1``, ``h2`` …"""
    numbers = count(1)
    with ExitStack() as stack:

        def new(**options: Any) -> Holder:
            return stack.enter_context(closing(Holder(book.dsn, f"h{next(numbers)}", **options)))

        yield new


@pytest.fixture
def holder(new_holder: NewHolder) -> Holder:
    return new_holder()


@pytest.fixture
def other(new_holder: NewHolder, holder: Holder) -> Holder:
    return new_holder()


@pytest.fixture
def writer(book: Book, holder: Holder) -> Iterator[Writer]:
    """A writer thread in the name of `holder`."""
    with closing(Writer(book.dsn, holder.house)) as writer:
        yield writer
