"""What is too old or too late never starts, and what is recorded is answered all the same; by the database's clock."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import fencepost_ledger
from fencepost_dispatch.settings import Settings
from fencepost_ledger import State, sweep
from fencepost_ledger.admit import _barred
from fencepost_ledger.calls import Source
from fencepost_ledger.case import House
from fencepost_ledger.verdicts import Admit, Expired, Policy, Replay, Settle, Start, Waiting
from fencepost_worker.doctor import examine
from fencepost_worker.worker import TopicsUnfit, run_worker
from services.brokers import Kafka
from services.holder import Book, Holder, call

TTL = timedelta(hours=48)
NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
MILLISECOND, MICROSECOND = timedelta(milliseconds=1), timedelta(microseconds=1)
HOUSE = House("sweeper", timedelta(days=99), TTL)
POLICIES = {"protected": Policy(), "idempotent": Policy("idempotent"), "probed": Policy(probed=True)}
every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)


def produced(at: datetime | None, **more: Any) -> Admit:
    stamp = None if at is None else round(at.timestamp() * 1000)
    return call(source=Source("tool.dispatch", 0, 0, stamp), **more)


def code(verdict: object) -> str | None:
    return getattr(verdict, "code", None)


# --- to the last moment -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "at, expected",
    [
        (NOW - TTL, None),
        (NOW - TTL - MILLISECOND, "beyond_memory"),
        (NOW - TTL + MILLISECOND, None),
        (NOW + timedelta(days=9), None),
        (datetime(1970, 1, 1, tzinfo=UTC), "beyond_memory"),
        (datetime(1960, 1, 1, tzinfo=UTC), "beyond_memory"),
        (datetime(9999, 1, 1, tzinfo=UTC), None),
        (None, None),
    ],
    ids=str,
)
def test_an_event_is_expired_when_it_is_older_than_the_memory(at: datetime | None, expected: str | None) -> None:
    assert code(_barred(produced(at), False, NOW, TTL)) == expected


@pytest.mark.parametrize("stamp", [-1, -(2**63), 0, 2**63 - 1], ids=str)
def test_any_timestamp_of_a_record_is_judged(stamp: int) -> None:
    verdict = _barred(call(source=Source("t", 0, 0, stamp)), False, NOW, TTL)
    assert code(verdict) == ("beyond_memory" if stamp <= 0 else None)


@pytest.mark.parametrize(
    "deadline, expected", [(NOW, None), (NOW - MICROSECOND, "deadline_passed"), (NOW + MICROSECOND, None)], ids=str
)
def test_a_call_is_not_started_after_its_deadline(deadline: datetime, expected: str | None) -> None:
    assert code(_barred(call(deadline=deadline), False, NOW, TTL)) == expected


def test_what_is_refused_for_good_is_said_before_what_is_late() -> None:
    late = produced(NOW - 2 * TTL, deadline=NOW - TTL)
    assert code(_barred(late, True, NOW, TTL)) == "unknown_execution"
    assert code(_barred(late, False, NOW, TTL)) == "deadline_passed"


# --- by the database's clock ------------------------------------------------------------------------------------------


def database_now(book: Book) -> datetime:
    ((now,),) = book.ask("SELECT clock_timestamp()")
    assert isinstance(now, datetime)
    return now


def test_the_databases_clock_decides(holder: Holder, book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    now = database_now(book)
    monkeypatch.setattr("time.time", lambda: 0.0)
    minute = timedelta(minutes=1)
    assert isinstance(holder.look(produced(now - TTL + minute, deadline=now + minute)), Start)
    for late in (produced(now - TTL - 2 * MILLISECOND, event_id="e2"), call("e3", deadline=now - MICROSECOND)):
        assert isinstance(holder.look(replace(late, call_index=1)), Expired)


CLOCKS = {
    "time.time",
    "time.time_ns",
    "time.localtime",
    "datetime.now",
    "datetime.today",
    "datetime.utcnow",
    "date.today",
}


def test_the_ledger_never_looks_at_this_machines_clock() -> None:
    """Only `clock.py` does, which tells how far it is from the database's."""
    sources = [path for path in Path(fencepost_ledger.__file__).parent.rglob("*.py") if path.name != "clock.py"]
    called = {
        f"{path.name}: {ast.unparse(node.func)}"
        for path in sources
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).removeprefix("datetime.") in CLOCKS
    }
    assert len(sources) > 15
    assert not called


# --- older than the memory, and on record -----------------------------------------------------------------------------


def too_old(book: Book, **more: Any) -> Admit:
    return produced(database_now(book) - TTL - timedelta(hours=1), **more)


@every_policy
@pytest.mark.parametrize("state", [State.completed, State.failed, State.indeterminate])
def test_a_recorded_call_is_answered_to_an_event_that_is_older_than_the_memory(
    holder: Holder, other: Holder, book: Book, state: State, policy: Policy
) -> None:
    """Also a retryable failure, and an idempotent call of unknown outcome: they are told, and not run again."""
    more = {"retryable": True} if state is State.failed else {}
    holder.run(call(policy=policy), state, **more)
    for item in (too_old(book, policy=policy), call("late", policy=policy, deadline=NOW - timedelta(days=9999))):
        verdict = other.look(item)
        assert isinstance(verdict, Replay)
        assert (verdict.row.state, verdict.row.attempt) == (state, 1)


@every_policy
def test_an_event_that_is_older_than_the_memory_waits_for_a_call_that_still_runs(
    holder: Holder, other: Holder, book: Book, policy: Policy
) -> None:
    holder.start(call(policy=policy))
    assert other.look(too_old(book, policy=policy)) == Waiting()


def test_a_released_call_does_not_start_by_an_event_that_is_older_than_the_memory(holder: Holder, book: Book) -> None:
    holder.run(call(), "indeterminate")
    book.rule("released")
    assert code(holder.look(too_old(book))) == "beyond_memory"
    assert isinstance(holder.look(call("e2")), Start)


# --- a call that is forgotten cannot be started by anything that asked for it -----------------------------------------


@every_policy
@pytest.mark.parametrize("hours", [1, 47, 48, 49, 50, 9999])
def test_no_event_starts_its_call_a_second_time_however_late_it_comes(
    holder: Holder, book: Book, hours: int, policy: Policy
) -> None:
    at = database_now(book)
    term = holder.run(produced(at, policy=policy))
    holder.do(Settle(term.execution_id, term.key, 2))
    book.age(hours)
    sweep(book.dsn, HOUSE, lambda _: None)
    verdict = holder.look(produced(at - timedelta(hours=hours), policy=policy))
    assert isinstance(verdict, Replay if hours <= 48 else Expired)


def test_an_event_that_waited_in_the_topic_while_its_call_was_forgotten_is_expired(holder: Holder, book: Book) -> None:
    """Two events ask for one call; the second is delivered when the first has been forgotten with the call."""
    at = database_now(book)
    term = holder.run(produced(at))
    holder.do(Settle(term.execution_id, term.key, 2))
    book.age(50)
    sweep(book.dsn, HOUSE, lambda _: None)
    assert code(holder.look(produced(at - timedelta(hours=49)))) == "beyond_memory"
    assert not book.rows()


# --- the topic must not replay what is forgotten: asked at start and by the doctor ------------------------------------

HOUR = 3_600_000  # milliseconds
TOO_LONG = "keeps records for 72 h, the ledger remembers 48 h: an old call could be replayed unknown"


@pytest.fixture
def settings(real_kafka_broker: Kafka, book: Book, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Settings]:
    """Settings of a dispatch topic that keeps records for `retention` milliseconds."""

    class Started:
        def __init__(self, *_: object) -> None:
            pass

        async def run(self) -> int:
            return 0

    monkeypatch.setattr("fencepost_worker.worker.Worker", Started)
    new = real_kafka_broker.new_topic

    def made(retention: int, **more: Any) -> Settings:
        config = {"retention.ms": str(retention), "segment.ms": str(HOUR)}
        topics: dict[str, Any] = {
            "dispatch_topic": new(config=config),
            "outcome_topic": new(),
            "dead_letter_topic": new(),
        }
        return Settings(kafka_bootstrap=real_kafka_broker.bootstrap, ledger_dsn=book.dsn, **topics, **more)

    return made


def said(settings: Settings) -> tuple[str, str]:
    """What the doctor says of the dispatch topic's retention."""
    findings, reached = examine(settings)
    assert reached
    (found,) = [one for one in findings if one.subject == settings.dispatch_topic and "remembers" in one.text]
    return found.level, found.text


@pytest.mark.kafka
async def test_a_topic_that_outlives_the_memory_is_refused_at_start_and_by_the_doctor(
    settings: Callable[..., Settings],
) -> None:
    strict = settings(72 * HOUR)
    with pytest.raises(
        TopicsUnfit, match=rf"{TOO_LONG}; lower retention.ms to less than 172800000, or raise FENCEPOST_TTL"
    ):
        await run_worker(strict, [])
    assert said(strict) == ("error", TOO_LONG)
    # The same topic, where somebody has decided otherwise
    tolerant = strict.model_copy(update={"strict": False})
    assert await run_worker(tolerant, []) == 0
    assert said(tolerant) == ("warning", TOO_LONG)
    patient = strict.model_copy(update={"ttl_hours": 96.0})
    assert await run_worker(patient, []) == 0
    assert said(patient)[0] == "ok"


@pytest.mark.kafka
async def test_a_topic_that_keeps_everything_outlives_every_memory(settings: Callable[..., Settings]) -> None:
    for_ever = settings(-1, ttl_hours=100_000.0)
    with pytest.raises(TopicsUnfit, match="keeps records for ever"):
        await run_worker(for_ever, [])
    assert said(for_ever)[0] == "error"
