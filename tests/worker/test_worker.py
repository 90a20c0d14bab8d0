"""The main job from outside: records in, outcomes and dead letters out, offsets last."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fencepost_dispatch import ToolFailed, current_tool_invocation_context, tool
from fencepost_worker.worker import DRAIN_CUT_SHORT
from services.brokers import Broker
from services.clients import Lookup
from services.rig import Rig


@pytest.fixture
def rig(broker: Broker, topics: Any, database: str) -> Iterator[Rig]:
    made = Rig(broker, topics, database)
    yield made
    made.close()


@pytest.fixture
def ran() -> Counter[Any]:
    return Counter()


@pytest.fixture
def create(ran: Counter[Any]) -> Any:
    @tool("desk.create")
    async def create(n: int = 0) -> dict[str, Any]:
        ran[n] += 1
        return {"n": n}

    return create


async def test_a_strangers_record_runs_its_tool_once_and_is_answered(rig: Rig, create: Any, ran: Counter[Any]) -> None:
    async with rig.worker(create) as worker:
        rig.produce(event := rig.event(arguments={"n": 7}, metadata={"turn": "3"}, unheard_of=True))
        (outcome,) = await rig.outcomes(1)
    assert ran == {7: 1}
    same = ("event_id", "execution_id", "node_id", "call_index", "generation", "tool", "metadata")
    assert {name: outcome[name] for name in same} == {name: event[name] for name in same}
    assert outcome["status"] == "succeeded"
    assert outcome["executed"] is True
    assert outcome["replayed"] is False
    assert outcome["result"] == {"n": 7}
    assert outcome["org_id"] == "acme"
    assert outcome["attempt"] == 1
    assert outcome["worker"] == worker.holder
    assert outcome["type"] == "tool.outcome.v1"
    assert len(outcome["invocation_key"]) == 64


async def test_a_redelivered_event_is_answered_again_and_never_run_again(
    rig: Rig, create: Any, ran: Counter[Any]
) -> None:
    event = rig.event(arguments={"n": 1})
    async with rig.worker(create):
        rig.produce(event)
        (first,) = await rig.outcomes(1)
        rig.produce(event, event)
        again = await rig.outcomes(2)
    assert ran == {1: 1}
    for outcome in again:
        assert outcome["outcome_id"] == first["outcome_id"]
        assert outcome["replayed"] is True
        assert outcome["executed"] is False
        assert outcome["result"] == first["result"]


async def test_a_redelivery_while_the_call_runs_joins_it(rig: Rig) -> None:
    entered, go, runs = asyncio.Event(), asyncio.Event(), []

    @tool("desk.create")
    async def create() -> int:
        runs.append(1)
        entered.set()
        await go.wait()
        return len(runs)

    event = rig.event()
    async with rig.worker(create):
        rig.produce(event)
        await entered.wait()
        rig.produce(event, event, partition=0)
        rig.produce(rig.event(tool="no.such.tool"), partition=0)
        (passed,) = await rig.outcomes(1)  # the duplicates before it have been taken up by now
        assert passed["error"]["code"] == "unknown_tool"
        go.set()
        answers = await rig.outcomes(3)
    assert len(runs) == 1
    assert sorted(a["executed"] for a in answers) == [False, False, True]
    assert {a["result"] for a in answers} == {1}


async def test_an_older_generation_is_fenced_after_redispatch(rig: Rig, create: Any, ran: Counter[Any]) -> None:
    async with rig.worker(create):
        rig.produce(rig.event(arguments={"n": 1}))
        await rig.outcomes(1)
        assert rig.desk.redispatch(rig.execution, "node") == 2
        rig.produce(rig.event(arguments={"n": 2}))
        (fenced,) = await rig.outcomes(1)
        rig.produce(rig.event(arguments={"n": 3}, generation=2))
        (fresh,) = await rig.outcomes(1)
    assert fenced["status"] == "fenced"
    assert fenced["executed"] is False
    assert len(fenced["invocation_key"]) == 64
    assert fresh["status"] == "succeeded"
    assert ran == {1: 1, 3: 1}


async def test_a_fence_event_raises_the_generation_and_needs_no_outcome(
    rig: Rig, create: Any, ran: Counter[Any]
) -> None:
    fence = {
        "type": "tool.fence.v1",
        "event_id": "f1",
        "execution_id": rig.execution,
        "node_id": "node",
        "generation": 3,
    }
    async with rig.worker(create, ordering="partition"):
        rig.produce(fence, rig.event(arguments={"n": 1}, generation=2), rig.event(arguments={"n": 2}, generation=3))
        stale, fresh = await rig.outcomes(2)
    assert (stale["status"], fresh["status"]) == ("fenced", "succeeded")
    assert ran == {2: 1}


async def test_a_fence_of_an_execution_nobody_opened_is_a_dead_letter(rig: Rig, create: Any) -> None:
    fence = {"type": "tool.fence.v1", "event_id": "f1", "execution_id": "nobody", "node_id": "node", "generation": 3}
    async with rig.worker(create):
        rig.produce(fence)
        (letter,) = await rig.dead_letters(1)
    assert dict(letter.headers())["fencepost.error.code"] == b"unknown_execution"


@pytest.mark.parametrize(
    "value", [None, b"", b"nonsense", b"\xff\xfe", b"[1]", b"{}", b"[" * 100_000, b'{"event_id": 1}'], ids=repr
)
async def test_a_record_that_cannot_be_decoded_is_a_dead_letter_and_stops_nothing(
    rig: Rig, create: Any, ran: Counter[Any], value: bytes | None
) -> None:
    async with rig.worker(create) as worker:
        rig.produce(value, partition=1, headers=[("theirs", b"\x00\xff"), ("none", None)])
        rig.produce(rig.event(arguments={"n": 1}), partition=1)
        (letter,) = await rig.dead_letters(1)
        (outcome,) = await rig.outcomes(1)
    assert letter.value() == value
    headers = dict(letter.headers())
    assert headers["theirs"] == b"\x00\xff"
    assert headers["none"] is None
    assert headers["fencepost.source.topic"] == rig.topics.dispatch.encode()
    assert (headers["fencepost.source.partition"], headers["fencepost.source.offset"]) == (b"1", b"0")
    assert headers["fencepost.worker"] == worker.holder.encode()
    assert headers["fencepost.error.code"]
    assert headers["fencepost.error.message"]
    assert outcome["status"] == "succeeded"
    assert ran == {1: 1}


async def test_a_topic_full_of_nonsense_stops_the_worker_and_not_the_other_way_round(rig: Rig, create: Any) -> None:
    rig.produce(*[b"nonsense"] * 150, partition=0)
    async with rig.worker(create) as worker:
        await rig.dead_letters(1)
        await asyncio.wait_for(asyncio.shield(worker._ending), 20)
    assert rig.exit_code == 1


@pytest.mark.parametrize(
    "fields, code",
    [
        ({"execution_id": "nobody"}, "unknown_execution"),
        ({"org_id": "rival"}, "org_mismatch"),
        ({"tool": "no.such.tool"}, "unknown_tool"),
        ({"arguments": {"n": "seven"}}, "invalid_arguments"),
        ({"arguments": {"other": 1}}, "invalid_arguments"),
        ({"arguments": {"n": 1, "deep": "x" * 900_000}}, "invalid_arguments"),
    ],
    ids=str,
)
async def test_what_is_refused_runs_nothing_and_says_why(
    rig: Rig, create: Any, ran: Counter[Any], fields: dict[str, Any], code: str
) -> None:
    async with rig.worker(create):
        rig.produce(rig.event(**fields))
        (outcome,) = await rig.outcomes(1)
    assert (outcome["status"], outcome["error"]["code"]) == ("rejected", code)
    assert outcome["retryable"] is (code == "unknown_tool")
    assert not ran


async def test_arguments_without_a_canonical_form_are_answered_and_not_buried(rig: Rig, create: Any) -> None:
    text = json.dumps(rig.event(arguments={"n": 1})).replace('"n": 1', '"n": NaN').encode()
    async with rig.worker(create):
        rig.produce(text)
        (outcome,) = await rig.outcomes(1)
    assert (outcome["status"], outcome["error"]["code"]) == ("rejected", "invalid_arguments")
    assert "$.arguments.n" in outcome["error"]["message"]


async def test_past_its_deadline_nothing_starts(rig: Rig, create: Any, ran: Counter[Any]) -> None:
    late = (datetime.now(UTC) - timedelta(minutes=1)).isoformat()
    async with rig.worker(create):
        rig.produce(rig.event(deadline=late))
        (outcome,) = await rig.outcomes(1)
    assert (outcome["status"], outcome["error"]["code"]) == ("expired", "deadline_passed")
    assert not ran


async def test_an_unclear_error_is_indeterminate_and_never_run_again(rig: Rig, ran: Counter[Any]) -> None:
    @tool("desk.create")
    async def create() -> None:
        ran["runs"] += 1
        raise ConnectionResetError("peer went away\x00")

    event = rig.event()
    async with rig.worker(create):
        rig.produce(event)
        (first,) = await rig.outcomes(1)
        rig.produce(event, rig.event(call_index=event["call_index"]))
        again = await rig.outcomes(2)
    assert ran == {"runs": 1}
    assert {o["status"] for o in [first, *again]} == {"indeterminate"}
    assert first["executed"] is True
    assert first["retryable"] is False
    assert first["error"]["message"].endswith("peer went away\x00")
    (listed,) = rig.desk.calls(state="indeterminate")  # type: ignore[arg-type]
    assert listed.key.hex() == first["invocation_key"]


async def test_what_the_tool_says_it_did_not_do_is_failed_and_may_be_retried_as_it_says(
    rig: Rig, ran: Counter[Any]
) -> None:
    @tool("desk.create", max_attempts=2)
    async def create() -> str:
        ran["runs"] += 1
        raise ToolFailed("full", "no room", retryable=True, detail={"queue": 3})

    event = rig.event()
    async with rig.worker(create):
        outcomes = []
        for _ in range(3):
            rig.produce(event)
            outcomes += await rig.outcomes(1)
    assert ran == {"runs": 2}
    assert [(o["status"], o["attempt"], o["executed"]) for o in outcomes] == [
        ("failed", 1, True),
        ("failed", 2, True),
        ("failed", 2, False),
    ]
    assert [o["retryable"] for o in outcomes] == [True, False, False]
    assert outcomes[0]["error"] == {"code": "full", "message": "no room", "detail": {"queue": 3}}


async def test_a_tool_sees_its_own_call(rig: Rig) -> None:
    seen: dict[int, Any] = {}

    @tool("desk.create")
    async def create(n: int) -> None:
        await asyncio.sleep(0)
        seen[n] = current_tool_invocation_context()

    events = [rig.event(arguments={"n": n}, tool_call_id=f"call_{n}") for n in range(8)]
    async with rig.worker(create):
        rig.produce(*events)
        outcomes = {o["event_id"]: o for o in await rig.outcomes(8)}
    for n, event in enumerate(events):
        context, outcome = seen[n], outcomes[event["event_id"]]
        assert context.tool_call_id == f"call_{n}"
        assert context.invocation_key == outcome["invocation_key"]
        assert (context.org_id, context.event_id, context.attempt) == ("acme", event["event_id"], 1)


async def test_a_sync_tool_that_blocks_does_not_hold_up_the_others(rig: Rig, create: Any) -> None:
    release, entered = threading.Event(), threading.Event()

    @tool("desk.create_slowly")
    def slow() -> str:
        entered.set()
        return "slow" if release.wait(20) else "never released"

    async with rig.worker(create, slow):
        rig.produce(rig.event(tool="desk.create_slowly"))
        assert await asyncio.to_thread(entered.wait, 20)
        rig.produce(rig.event(arguments={"n": 1}))
        (quick,) = await rig.outcomes(1)
        release.set()
        (late,) = await rig.outcomes(1)
    assert (quick["result"], late["result"]) == ({"n": 1}, "slow")


async def test_an_outcome_too_large_for_its_topic_is_published_without_its_result(rig: Rig) -> None:
    @tool("desk.create")
    async def create() -> str:
        return "x" * 2_000_000

    async with rig.worker(create, inline_result_bytes=4_000_000):
        rig.produce(rig.event())
        (outcome,) = await rig.outcomes(1)
    assert (outcome["status"], outcome["result"], outcome["error"]["code"]) == ("succeeded", None, "result_too_large")


async def test_an_outcome_left_by_a_crash_is_published_by_the_sweeper(
    rig: Rig, create: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fencepost_worker import events

    def crash(answer: Any, trace: Any) -> Any:
        raise RuntimeError("between finalize and publish")
        yield

    event = rig.event(arguments={"n": 5}, metadata={"k": "v"})
    with monkeypatch.context() as patched:
        patched.setattr(events, "published", crash)
        async with rig.worker(create):
            rig.produce(event)
            await rig.dead_letters(1)
    async with rig.worker(create):
        (outcome,) = await rig.outcomes(1)
    assert (outcome["event_id"], outcome["status"], outcome["result"]) == (event["event_id"], "succeeded", {"n": 5})
    assert (outcome["replayed"], outcome["executed"], outcome["metadata"]) == (True, False, {"k": "v"})


async def test_the_offset_is_committed_after_the_outcome_and_the_lag_is_zero(
    rig: Rig, broker: Broker, create: Any
) -> None:
    lookup = Lookup(broker.bootstrap, rig.group)
    async with rig.worker(create):
        rig.produce(*[rig.event(arguments={"n": n}) for n in range(20)], partition=2)
        await rig.outcomes(20)
        await rig.until(lambda: lookup.committed(rig.topics.dispatch, 2) == 20)
    assert lookup.lag(rig.topics.dispatch, 2) == 0
    lookup.close()


async def test_a_drain_waits_for_the_call_in_flight_and_commits_it(rig: Rig, broker: Broker) -> None:
    entered, go = asyncio.Event(), asyncio.Event()

    @tool("desk.create")
    async def create() -> str:
        entered.set()
        await go.wait()
        return "done"

    async with rig.worker(create) as worker:
        rig.produce(rig.event(), partition=0)
        await entered.wait()
        worker.stop()
        go.set()
        (outcome,) = await rig.outcomes(1)
    assert rig.exit_code == 0
    assert outcome["result"] == "done"
    lookup = Lookup(broker.bootstrap, rig.group)
    assert lookup.committed(rig.topics.dispatch, 0) == 1
    lookup.close()


async def test_a_drain_cut_short_leaves_an_unknown_outcome_and_says_so_by_its_exit_code(rig: Rig) -> None:
    entered = asyncio.Event()

    @tool("desk.create")
    async def create() -> None:
        entered.set()
        await asyncio.Event().wait()

    async with rig.worker(create, drain_seconds=0.2) as worker:
        rig.produce(rig.event())
        await entered.wait()
        worker.stop()
        (outcome,) = await rig.outcomes(1)
    assert (outcome["status"], outcome["error"]["code"]) == ("indeterminate", "cancelled")
    assert rig.exit_code == DRAIN_CUT_SHORT


async def test_nothing_starts_while_draining(rig: Rig, create: Any, ran: Counter[Any]) -> None:
    entered, go = asyncio.Event(), asyncio.Event()

    @tool("desk.create_slowly")
    async def slow() -> None:
        entered.set()
        await go.wait()

    async with rig.worker(create, slow, concurrency=1) as worker:
        rig.produce(rig.event(tool="desk.create_slowly"), partition=0)
        await entered.wait()
        waiting = rig.event(arguments={"n": 1})
        rig.produce(waiting, partition=0)
        await rig.until(lambda: worker._engine.slots.waiting == 1)
        worker.stop()
        go.set()
        await rig.outcomes(1)
    assert not ran
    async with rig.worker(create, slow):
        (outcome,) = await rig.outcomes(1)
    assert outcome["event_id"] == waiting["event_id"]
    assert ran == {1: 1}


async def test_by_key_the_calls_of_a_node_run_one_at_a_time_and_in_order(rig: Rig) -> None:
    order: list[int] = []
    inside = 0

    @tool("desk.create")
    async def create(n: int) -> None:
        nonlocal inside
        inside += 1
        assert inside == 1
        await asyncio.sleep(0)
        order.append(n)
        inside -= 1

    async with rig.worker(create, ordering="key"):
        rig.produce(*[rig.event(arguments={"n": n}) for n in range(30)], partition=0)
        outcomes = await rig.outcomes(30)
    assert {o["status"] for o in outcomes} == {"succeeded"}
    assert order == list(range(30))


@pytest.mark.kafka
async def test_a_dead_letter_that_does_not_fit_stops_the_worker_and_is_not_passed_over(
    rig: Rig, broker: Broker, create: Any
) -> None:
    small = broker.new_topic("tool.dead-letter", 1, {"max.message.bytes": "2000"})
    async with rig.worker(create, dead_letter_topic=small) as worker:
        rig.produce(b"x" * 5_000, partition=0)
        await asyncio.wait_for(asyncio.shield(worker._ending), 20)
    assert rig.exit_code == 1
    lookup = Lookup(broker.bootstrap, rig.group)
    assert not lookup.committed(rig.topics.dispatch, 0)
    lookup.close()
