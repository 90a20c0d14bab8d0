"""What a person decides about an unknown outcome holds for that attempt, against everybody who comes later."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from fencepost_ledger import CallRow, Desk, Moved, NotFound, Source, State, Term, sweep
from fencepost_ledger.verdicts import Policy, Probe, Replay, Settle, Start, Waiting
from fencepost_schemas import Refused
from services.holder import LOST, Book, Holder, call
from services.rulings import ANN, BOB, OTHERS, RULINGS, every_ruling

IDEMPOTENT = Policy("idempotent", max_attempts=9)


@pytest.fixture
def desk(database: str) -> Iterator[Desk]:
    with Desk(database) as desk:
        yield desk


@pytest.fixture
def term(holder: Holder) -> Term:
    """The term of an attempt that ended nobody knows how."""
    return holder.run(call(), "indeterminate")


# --- what a ruling does -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["null", "0", "false", '""', "[]", "{}", '"None"', '"\\u0000"', "1" + "0" * 400])
def test_a_result_that_a_person_gives_is_kept_exactly(term: Term, desk: Desk, book: Book, text: str) -> None:
    ruled = desk.resolve(book.row(), succeeded=f" {text}\n", **ANN)
    row = book.row()
    assert ruled == row
    assert (row.state, row.result, row.error, row.decided, row.revision) == (State.completed, text, None, True, 3)
    assert row.finished_at is not None


def test_what_a_person_found_undone_is_final(term: Term, desk: Desk, holder: Holder, book: Book) -> None:
    desk.resolve(book.row(), failed="not_there", message="no such ticket", evidence="log line 7", **ANN)
    row = book.row()
    assert (row.state, row.retryable, row.decided_evidence) == (State.failed, False, "log line 7")
    assert row.as_json()["error"] == {"code": "not_there", "message": "no such ticket", "detail": None}
    for item in (call(), call("e2", policy=IDEMPOTENT)):
        assert holder.look(item) == Replay(row)


def test_without_a_message_the_reason_is_it(term: Term, desk: Desk) -> None:
    ruled = desk.resolve(desk.call(term.key.hex()), failed="not_there", **ANN)
    assert ruled.as_json()["error"]["message"] == ANN["reason"]


def test_a_ruling_is_about_one_call_only(term: Term, desk: Desk, holder: Holder, book: Book) -> None:
    holder.run(call("e2", call_index=1), "indeterminate")
    ours, neighbour = book.rows()
    desk.resolve(ours, succeeded="1", **ANN)
    assert book.rows()[1] == neighbour


@every_ruling
def test_the_same_ruling_once_more_is_fine(term: Term, desk: Desk, book: Book, ruling: str) -> None:
    shown = book.row()
    first = RULINGS[ruling](desk, shown)
    assert RULINGS[ruling](desk, shown) == RULINGS[ruling](desk, first) == first


@pytest.mark.parametrize("other", [{"by": "bob"}, {"reason": "asked"}, {"evidence": "OPS-7"}], ids=str)
def test_another_word_makes_another_ruling(term: Term, desk: Desk, book: Book, other: dict[str, str]) -> None:
    shown = book.row()
    desk.resolve(shown, failed="not_there", **ANN)
    with pytest.raises(Moved, match="ruled by ann"):
        desk.resolve(shown, failed="not_there", **ANN | other)


def test_what_the_tool_said_after_a_release_is_not_taken_for_a_ruling(
    term: Term, desk: Desk, holder: Holder, book: Book
) -> None:
    """The row carries who released the call, and a result that happens to be the same."""
    shown = book.row()
    desk.release(shown, **ANN)
    holder.run(call(), result="1")
    for row in (shown, book.row()):
        with pytest.raises(Moved, match="is completed now"):
            desk.resolve(row, succeeded="1", **ANN)


def test_a_ruling_is_for_what_was_shown(term: Term, desk: Desk, holder: Holder, book: Book) -> None:
    shown = book.row()
    holder.run(call(policy=IDEMPOTENT), "indeterminate")  # another attempt, as unknown as the first
    before = book.row()
    with pytest.raises(Moved, match="is revision 4, not 2: nothing was changed, see `fencepost calls show"):
        desk.resolve(shown, failed="not_there", **ANN)
    assert book.row() == before


@pytest.mark.parametrize("state", ["completed", "failed"])
@every_ruling
def test_what_is_known_needs_no_ruling(holder: Holder, desk: Desk, book: Book, state: str, ruling: str) -> None:
    holder.run(call(), state)
    before = book.row()
    with pytest.raises(Moved, match=f"is {state} now, not indeterminate .attempt 1, revision 2.: nothing was changed"):
        RULINGS[ruling](desk, before)
    assert book.row() == before


@every_ruling
def test_what_still_runs_cannot_be_ruled_on(holder: Holder, desk: Desk, book: Book, ruling: str) -> None:
    holder.start(call())
    book.lease_over()
    with pytest.raises(Moved, match="is executing now"):
        RULINGS[ruling](desk, book.row())
    assert book.states() == [State.executing]


def test_a_call_that_is_forgotten_cannot_be_ruled_on(term: Term, desk: Desk, book: Book) -> None:
    shown = book.row()
    book.ask("DELETE FROM fencepost.calls")
    with pytest.raises(NotFound):
        desk.release(shown, **ANN)


# --- what a ruling withstands -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("other_ruling", OTHERS)
@every_ruling
def test_a_ruling_is_never_overwritten(term: Term, desk: Desk, book: Book, ruling: str, other_ruling: str) -> None:
    shown = book.row()
    RULINGS[ruling](desk, shown)
    before = book.row()
    for row in (shown, before):
        with pytest.raises(Moved, match="ruled by ann"):
            OTHERS[other_ruling](desk, row)
    assert book.row() == before


@pytest.mark.parametrize("state", ["completed", "failed", "indeterminate"])
@every_ruling
def test_a_late_truth_after_a_ruling_is_refused(
    holder: Holder, desk: Desk, book: Book, ruling: str, state: str
) -> None:
    late = holder.run(call(), "indeterminate")
    RULINGS[ruling](desk, book.row())
    before = book.row()
    assert holder.finalize(late, state) == LOST
    assert book.row() == before


@every_ruling
def test_a_late_truth_before_a_ruling_is_what_counts(
    term: Term, desk: Desk, holder: Holder, book: Book, ruling: str
) -> None:
    shown = book.row()
    assert holder.finalize(term).mine
    with pytest.raises(Moved, match="is completed now"):
        RULINGS[ruling](desk, shown)
    assert book.row().decided_by is None


def test_a_probe_that_comes_after_a_ruling_decides_nothing(
    holder: Holder, other: Holder, desk: Desk, book: Book
) -> None:
    item = call(policy=Policy(probed=True))
    holder.start(item)
    book.lease_over(1000)
    shown = book.row()
    other.look(replace(item, probe=Probe(shown.revision, "unknown")))
    desk.resolve(book.row(), failed="not_there", **ANN)
    found = other.look(replace(item, probe=Probe(shown.revision, "found", "1")))
    assert found == Replay(book.row())
    assert book.states() == [State.failed]


# --- a released call --------------------------------------------------------------------------------------------------


def test_a_released_call_runs_again_once(term: Term, desk: Desk, holder: Holder, other: Holder, book: Book) -> None:
    desk.release(book.row(), **ANN)
    assert book.unsettled() == []
    again = holder.start(call())
    assert again.attempt == 2
    assert other.look(call("e2")) == Waiting()
    assert holder.finalize(again).mine
    assert other.look(call("e3")) == Replay(book.row())


def test_a_release_holds_for_one_attempt(term: Term, desk: Desk, holder: Holder, other: Holder, book: Book) -> None:
    desk.release(book.row(), **ANN)
    again = holder.run(call(), "indeterminate")
    row = book.row()
    assert other.look(call("e2")) == Replay(row)
    assert (row.decided, row.decided_attempt, row.attempt) == (False, 1, 2)
    assert holder.finalize(again).mine, "nobody has ruled on this attempt: its truth is welcome"


def test_who_released_a_call_stays_on_it(term: Term, desk: Desk, holder: Holder, other: Holder, book: Book) -> None:
    ruling = desk.release(book.row(), evidence="nothing in the log", **ANN).ruling
    assert ruling is not None
    verdict = holder.look(call())
    assert isinstance(verdict, Start)
    assert verdict.ruling == ruling
    assert verdict.term is not None
    holder.finalize(verdict.term)
    assert (book.row().ruling, book.row().decided, book.row().decided_evidence) == (ruling, False, "nothing in the log")


def test_a_ruling_on_a_later_attempt_takes_the_place_of_the_earlier_one(
    term: Term, desk: Desk, holder: Holder, book: Book
) -> None:
    desk.release(book.row(), evidence="hearsay", **ANN)
    holder.run(call(), "indeterminate")
    desk.resolve(book.row(), succeeded="2", **BOB)
    row = book.row()
    assert (row.decided, row.decided_attempt, row.decided_by, row.decided_evidence) == (True, 2, "bob", None)


def test_a_release_that_has_been_used_cannot_be_repeated(term: Term, desk: Desk, holder: Holder, book: Book) -> None:
    """Were it fine, an operator's second key press would release an attempt that nobody was shown."""
    shown = book.row()
    desk.release(shown, **ANN)
    holder.run(call(), "indeterminate")
    with pytest.raises(Moved):
        desk.release(shown, **ANN)
    assert book.states() == [State.indeterminate]


# --- what is left to publish, and for how long it is remembered -------------------------------------------------------


def swept(book: Book, holder: Holder) -> list[CallRow]:
    found: list[CallRow] = []
    assert sweep(book.dsn, holder.house, found.extend) is not None
    return found


@pytest.mark.parametrize("ruling", ["succeeded", "failed"])
def test_a_ruling_is_published_by_the_next_sweep_until_it_is_acknowledged(
    term: Term, desk: Desk, holder: Holder, book: Book, ruling: str
) -> None:
    holder.do(Settle(term.execution_id, term.key, 2, undecided=True))
    assert swept(book, holder) == []
    ruled = RULINGS[ruling](desk, book.row())
    assert book.unsettled() == [(3, 2)]
    assert swept(book, holder) == [ruled]
    assert swept(book, holder) == [], "it is on its way"
    book.ask("UPDATE fencepost.unsettled SET since = since - interval '1 min'")
    book.ask("UPDATE fencepost.calls SET finished_at = finished_at - interval '1 min'")
    assert [row.key for row in swept(book, holder)] == [term.key]
    holder.do(Settle(term.execution_id, term.key, 3))
    assert book.unsettled() == []


def test_a_late_acknowledgement_of_the_unknown_outcome_does_not_settle_the_ruling(
    term: Term, desk: Desk, holder: Holder, book: Book
) -> None:
    desk.resolve(book.row(), succeeded="1", **ANN)
    holder.do(Settle(term.execution_id, term.key, 2, undecided=True))
    assert book.unsettled() == [(3, 2)]


@every_ruling
def test_a_ruling_is_remembered_for_as_long_as_a_call_that_starts_now(
    term: Term, desk: Desk, holder: Holder, book: Book, ruling: str
) -> None:
    book.ask(
        "UPDATE fencepost.calls SET started_at = started_at - interval '9 d', expires_at = expires_at - interval '9 d'"
    )
    RULINGS[ruling](desk, book.row())
    holder.do(Settle(term.execution_id, term.key, 3))
    ((hours,),) = book.ask("SELECT extract(epoch FROM expires_at - now()) / 3600 FROM fencepost.calls")
    assert 47 < hours <= 48
    swept(book, holder)
    assert len(book.rows()) == 1


# --- what may be said -------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "either"),
    "both": ({"succeeded": "1", "failed": "x"}, "either"),
    "nobody": ({"succeeded": "1", "by": " "}, "by: must say something"),
    "no reason": ({"succeeded": "1", "reason": ""}, "reason: must say something"),
    "in the name of the probe": ({"succeeded": "1", "by": "probe"}, "by: "),
    "by two lines": ({"succeeded": "1", "by": "ann\nbob"}, "by: "),
    "too much": ({"succeeded": "1", "reason": "x" * 5000}, "reason: has 5000 characters"),
    "U+0000": ({"succeeded": "1", "evidence": "a\0"}, "evidence: "),
    "half a character": ({"succeeded": "1", "reason": "\udcff"}, "reason: "),
    "no code": ({"failed": ""}, "code: "),
    "no JSON": ({"succeeded": "{"}, r"\$"),
    "a key twice": ({"succeeded": '{"a": [{"b": 1, "b": 2}]}'}, r"\$\.a\[0\]\.b: "),
    "no number": ({"succeeded": "[NaN]"}, r"\$\[0\]: "),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_kept_is_refused_and_changes_nothing(term: Term, desk: Desk, book: Book, case: str) -> None:
    said, reason = REFUSED[case]
    before = book.row()
    with pytest.raises(ValueError, match=reason):
        desk.resolve(before, **ANN | said)
    assert book.row() == before


def test_a_refused_result_names_its_path(term: Term, desk: Desk, book: Book) -> None:
    with pytest.raises(Refused) as refused:
        desk.resolve(book.row(), succeeded='{"a": 1e400}', **ANN)
    assert refused.value.path == "$.a"


@pytest.mark.parametrize(
    "change",
    [
        "decided_by = 'ann', decided_reason = 'x', decided_at = now()",  # of which attempt?
        "decided_by = 'ann', decided_reason = 'x', decided_at = now(), decided_attempt = attempt",  # and still unknown?
        "decided_evidence = 'hearsay'",
        "state = 'released'",  # by whom?
    ],
)
def test_the_tables_refuse_half_a_ruling(term: Term, book: Book, change: str) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        book.ask(f"UPDATE fencepost.calls SET {change}")


def test_an_event_is_traced_to_its_record(holder: Holder, desk: Desk, book: Book) -> None:
    holder.run(call(source=Source("tool.dispatch", 3, 1 << 40)))
    assert desk.origin(book.row()) == Source("tool.dispatch", 3, 1 << 40)
    assert desk.origin(replace(book.row(), event_id="forgotten")) is None


def test_an_event_that_came_in_process_has_no_record(term: Term, desk: Desk, book: Book) -> None:
    assert desk.origin(book.row()) is None
