from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import structlog

from fencepost_dispatch import Registry, Settings, ToolInvocationContext, tool
from fencepost_dispatch.answers import Answer
from fencepost_dispatch.execute import Threads, execute
from fencepost_schemas import Dispatch
from fencepost_worker.logs import set_up_logs
from fencepost_worker.records import Record
from fencepost_worker.telemetry import Telemetry
from services.answering import outcome_of

Lines = Callable[[], list[dict[str, Any]]]
SETTINGS = Settings.load(kafka={"sasl.password": "hunter2-sasl"}, ledger_dsn="postgresql://ann:hunter2@db/x")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Lines:
    def read() -> list[dict[str, Any]]:
        captured = capsys.readouterr()
        assert captured.out == ""
        return [json.loads(line) for line in captured.err.splitlines()]

    return read


def test_a_line_is_one_json_object_on_stderr_with_the_bound_ids(lines: Lines) -> None:
    set_up_logs("json", SETTINGS.redact)
    with structlog.contextvars.bound_contextvars(execution_id="e", invocation_key="ab"):
        structlog.get_logger("fencepost.test").info("call started", attempt=1, text="two\nlines")
    [line] = lines()
    assert (line["event"], line["level"], line["logger"]) == ("call started", "info", "fencepost.test")
    assert (line["execution_id"], line["invocation_key"], line["attempt"]) == ("e", "ab", 1)
    assert line["timestamp"].endswith("Z")


def test_lines_of_the_standard_library_look_the_same(lines: Lines) -> None:
    set_up_logs("json", SETTINGS.redact)
    logging.getLogger("fencepost_ledger.sweep").info("swept %s calls", 3)
    [line] = lines()
    assert (line["event"], line["logger"]) == ("swept 3 calls", "fencepost_ledger.sweep")


def test_debug_lines_and_other_libraries_talk_are_left_out(lines: Lines) -> None:
    set_up_logs("json", SETTINGS.redact)
    structlog.get_logger("fencepost.test").debug("detail")
    logging.getLogger("fencepost_dispatch.x").debug("detail")
    logging.getLogger("asyncio").info("talk")
    assert lines() == []


@pytest.mark.parametrize("name", ["arguments", "result", "payload"])
def test_what_a_call_carries_is_never_logged(name: str, lines: Lines) -> None:
    set_up_logs("json", SETTINGS.redact)
    structlog.get_logger("fencepost.test").error("odd", **{name: {"card": "4111"}}, nested={name: "4111"})
    [line] = lines()
    assert "4111" not in str(line)


def test_secrets_are_taken_out_by_name_and_by_text(lines: Lines) -> None:
    set_up_logs("json", SETTINGS.redact)
    log = structlog.get_logger("fencepost.test")
    log.warning(
        "cannot log in with hunter2-sasl", dsn="postgresql://a:b@c/d", sasl_password="x1y2", fine={"token": "x1y2"}
    )
    try:
        raise ConnectionError("postgresql://ann:hunter2@db/x refused")
    except ConnectionError:
        log.exception("no ledger")
    logging.getLogger("fencepost.test").warning("hunter2-sasl %s", ["hunter2-sasl"])
    text = json.dumps(lines())
    for secret in ("hunter2", "x1y2", "a:b@"):
        assert secret not in text
    assert "ConnectionError" in text


def test_a_traceback_does_not_show_local_variables(lines: Lines) -> None:
    set_up_logs("json", SETTINGS.redact)
    arguments = {"card": "4111"}
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        structlog.get_logger("fencepost.test").exception("odd")
    [line] = lines()
    assert "boom" in line["exception"]
    assert arguments["card"] not in str(line)


def test_for_people_a_line_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs("console", SETTINGS.redact)
    structlog.get_logger("fencepost.test").info("call started", attempt=1)
    text = capsys.readouterr().err
    assert "call started" in text
    assert "attempt=1" in text


def test_whatever_is_logged_never_breaks_the_line(lines: Lines) -> None:
    set_up_logs("json", SETTINGS.redact)
    structlog.get_logger("fencepost.test").info(
        "odd", thing=object(), keys={1: b"\xff", "a": {2, 3}}, text="\ud800\x00"
    )
    assert len(lines()) == 1


async def test_what_is_logged_inside_of_a_call_carries_its_ids(lines: Lines) -> None:
    @tool("desk.create", timeout=5)
    def create() -> None:
        logging.getLogger("fencepost_dispatch.theirs").info("working")
        raise ConnectionResetError

    set_up_logs("json", SETTINGS.redact)
    call = ToolInvocationContext("call_0", execution_id="e", node_id="n", event_id="v", attempt=2)
    with Threads(1) as threads:
        await execute(create, {}, call, threads)
    logging.getLogger("fencepost_dispatch.theirs").info("idle")
    inside, after, outside = lines()
    for line in (inside, after):
        assert (line["event_id"], line["execution"], line["node"], line["attempt"]) == ("v", "e", "n", 2)
    assert after["level"] == "warning"
    assert "execution" not in outside


def test_a_call_is_a_line_at_debug_alone_and_its_result_is_not_in_it(lines: Lines) -> None:
    telemetry = Telemetry(SETTINGS, Registry())
    record = Record("tool.dispatch", 0, 1, 1, b"e", b"{}", None, None, 3)
    event = Dispatch(
        event_id="v", execution_id="e", node_id="n", call_index=0, generation=1, tool="desk.create", arguments={}
    )
    times = {"started_at": datetime(2026, 1, 1, tzinfo=UTC), "finished_at": datetime(2026, 1, 1, 0, 0, 1, 500_000, UTC)}
    done = Answer(outcome_of(event, result="a secret of theirs", attempt=1, executed=True, **times))
    set_up_logs("json", SETTINGS.redact)
    telemetry.done(record, done)
    assert lines() == []
    set_up_logs("json", SETTINGS.redact, debug=True)
    telemetry.done(record, done)
    [line] = lines()
    del line["timestamp"]
    assert line == {
        "level": "debug",
        "logger": "fencepost.call",
        "event": "call",
        "event_id": "v",
        "execution": "e",
        "node": "n",
        "tool": "desk.create",
        "status": "succeeded",
        "attempt": 1,
        "replayed": False,
        "seconds": 1.5,
    }
