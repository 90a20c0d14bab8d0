"""What an operator does about unknown outcomes, on the command line."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fencepost_dispatch import Line, Settings, tool
from fencepost_ledger import State
from fencepost_ledger.sweep import _LOCK
from fencepost_schemas import Dispatch
from services.commands import complaint, done, fencepost, told
from services.holder import Book, Holder, call
from services.postgres import Postgres

WHO = ["--by", "ann", "--reason", "looked in the ticket system"]
NOWHERE = "postgresql://ann:hunter2@127.0.0.1:1/x"


@pytest.fixture(scope="module")
def module_database(postgres: Postgres) -> Iterator[str]:
    name = postgres.new_database(postgres.migrated())
    yield postgres.dsn(name)
    postgres.drop(name)


@pytest.fixture
def book(module_database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Book]:
    for name in [name for name in os.environ if name.startswith("FENCEPOST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FENCEPOST_LEDGER_DSN", module_database)
    with closing(Book(module_database)) as book:
        for table in ("executions", "generations", "events", "calls", "unsettled"):
            book.ask(f"DELETE FROM fencepost.{table}")
        book.open()
        yield book


@pytest.fixture
def holder(book: Book) -> Iterator[Holder]:
    with closing(Holder(book.dsn, "h1")) as holder:
        yield holder


@pytest.fixture
def key(holder: Holder) -> str:
    """Of a call that ended nobody knows how."""
    return holder.run(call(), "indeterminate").key.hex()


@pytest.fixture
def keys(holder: Holder) -> list[str]:
    """Of four such calls."""
    return [holder.run(call(f"e{n}", call_index=n), "indeterminate").key.hex() for n in range(4)]


# --- resolve ----------------------------------------------------------------------------------------------------------


def test_a_call_is_resolved_by_any_unique_beginning_of_its_key(key: str, book: Book) -> None:
    text = done("calls", "resolve", key[:8].upper(), "--succeeded", '{"id": 7}', "--evidence", "OPS-7", *WHO)
    assert text.startswith(f"{key[:12]} is completed: ")
    row = book.row()
    assert (row.state, row.result, row.decided_by) == (State.completed, '{"id":7}', "ann")
    assert (row.decided_reason, row.decided_evidence) == (WHO[3], "OPS-7")


@pytest.mark.parametrize("text", ["null", "0", "false", '""', "[]", "{}", '"None"', '"\\u0000"', "1" + "0" * 400])
def test_any_json_is_a_result(key: str, book: Book, text: str) -> None:
    told("calls", "resolve", key, "--succeeded", text, *WHO)
    assert book.row().result == text


def test_a_large_result_comes_from_stdin(key: str, book: Book) -> None:
    text = json.dumps(["x" * 200_000])
    done("calls", "resolve", key, "--succeeded", "-", *WHO, input=text)
    assert book.row().result == text


def test_a_result_larger_than_is_kept_is_refused(key: str, book: Book) -> None:
    said = complaint(2, "calls", "resolve", key, "--succeeded", "-", *WHO, input=json.dumps("x" * 300_000))
    assert "FENCEPOST_INLINE_RESULT_BYTES" in said
    assert book.row().decided_by is None


def test_a_failure_has_a_code_and_the_reason_for_its_message(key: str, book: Book) -> None:
    row = told("calls", "resolve", key, "--failed", "not_there", *WHO)
    assert row["error"] == {"code": "not_there", "message": WHO[3], "detail": None}
    assert (row["state"], row["retryable"], row["decided_attempt"], row["changed"]) == ("failed", False, 1, True)


def test_a_failure_may_have_a_message_of_its_own(key: str) -> None:
    row = told("calls", "resolve", key, "--failed", "not_there", "--message", "no ticket", *WHO)
    assert row["error"]["message"] == "no ticket"


@pytest.mark.parametrize(
    "text, path", [("{", "$"), ('{"a": [NaN]}', "$.a[0]: "), ('{"a": 1, "a": 2}', "$.a: "), ("1e400", "$: ")]
)
def test_a_result_that_is_no_json_is_refused_with_its_path(key: str, book: Book, text: str, path: str) -> None:
    assert path in complaint(2, "calls", "resolve", key, "--succeeded", text, *WHO)
    assert book.row().decided_by is None


@pytest.mark.parametrize(
    "words, named",
    [
        (["--failed", "x"], "--by, --reason"),
        (["--failed", "x", "--by", "ann"], "--reason"),
        ([*WHO], "either --succeeded or --failed"),
        (["--failed", "x", "--succeeded", "1", *WHO], "either --succeeded or --failed"),
        (["--succeeded", "1", "--message", "m", *WHO], "--message"),
        (["--failed", "x", "--from", "f"], "KEY comes from the file"),
        (["--failed", "x", "--by", "ann\nbob", "--reason", "r"], "by: "),
        (["--failed", "x", "--by", "ann", "--reason", " "], "reason: must say something"),
        (["--failed", "x", "--by", "ann", "--reason", "\udcff"], "reason: "),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2_and_changes_nothing(
    key: str, book: Book, words: list[str], named: str
) -> None:
    assert named in complaint(2, "calls", "resolve", key, *words)
    assert book.row().decided_by is None


def test_a_ruling_is_never_overwritten(key: str, book: Book) -> None:
    done("calls", "resolve", key, "--failed", "not_there", *WHO)
    before = book.row()
    for words in (["resolve", key, "--succeeded", "1"], ["resolve", key, "--failed", "other"], ["release", key]):
        said = complaint(1, "calls", *words, "--by", "bob", "--reason", "asked")
        assert f"{key[:12]} is failed now, not indeterminate (attempt 1, revision 3, ruled by ann)" in said
        assert f"see `fencepost calls show {key[:12]}`" in said
    assert book.row() == before


def test_the_same_ruling_once_more_is_fine_and_changes_nothing(key: str, book: Book) -> None:
    words = ["calls", "resolve", key, "--failed", "not_there", *WHO]
    done(*words)
    before = book.row()
    assert done(*words) == f"{key[:12]} was ruled failed already\n"
    assert told(*words)["changed"] is False
    assert book.row() == before


def test_an_operator_may_insist_on_what_was_shown(key: str, book: Book) -> None:
    [listed] = [json.loads(line) for line in done("calls", "list", "--state", "indeterminate", "--json").splitlines()]
    shown = told("calls", "show", key)
    assert listed["revision"] == shown["revision"] == 2
    words = ["calls", "resolve", key, "--failed", "not_there", *WHO]
    assert "is revision 2, not 1: nothing was changed" in complaint(1, *words, "--revision", 1)
    assert told(*words, "--revision", 2)["revision"] == 3


@pytest.mark.parametrize("words", [["resolve", "--failed", "x"], ["release"]])
def test_what_is_not_there_is_exit_1_and_what_is_no_key_exit_2(book: Book, words: list[str]) -> None:
    assert "no call begins with abcdef" in complaint(1, "calls", *words, "abcdef", *WHO)
    assert "xyz" in complaint(2, "calls", *words, "xyz", *WHO)


def test_a_beginning_of_two_keys_names_no_call(keys: list[str], book: Book) -> None:
    book.ask("UPDATE fencepost.calls SET key = decode('abcdef' || substr(encode(key, 'hex'), 7), 'hex')")
    book.ask("UPDATE fencepost.unsettled SET key = decode('abcdef' || substr(encode(key, 'hex'), 7), 'hex')")
    assert "more than one call" in complaint(1, "calls", "release", "abcdef", *WHO)
    assert book.states() == [State.indeterminate] * 4


# --- many -------------------------------------------------------------------------------------------------------------


def lines(*rulings: dict[str, Any] | str) -> str:
    return "\n".join(ruling if isinstance(ruling, str) else json.dumps(ruling) for ruling in rulings) + "\n"


def test_many_are_resolved_from_a_file_and_a_bad_line_stops_no_other(
    keys: list[str], book: Book, tmp_path: Path
) -> None:
    who = {"by": "ann", "reason": "looked"}
    file = tmp_path / "rulings.jsonl"
    file.write_text(
        lines(
            {"key": keys[0], "succeeded": None, **who, "evidence": "OPS-1"},
            "",
            "not json",
            {"key": keys[1], "succeded": 1, **who},
            {"key": keys[1], "failed": "not_there", "by": "ann"},
            {"key": keys[1], "succeeded": 1, "failed": "x", **who},
            {"key": keys[1], "failed": "not_there", "revision": 9, **who},
            {"key": keys[1], "failed": "not_there", "revision": "2", **who},
            {"key": "abcdef012345", "failed": "not_there", **who},
            '{"key": "abcd", "succeeded": {"a": 1, "a": 2}}',
            "[1]",
            {"key": keys[2][:20], "failed": "not_there", "message": "none", "revision": 2, **who},
        )
    )
    result = fencepost("calls", "resolve", "--from", file)
    assert result.exit_code == 1
    assert [line.split()[:3] for line in result.stdout.splitlines()] == [
        [keys[0][:12], "is", "completed:"],
        [keys[2][:12], "is", "failed:"],
    ]
    *named, summary = result.stderr.splitlines()
    numbers = [int(line.removeprefix(f"{file}:").split(":")[0]) for line in named]
    assert numbers == [3, 4, 5, 6, 7, 8, 9, 10, 11]
    for line, word in zip(named, ("$", "succeded", "reason", "either", "revision 2, not 9", "revision"), strict=False):
        assert word in line
    assert "$.succeeded.a: duplicate key" in named[7]
    assert summary == "resolved 2 of 11 calls"
    assert book.states() == [State.completed, State.indeterminate, State.failed, State.indeterminate]


def test_a_rerun_of_the_same_file_changes_nothing(keys: list[str], book: Book, tmp_path: Path) -> None:
    file = tmp_path / "rulings.jsonl"
    file.write_text(lines(*({"key": key, "succeeded": n, "revision": 2} for n, key in enumerate(keys))))
    first = [
        json.loads(line) for line in fencepost("calls", "resolve", "--from", file, *WHO, "--json").stdout.splitlines()
    ]
    assert [(row["line"], row["ok"], row["changed"], row["result"]) for row in first] == [
        (n + 1, True, True, n) for n in range(4)
    ]
    before = book.rows()
    result = fencepost("calls", "resolve", "--from", file, *WHO, "--json")
    assert (result.exit_code, result.stderr) == (0, "resolved 4 of 4 calls\n")
    again = [json.loads(line) for line in result.stdout.splitlines()]
    assert again == [row | {"changed": False} for row in first]
    assert book.rows() == before


def test_what_a_line_says_goes_before_what_the_options_say(keys: list[str], book: Book) -> None:
    text = lines({"key": keys[0], "failed": "x", "by": "bob"}, {"key": keys[1], "failed": "x"}, {"key": keys[2]})
    result = fencepost("calls", "resolve", "--from", "-", *WHO, "--json", input=text)
    assert result.exit_code == 1
    assert [row.decided_by for row in book.rows()] == ["bob", "ann", None, None]
    failed = json.loads(result.stdout.splitlines()[2])
    assert (failed["line"], failed["ok"]) == (3, False)
    assert "either" in failed["error"]


def test_a_file_that_is_not_there_is_exit_2(book: Book) -> None:
    assert "/nowhere/rulings.jsonl" in complaint(2, "calls", "resolve", "--from", "/nowhere/rulings.jsonl")


# --- release ----------------------------------------------------------------------------------------------------------


def test_a_released_call_is_listed_as_such_and_waits_for_its_next_delivery(
    key: str, book: Book, holder: Holder
) -> None:
    assert "it starts again, once, with its next delivery" in done("calls", "release", key, "--evidence", "OPS-7", *WHO)
    assert told("calls", "list", "--state", "released")["decided_evidence"] == "OPS-7"
    assert book.unsettled() == []
    assert holder.start(call()).attempt == 2


def test_releasing_twice_releases_once(key: str, book: Book, holder: Holder) -> None:
    words = ["calls", "release", key, *WHO]
    assert [told(*words)["changed"] for _ in range(2)] == [True, False]
    holder.run(call(), "indeterminate")
    assert "is revision 5, not 2" in complaint(1, *words, "--revision", 2)
    assert told(*words)["changed"] is True
    assert book.row().decided_attempt == 2


def test_a_replay_of_what_came_from_no_record_says_so_and_the_release_holds(key: str, book: Book) -> None:
    result = fencepost("calls", "release", key, "--replay", *WHO, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["replayed"] is False
    assert result.stderr == (
        "the release holds, but its event e1 came from no record that is known: dispatch the call again\n"
    )
    assert book.states() == [State.released]


def test_releasing_needs_who_and_why(key: str, book: Book) -> None:
    for words in (["--by", "ann"], ["--reason", "looked"]):
        complaint(2, "calls", "release", key, *words)
    assert book.states() == [State.indeterminate]


# --- whoever runs it meanwhile ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ruling", [["--failed", "not_there"], ["--succeeded", '"seen"']])
async def test_a_worker_whose_call_was_ruled_on_meanwhile_reports_the_ruling(book: Book, ruling: list[str]) -> None:
    entered, go = asyncio.Event(), asyncio.Event()

    @tool("desk.create")
    async def create() -> str:
        entered.set()
        await go.wait()
        return "mine"

    event = Dispatch(
        event_id="e", execution_id="x", node_id="n", call_index=0, generation=1, tool="desk.create", arguments={}
    )
    async with Line([create], Settings.load()) as line:
        running = asyncio.create_task(line.run(event))
        await entered.wait()
        book.ask("UPDATE fencepost.calls SET state = 'indeterminate', lease_until = NULL, revision = 2, error = '{}'")
        await asyncio.to_thread(done, "calls", "resolve", book.row().key.hex(), *ruling, *WHO)
        go.set()
        outcome = await running
    assert (outcome.executed, outcome.replayed) == (False, True)
    assert outcome.resolution is not None
    assert outcome.resolution.by == "ann"
    assert outcome.result == ("seen" if "--succeeded" in ruling else None)


# --- services that are away -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words", [["calls", "resolve", "abcd", "--failed", "x", *WHO], ["calls", "release", "abcd", *WHO], ["sweep"]]
)
def test_an_unreachable_ledger_is_exit_3_and_shows_no_password(
    book: Book, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FENCEPOST_LEDGER_DSN", NOWHERE)
    said = complaint(3, *words)
    assert "hunter2" not in said
    assert "FENCEPOST_LEDGER_DSN" in said


def test_a_file_whose_ledger_goes_away_says_how_far_it_got(
    keys: list[str], book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What holds then holds: the file is given again as it is."""
    book.ask("ALTER TABLE fencepost.unsettled RENAME TO elsewhere")
    try:
        text = lines({"key": keys[0], "failed": "x"}, {"key": keys[1], "failed": "x"})
        result = fencepost("calls", "resolve", "--from", "-", *WHO, input=text)
    finally:
        book.ask("ALTER TABLE fencepost.elsewhere RENAME TO unsettled")
    assert result.exit_code == 1
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == ["resolved 0 of 0 calls", "fencepost"]


# --- sweep ------------------------------------------------------------------------------------------------------------

NOTHING = {"swept": True, "published": 0, "orphans": 0, "forgotten": 0, "blobs": 0, "faults": []}


def test_a_sweep_with_nothing_to_publish_needs_no_broker(book: Book) -> None:
    assert told("sweep") == NOTHING
    assert done("sweep").startswith("published 0 outcomes, ended 0 orphans, forgot 0 rows")


def test_a_sweep_ends_orphans_and_forgets_what_is_past_its_time(book: Book, holder: Holder) -> None:
    holder.start(call())
    holder.run(call("e2", call_index=1))
    book.ask("DELETE FROM fencepost.unsettled WHERE key IN (SELECT key FROM fencepost.calls WHERE state = 'completed')")
    book.lease_over(1000)
    book.age(100)
    assert told("sweep") == NOTHING | {"orphans": 1, "forgotten": 3}
    assert book.states() == [State.indeterminate]


def test_another_sweeper_at_work_is_no_fault(book: Book) -> None:
    book.ask("SELECT pg_advisory_lock(%s)", _LOCK)
    assert told("sweep") == {"swept": False}
    assert "another sweeper is at work" in done("sweep")


def test_a_sweep_of_no_ledger_says_what_to_run(
    book: Book, empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FENCEPOST_LEDGER_DSN", empty_database)
    assert "fencepost migrate" in complaint(1, "sweep")


def test_what_cannot_be_published_comes_up_again(key: str, book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    from functools import partial

    from fencepost_worker import sweeping

    monkeypatch.setattr(sweeping, "connect", partial(sweeping.connect, timeout=0.3))
    monkeypatch.setenv("FENCEPOST_KAFKA_BOOTSTRAP", "127.0.0.1:1")
    done("calls", "resolve", key, "--failed", "not_there", *WHO)
    assert "127.0.0.1:1" in complaint(3, "sweep")
    assert book.unsettled() == [(3, 0)]
