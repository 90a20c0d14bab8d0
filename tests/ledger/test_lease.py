"""Leases: renewed while their holder lives, reported when they are lost, and a lapse when nothing could be renewed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from fencepost_ledger import LedgerUnavailable, State, Term, lease
from fencepost_ledger.lease import LeaseKeeper
from fencepost_ledger.verdicts import Ask, Policy, Probe, Waiting
from services.holder import Book, Holder, call
from services.valve import Valve

IDEMPOTENT = Policy("idempotent")
LONG = 1000.0  # seconds: beyond every grace


class Clock:
    """The process's own clock, which only the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class Keeper(LeaseKeeper):
    """Turned by hand; what it reports is kept."""

    def __init__(self, dsn: str, holder: Holder, seconds: float | None = None) -> None:
        self.lost: list[list[Term]] = []
        self.lapses: list[bool] = []
        house = holder.house if seconds is None else replace(holder.house, lease=timedelta(seconds=seconds))
        super().__init__(dsn, house, holder.holding, self.lost.append, self.lapses.append)

    def turn(self) -> None:
        self._turn()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lease, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


@pytest.fixture
def keeper(holder: Holder, book: Book) -> Iterator[Keeper]:
    keeper = Keeper(book.dsn, holder)
    yield keeper
    keeper._drop_connection()


def seconds_left(book: Book) -> list[float]:
    left = "extract(epoch FROM lease_until - clock_timestamp())::float"
    return [row[0] for row in book.ask(f"SELECT {left} FROM fencepost.calls ORDER BY call_index")]


def test_every_call_in_flight_is_renewed(holder: Holder, book: Book, keeper: Keeper) -> None:
    for n in range(3):
        holder.start(call(f"e{n}", call_index=n))
    book.lease_over()
    keeper.turn()
    assert all(29 < left <= 30 for left in seconds_left(book))
    assert (keeper.lost, keeper.lapses) == ([], [])


def test_the_thread_renews_on_its_own_well_within_the_lease(holder: Holder, book: Book) -> None:
    holder.start(call())
    before = book.row().lease_until
    keeper = Keeper(book.dsn, holder)
    keeper._pause = 0.01
    keeper.start()
    book.wait(lambda: book.row().lease_until != before)
    keeper.stop()
    keeper.join(20)
    assert not keeper.is_alive()
    assert keeper._pause <= 30 / 3


def test_a_call_that_is_renewed_is_never_lost_however_long_it_runs(holder: Holder, other: Holder, book: Book) -> None:
    item = call(policy=IDEMPOTENT)
    keeper = Keeper(book.dsn, holder)
    holder.start(item)
    for _ in range(3):
        book.lease_over()
        keeper.turn()
        assert other.look(item) == Waiting()
    keeper._drop_connection()


def test_a_renewal_is_no_change_of_state(holder: Holder, book: Book, keeper: Keeper) -> None:
    holder.start(call())
    before = book.row()
    keeper.turn()
    assert replace(book.row(), lease_until=before.lease_until) == before


def test_a_lease_that_was_over_comes_back_as_a_change_of_state(holder: Holder, book: Book, keeper: Keeper) -> None:
    holder.start(call())
    book.lease_over()
    for _ in range(2):
        keeper.turn()
    assert book.row().revision == 2


def test_what_a_probe_said_while_the_lease_was_over_is_not_believed_after_it_came_back(
    holder: Holder, other: Holder, book: Book, keeper: Keeper
) -> None:
    """Asleep for long, its holder came back, acted and died: "not done" was said before that."""
    item = call(policy=Policy(probed=True))
    holder.start(item)
    book.lease_over(LONG)
    asked = other.look(item)
    assert isinstance(asked, Ask)
    said = replace(item, probe=Probe(asked.row.revision, "not_done"))
    keeper.turn()
    assert other.look(said) == Waiting()
    book.lease_over(LONG)
    assert isinstance(other.look(said), Ask)


# --- lost -------------------------------------------------------------------------------------------------------------


def test_a_lost_call_is_reported_once_and_its_neighbours_are_renewed(
    holder: Holder, other: Holder, book: Book, keeper: Keeper
) -> None:
    lost = holder.start(call(policy=IDEMPOTENT))
    book.lease_over()
    other.start(call(policy=IDEMPOTENT))
    holder.start(call("e2", call_index=1))
    for _ in range(3):
        keeper.turn()
    assert keeper.lost == [[lost]]
    assert seconds_left(book)[1] > 29


@pytest.mark.parametrize("ruling", ["completed", "failed", "released"])
def test_a_call_that_others_called_unknown_and_ruled_on_is_lost(
    holder: Holder, other: Holder, book: Book, keeper: Keeper, ruling: str
) -> None:
    term = holder.start(call())
    book.lease_over()
    other.look(call())
    book.rule(ruling)
    keeper.turn()
    assert keeper.lost == [[term]]


def test_what_ended_is_not_lost(holder: Holder, book: Book, keeper: Keeper) -> None:
    term = holder.run(call())
    keeper._report([term], set())  # it ended between the renewal and the look
    keeper.turn()
    assert keeper.lost == []


def test_a_row_that_its_own_writer_is_writing_is_neither_waited_for_nor_lost(
    holder: Holder, book: Book, keeper: Keeper
) -> None:
    term = holder.start(call())
    with holder.connection.transaction():
        holder.finalize(term)
        holder.holding.grant(term)  # as until the commit
        holder.holding.keep()
        keeper.turn()
    assert keeper.lost == []
    assert book.states() == [State.completed]


def test_a_later_attempt_of_a_lost_call_is_renewed(holder: Holder, other: Holder, book: Book, keeper: Keeper) -> None:
    item = call(policy=IDEMPOTENT)
    first = holder.start(item)
    book.lease_over()
    other.start(item)
    keeper.turn()
    book.lease_over()
    second = holder.start(item)
    book.lease_over()
    keeper.turn()
    assert (first.attempt, second.attempt) == (1, 3)
    assert keeper.lost == [[first]]
    assert seconds_left(book)[0] > 29


# --- lapse ------------------------------------------------------------------------------------------------------------


def test_a_whole_lease_without_a_renewal_is_a_lapse_and_the_next_renewal_ends_it(
    holder: Holder, book: Book, clock: Clock
) -> None:
    holder.start(call())
    keeper = Keeper("postgresql://nobody@127.0.0.1:1/none", holder)
    for clock.now in (10, 20, 29.9):
        keeper.turn()
    assert keeper.lapses == []
    for clock.now in (30, 40):
        keeper.turn()
    assert keeper.lapses == [True]
    keeper._dsn = book.dsn
    for clock.now in (50, 60):
        keeper.turn()
    assert keeper.lapses == [True, False]
    keeper._drop_connection()


def test_a_lapse_is_found_when_the_lease_is_over_and_not_a_turn_later(
    holder: Holder, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A try that hangs counts until its end: what is judged is the time after it."""
    holder.start(call())
    keeper = Keeper("postgresql://nobody@127.0.0.1:1/none", holder)

    def hang(_terms: Any) -> None:
        clock.now += 7
        raise LedgerUnavailable("no answer")

    monkeypatch.setattr(keeper, "_renew", hang)
    while not keeper.lapses:
        clock.now += keeper._pause
        keeper.turn()
    assert clock.now < 30 + 7.5


def test_without_calls_in_flight_nothing_lapses(holder: Holder, clock: Clock) -> None:
    keeper = Keeper("postgresql://nobody@127.0.0.1:1/none", holder)
    for clock.now in (100, 200):
        keeper.turn()
    assert keeper.lapses == []


@pytest.mark.faults
def test_a_frozen_server_is_a_lapse_and_leases_go_on_when_it_thaws(holder: Holder, book: Book) -> None:
    """Frozen, it keeps the connection and says nothing: neither TCP nor the server's own time-out ends the wait."""
    holder.start(call())
    lapsed, renewed = threading.Event(), threading.Event()
    with closing(Valve(book.dsn)) as valve:
        keeper = Keeper(valve.dsn, holder, seconds=0.8)
        keeper._on_lapse = lambda lapses: (lapsed if lapses else renewed).set()
        keeper.start()
        book.wait(lambda: seconds_left(book)[0] < 5)  # renewed for 0.8 seconds
        valve.shut()
        assert lapsed.wait(20)
        valve.open()
        assert renewed.wait(20)
        keeper.stop()
        keeper.join(20)
    assert not keeper.is_alive()


def test_own_live_leases_are_no_orphans_to_a_process_that_starts_again(new_holder: Any, book: Book) -> None:
    """Holder ids are unique per process start: the successor waits for its predecessor's lease like anybody else."""
    predecessor, successor = new_holder(), new_holder()
    predecessor.start(call(policy=IDEMPOTENT))
    assert successor.look(call(policy=IDEMPOTENT)) == Waiting()
