"""What a worker counts of itself, that it is bounded, and that every metric is documented."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from fencepost_dispatch import ToolFailed, tool
from fencepost_dispatch.answers import Answer
from fencepost_ledger.watch import Backlog
from fencepost_schemas import Dispatch, Status
from fencepost_worker.events import Bury
from fencepost_worker.meters import MOST_TOOLS, OTHER, Histogram, Meters
from fencepost_worker.metrics import METRICS
from fencepost_worker.records import Record
from services.answering import outcome_of
from services.brokers import Embedded
from services.observed import Port, embedded_rig
from services.rig import Rig

DOCUMENT = Path(__file__).parents[2] / "deploy" / "METRICS.md"
NAMES = re.compile(r"fencepost(_[a-z]+)+")


@pytest.fixture
def rig(embedded_kafka: Embedded, database: str) -> Iterator[Rig]:
    with embedded_rig(embedded_kafka, database) as made:
        yield made


@pytest.fixture
def port() -> Port:
    return Port()


def record(timestamp: int | None = None) -> Record:
    return Record("tool.dispatch", 0, 1, 1, b"k", b"v", None, timestamp, 2)


def answer(name: str = "desk.create", status: Status = Status.succeeded, **fields: Any) -> Answer:
    event = Dispatch(event_id="e", execution_id="x", node_id="n", call_index=0, generation=1, tool=name, arguments={})
    return Answer(outcome_of(event, status, **fields))


# --- the table --------------------------------------------------------------------------------------------------------


def test_every_metric_is_documented_as_it_is_declared() -> None:
    rows = re.findall(r"^\| `(fencepost_\w+)` \| (.*) \|$", DOCUMENT.read_text(), re.MULTILINE)
    declared = [(m.name, f"{m.kind} | {', '.join(f'`{name}`' for name in m.labels)} | {m.help}") for m in METRICS]
    assert [(name, re.sub(r"\|\s+\|", "|  |", row)) for name, row in rows] == declared


def test_names_are_those_that_prometheus_expects() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert NAMES.fullmatch(metric.name), metric.name
        assert metric.name.endswith("_total") is (metric.kind == "counter"), metric.name


def test_no_label_names_a_tenant() -> None:
    labels = {label for metric in METRICS for label in metric.labels}
    assert labels == {"version", "verdict", "status", "tool", "code", "partition"}


# --- counting ---------------------------------------------------------------------------------------------------------


def test_a_value_on_a_bound_counts_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.add(value)
    assert (histogram.counts, histogram.total) == ([2, 2, 1], 14.0)


def test_tools_beyond_the_most_and_tools_that_are_not_ours_are_one_label() -> None:
    meters = Meters([f"tool{number:04}" for number in range(1_000)])
    for number in range(2_000):
        meters.done(record(), answer(f"tool{number:04}", executed=True))
        meters.ran(f"tool{number:04}", 0.1)
        meters.stalled(f"tool{number:04}", True, 1.0)
    assert len(meters.tools) == MOST_TOOLS
    assert sum(meters.other.outcomes) == 2_000 - MOST_TOOLS
    assert sum(meters.other.run_seconds.counts) == 2_000 - MOST_TOOLS
    assert len(meters.stalls) == MOST_TOOLS + 1
    assert meters.stalls[OTHER] == 2_000 - MOST_TOOLS


def test_a_clock_that_is_behind_the_producers_gives_no_negative_times() -> None:
    meters = Meters([])
    meters.done(record(int(time.time() * 1000) + 60_000), Bury(record(), "not_json", ""))
    assert (meters.event_seconds.counts[0], meters.event_seconds.total) == (1, 0.0)


def test_the_oldest_undecided_call_grows_older_between_two_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    meters = Meters([])
    assert meters.backlog is None
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    meters.found(Backlog(2, 60.0, 1))
    monkeypatch.setattr(time, "monotonic", lambda: now + 5)
    assert meters.backlog == Backlog(2, 65.0, 1)
    meters.found(Backlog(0, 0.0, 0))
    monkeypatch.setattr(time, "monotonic", lambda: now + 50)
    assert meters.backlog == Backlog(0, 0.0, 0)


def test_the_ledger_is_up_again_when_whoever_missed_it_has_an_answer() -> None:
    meters = Meters([])
    meters.swept("away")
    meters.written("gone")
    assert meters.ledger_trouble == "gone"
    meters.written(None)
    assert meters.ledger_trouble == "away"
    meters.swept(None)
    assert meters.ledger_trouble is None


# --- a worker ---------------------------------------------------------------------------------------------------------


@tool("desk.create")
async def create(n: int = 0) -> int:
    return n


@tool("desk.refuse")
async def refuse() -> None:
    raise ToolFailed("full")


@tool("desk.lose")
async def lose() -> None:
    raise ConnectionResetError


async def test_what_became_of_each_record_is_counted(rig: Rig, port: Port) -> None:
    fence = {"type": "tool.fence.v1", "event_id": "f", "execution_id": rig.execution, "node_id": "n", "generation": 2}
    ran = rig.event(odd=1, strange=2)
    async with rig.worker(create, refuse, lose, metrics_port=port.number, lease_seconds=1):
        rig.produce(ran, rig.event(), rig.event(tool="desk.refuse"), rig.event(tool="desk.lose"), b"nonsense", fence)
        rig.produce(rig.event(tool="no.such.tool"))
        await rig.outcomes(5)
        await rig.until(lambda: port.value("fencepost_events_total", verdict="raised") == 1)
        rig.produce(ran, rig.event(node_id="n"))
        await rig.outcomes(2)
        await rig.dead_letters(1)
        await rig.until(lambda: port.value("fencepost_calls_undecided") == 1)
        await rig.until(lambda: port.value("fencepost_events_total", verdict="replayed") == 1)
        await rig.until(lambda: port.value("fencepost_events_total", verdict="fenced") == 1)
        await rig.until(lambda: port.value("fencepost_records_in_flight") == 0)
        await rig.until(lambda: len(port.scrape().get("fencepost_consumer_lag_records", {})) == 4)
        await rig.until(lambda: port.total("fencepost_consumer_lag_records") == 0)
        found = port.scrape()
    assert found["fencepost_events_total"] == {
        (("verdict", "executed"),): 4,
        (("verdict", "replayed"),): 1,
        (("verdict", "rejected"),): 1,
        (("verdict", "fenced"),): 1,
        (("verdict", "raised"),): 1,
        (("verdict", "buried"),): 1,
    }
    assert found["fencepost_outcomes_total"] == {
        (("status", "succeeded"), ("tool", "desk.create")): 3,
        (("status", "failed"), ("tool", "desk.refuse")): 1,
        (("status", "indeterminate"), ("tool", "desk.lose")): 1,
        (("status", "fenced"), ("tool", "desk.create")): 1,
        (("status", "rejected"), ("tool", "other")): 1,
    }
    assert found["fencepost_dead_letters_total"] == {(("code", "not_json"),): 1}
    assert found["fencepost_run_seconds_count"][("tool", "desk.create"),] == 2
    alone = {name: samples[()] for name, samples in found.items() if () in samples}
    assert alone["fencepost_unknown_fields_total"] == 4, "a redelivery is counted too"
    assert alone["fencepost_event_seconds_count"] == 9
    assert alone["fencepost_slot_wait_seconds_count"] == 7
    assert alone["fencepost_calls_undecided_oldest_seconds"] > 0
    assert alone["fencepost_ledger_up"] == 1
    assert alone["fencepost_ledger_commit_seconds_count"] == alone["fencepost_ledger_batch_items_count"] >= 4
    assert alone["fencepost_partitions"] == 4
    quiet = ("calls_in_flight", "calls_waiting", "consumer_paused", "oldest_record_seconds", "leases_lapsed")
    assert not [name for name in quiet if alone[f"fencepost_{name}"]]
    assert {metric.name for metric in METRICS} <= {re.sub("_(bucket|count|sum)$", "", name) for name in found} | {
        "fencepost_loop_stalls_total",
        "fencepost_loop_stall_seconds_total",
    }


async def test_what_is_under_way_shows(rig: Rig, port: Port) -> None:
    go = asyncio.Event()

    @tool("desk.wait")
    async def wait() -> None:
        await go.wait()

    async with rig.worker(wait, metrics_port=port.number, concurrency=2, lease_seconds=1):
        await rig.until(port.ready)
        rig.produce(*[rig.event(tool="desk.wait") for _ in range(5)])
        await rig.until(lambda: port.value("fencepost_calls_waiting") == 3)
        await rig.until(lambda: (port.value("fencepost_lease_renewals_total") or 0) >= 2)
        await rig.until(lambda: (port.value("fencepost_oldest_record_seconds") or 0) > 0)
        await rig.until(lambda: port.total("fencepost_consumer_lag_records") == 5)
        found = {name: samples[()] for name, samples in port.scrape().items() if () in samples}
        go.set()
        await rig.outcomes(5)
    assert found["fencepost_calls_in_flight"] == 2
    assert found["fencepost_records_in_flight"] == 5
    assert found["fencepost_record_bytes_in_flight"] > 100
    assert found["fencepost_leases_lost_total"] == 0


async def test_a_tool_that_blocks_the_event_loop_is_named(rig: Rig, port: Port) -> None:
    @tool("desk.block")
    async def block() -> None:
        time.sleep(0.9)  # noqa: ASYNC251 - what the test is about

    with structlog.testing.capture_logs() as lines:
        async with rig.worker(block, create, metrics_port=port.number):
            rig.produce(event := rig.event(tool="desk.block"))
            await rig.outcomes(1)
            await rig.until(lambda: (port.value("fencepost_loop_stall_seconds_total", tool="desk.block") or 0) > 0.8)
            assert port.value("fencepost_loop_stalls_total", tool="desk.block") == 1
    (line,) = [line for line in lines if line["event"] == "the event loop stands still"]
    assert (line["tool"], line["event_id"]) == ("desk.block", event["event_id"])
    assert line["at"].endswith(" block")
