"""What the ledger tells of its own work: backlog, batches, leases, and why it cannot be used."""

from __future__ import annotations

import threading

import pytest

from fencepost_ledger import State, sweep
from fencepost_ledger.batch import GroupCommit
from fencepost_ledger.lease import LeaseKeeper
from fencepost_ledger.sweep import Sweeper
from fencepost_ledger.verdicts import Settle
from fencepost_ledger.watch import Backlog, Watch
from services.holder import Book, Holder, call

NOWHERE = "postgresql://nobody:sesame@127.0.0.1:1/none"


class Told(Watch):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, float]] = []
        self.renewals: list[int] = []
        self.losses: list[int] = []
        self.backlogs: list[Backlog] = []
        self.troubles: list[str | None] = []
        self.swept_once = threading.Event()

    def committed(self, items: int, seconds: float) -> None:
        self.batches.append((items, seconds))

    def renewed(self, leases: int) -> None:
        self.renewals.append(leases)

    def lost(self, leases: int) -> None:
        self.losses.append(leases)

    def found(self, backlog: Backlog) -> None:
        self.backlogs.append(backlog)

    def swept(self, trouble: str | None) -> None:
        self.troubles.append(trouble)
        self.swept_once.set()


@pytest.fixture
def told() -> Told:
    return Told()


def backlog(holder: Holder, book: Book) -> Backlog:
    told = Told()
    assert sweep(book.dsn, holder.house, lambda _: None, told) is not None
    (found,) = told.backlogs
    return found


def test_what_runs_and_what_is_settled_is_no_backlog(holder: Holder, book: Book) -> None:
    holder.start(call("e1"))
    term = holder.run(call("e2", call_index=1))
    holder.do(Settle(term.execution_id, term.key, 2))
    assert backlog(holder, book) == Backlog(0, 0.0, 0)


def test_an_end_is_unsettled_until_the_brokers_have_its_outcome(holder: Holder, book: Book) -> None:
    for number, state in enumerate(("completed", "failed", "indeterminate")):
        holder.run(call(f"e{number}", call_index=number), state)
    assert backlog(holder, book).unsettled == 3


def test_an_unknown_end_is_undecided_until_somebody_rules_whoever_knows_of_it(holder: Holder, book: Book) -> None:
    term = holder.run(call(), "indeterminate")
    holder.do(Settle(term.execution_id, term.key, 2, undecided=True))
    book.ask("UPDATE fencepost.calls SET started_at = started_at - interval '90 s'")
    found = backlog(holder, book)
    assert (found.undecided, found.unsettled) == (1, 0)
    assert 90 <= found.oldest_undecided < 120
    book.rule("completed")
    assert backlog(holder, book) == Backlog(0, 0.0, 1)


def test_each_batch_is_told_with_its_size_and_time(holder: Holder, book: Book, told: Told) -> None:
    answered = threading.Event()
    writer = GroupCommit(book.dsn, holder.house, holder.holding, lambda _: answered.set(), lambda _: None, watch=told)
    writer.start()
    writer.submit([(call(f"e{number}", call_index=number), None) for number in range(3)])
    assert answered.wait(20)
    writer.stop()
    writer.join(20)
    ((items, seconds),) = told.batches
    assert items == 3
    assert 0 < seconds < 20


def test_renewals_and_losses_are_told(holder: Holder, book: Book, told: Told) -> None:
    for number in range(3):
        holder.start(call(f"e{number}", call_index=number))
    keeper = LeaseKeeper(book.dsn, holder.house, holder.holding, lambda _: None, lambda _: None, watch=told)
    keeper._turn()
    book.ask("UPDATE fencepost.calls SET holder = 'somebody else' WHERE call_index = 0")
    keeper._turn()
    keeper._turn()
    keeper._drop_connection()
    assert (told.renewals, told.losses) == ([3, 2, 2], [1])
    assert book.states() == [State.executing] * 3


@pytest.mark.parametrize("broken", [False, True])
def test_why_the_ledger_cannot_be_swept_is_one_line_with_its_cure(
    holder: Holder, book: Book, told: Told, broken: bool
) -> None:
    if broken:
        book.ask("ALTER TABLE fencepost.unsettled RENAME TO gone")
    sweeper = Sweeper(book.dsn if broken else NOWHERE, holder.house, 0.01, lambda _: None, told)
    sweeper.start()
    assert told.swept_once.wait(20)
    sweeper.stop()
    sweeper.join(20)
    if broken:
        book.ask("ALTER TABLE fencepost.gone RENAME TO unsettled")
    trouble = told.troubles[0]
    assert trouble is not None
    assert ("fencepost migrate" if broken else "FENCEPOST_LEDGER_DSN") in trouble
    assert "sesame" not in trouble
    assert "\n" not in trouble
