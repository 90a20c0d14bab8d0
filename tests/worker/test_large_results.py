"""Large results from outside: what is on the topic, what the operator sees, what is found at start."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from fencepost_dispatch import Settings, tool
from fencepost_dispatch.answers import Answer
from fencepost_ledger import BlobsUnavailable
from fencepost_ledger.verdicts import Settle
from fencepost_schemas import Outcome, OutcomeError, Status, decode_outcome
from fencepost_worker.cli import app
from fencepost_worker.events import Publish, Unpublished, published
from fencepost_worker.worker import run_worker
from services.brokers import Broker
from services.reports import LARGE, Reports, ask, line
from services.rig import Rig
from services.shelves import Folder

SIZE = 2_000_000  # bytes: no outcome topic takes that by default


@tool("desk.export")
async def export() -> str:
    return "x" * SIZE


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.fixture
def rig(broker: Broker, topics: Any, database: str) -> Iterator[Rig]:
    made = Rig(broker, topics, database)
    yield made
    made.close()


async def test_an_outcome_with_a_large_result_fits_and_every_delivery_names_the_same_blob(
    rig: Rig, folder: Folder
) -> None:
    event = rig.event(tool="desk.export")
    async with rig.worker(export, blobs=folder.url):
        rig.produce(event)
        (first,) = await rig.outcomes(1)
        rig.produce(event)
        (again,) = await rig.outcomes(1)
    assert (first["status"], first["result"], first["error"]) == ("succeeded", None, None)
    assert first["result_ref"] == again["result_ref"]
    assert (first["replayed"], again["replayed"]) == (False, True)
    assert first["result_ref"]["size"] == SIZE + 2
    assert decode_outcome(json.dumps(again).encode()).load_result() == "x" * SIZE


async def test_a_store_that_cannot_be_written_is_found_at_start(database: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    settings = Settings(ledger_dsn=database, blobs=(tmp_path / "file").as_uri(), kafka_bootstrap="127.0.0.1:1")
    with pytest.raises(BlobsUnavailable, match=r"cannot be used"):
        await run_worker(settings, [])


# --- the operator ---------------------------------------------------------------------------------------------------


@pytest.fixture
async def call(database: str, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> str:
    """The key of a call with a large result."""
    async with line(database, Reports().tools, folder.url) as entered:
        outcome = await entered.run(ask())
    monkeypatch.setenv("FENCEPOST_LEDGER_DSN", database)
    assert outcome.invocation_key is not None
    return outcome.invocation_key


def show(*words: str) -> Result:
    return CliRunner().invoke(app, ["calls", "show", *words])


def test_show_follows_the_reference_unless_told_not_to(call: str) -> None:
    followed, plain = show(call, "--json"), show(call, "--json", "--no-follow")
    assert (followed.exit_code, plain.exit_code) == (0, 0)
    assert json.loads(followed.stdout)["result"] == LARGE
    assert json.loads(plain.stdout)["result"] is None
    assert json.loads(followed.stdout)["result_ref"] == json.loads(plain.stdout)["result_ref"] is not None
    assert str(2**70) in show(call).stdout


@pytest.mark.parametrize("change, says", [(b"{}", "is not what was stored"), (None, "is not there")])
def test_show_says_in_one_line_that_a_result_is_damaged_or_missing(
    call: str, folder: Folder, change: bytes | None, says: str
) -> None:
    (path,) = folder.objects()
    folder.remove(path) if change is None else folder.write(path, change)
    shown = show(call, "--json")
    assert shown.exit_code == 1
    assert says in shown.stderr
    assert shown.stderr.count("\n") == 1
    assert json.loads(shown.stdout)["invocation_key"] == call, "what the ledger knows is shown all the same"


# --- an outcome always fits -----------------------------------------------------------------------------------------


def answer(**fields: Any) -> Answer:
    event = ask().model_dump(include={"event_id", "execution_id", "node_id", "call_index", "generation", "tool"})
    outcome = Outcome(outcome_id="o", status=Status.succeeded, **event, **fields)
    return Answer(outcome, Settle("x", b"k" * 32, 2))


def test_an_outcome_over_the_limit_goes_without_its_result_and_says_so() -> None:
    error = OutcomeError(code="c", message="m" * 8000, detail="d" * 60_000)
    for fields in ({"result": "x" * SIZE}, {"result": "x" * SIZE, "error": error}):
        way = published(answer(**fields), ())
        next(way)
        small = way.send(OSError("too large"))
        assert isinstance(small, Publish)
        assert (small.outcome.result, small.outcome.status) == (None, "succeeded")
        assert small.outcome.error is not None
        assert len(small.outcome.error.message) <= 1000
        with pytest.raises(StopIteration):
            way.send(None)


def test_an_outcome_that_does_not_fit_at_all_is_not_settled() -> None:
    way = published(answer(), ())
    next(way)
    way.send(OSError("too large"))
    with pytest.raises(Unpublished, match=r"max\.message\.bytes"):
        way.send(OSError("too large"))
