from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, cast

import pytest
from confluent_kafka import Message

import fencepost_dispatch.feed as feed_module
import fencepost_dispatch.outcomes as outcomes_module
from fencepost_dispatch.kafka import MissingTopic
from fencepost_dispatch.outcomes import Outcomes
from fencepost_dispatch.settings import Settings
from fencepost_schemas import Outcome, Status, outcome_id
from services.answering import FakeWorker


def made(number: int, status: Status = Status.succeeded, execution: str = "e", **fields: Any) -> Outcome:
    event_id = f"event-{number}"
    return Outcome(
        outcome_id=outcome_id(execution, event_id, status),
        event_id=event_id,
        execution_id=execution,
        node_id="n",
        call_index=number,
        generation=1,
        tool="t",
        status=status,
        result=number,
        **fields,
    )


async def take(outcomes: Outcomes, count: int) -> list[Any]:
    async with asyncio.timeout(30):
        return [(await anext(outcomes)).result for _ in range(count)]


async def read_to_the_end(settings: Settings, **options: Any) -> list[Any]:
    async with asyncio.timeout(30), Outcomes(settings, from_beginning=True, follow=False, **options) as outcomes:
        return [outcome.result async for outcome in outcomes]


async def test_a_reader_sees_what_is_produced_after_it_came(settings: Settings, fake_worker: FakeWorker) -> None:
    fake_worker.publish(made(0))
    async with Outcomes(settings) as outcomes:
        fake_worker.publish(made(1), made(2))
        assert await take(outcomes, 2) == [1, 2]


async def test_a_reader_from_the_beginning_sees_all_and_ends_where_the_topic_ended(
    settings: Settings, fake_worker: FakeWorker
) -> None:
    fake_worker.publish(*(made(number, execution=f"e{number}") for number in range(50)))
    assert sorted(await read_to_the_end(settings)) == list(range(50))


async def test_an_empty_topic_ends_at_once(settings: Settings) -> None:
    assert await read_to_the_end(settings) == []


async def test_a_repeated_outcome_is_handed_out_once(settings: Settings, fake_worker: FakeWorker) -> None:
    fake_worker.publish(made(0), made(1), made(0), made(1, Status.fenced), made(0))
    assert await read_to_the_end(settings) == [0, 1, 1]


async def test_the_memory_for_repeats_is_bounded(settings: Settings, fake_worker: FakeWorker) -> None:
    fake_worker.publish(made(0), made(1), made(2), made(0))
    assert await read_to_the_end(settings, remember=2) == [0, 1, 2, 0]


@pytest.mark.parametrize("value", [None, b"", b"not json", b"[]", b'{"type":"tool.outcome.v1"}', b"\xff"])
async def test_a_record_that_is_no_outcome_is_skipped_and_counted(
    value: bytes | None, settings: Settings, fake_worker: FakeWorker
) -> None:
    fake_worker.publish_raw(value, b"e")
    fake_worker.publish(made(1))
    async with Outcomes(settings, from_beginning=True) as outcomes:
        assert await take(outcomes, 1) == [1]
        assert outcomes.undecodable == 1


async def test_falsy_and_odd_results_arrive_exactly(settings: Settings, fake_worker: FakeWorker) -> None:
    results: list[Any] = [None, 0, False, "", [], {}, "None", "a\x00b", 2**70]
    fake_worker.publish(*(made(number).model_copy(update={"result": value}) for number, value in enumerate(results)))
    read = await read_to_the_end(settings)
    assert read == results
    assert [type(value) for value in read] == [type(value) for value in results]


async def test_a_group_goes_on_after_what_was_taken(settings: Settings, fake_worker: FakeWorker) -> None:
    # The embedded broker lets nobody into a classic group until the session of who left is over.
    settings = settings.model_copy(update={"group_protocol": "consumer"})
    fake_worker.publish(*(made(number) for number in range(5)))
    async with Outcomes(settings, group_id="sub") as first:
        assert await take(first, 3) == [0, 1, 2]
    async with Outcomes(settings, group_id="sub") as second:
        # The third was in hand, and nobody said that it was done with.
        assert await take(second, 3) == [2, 3, 4]


async def test_a_reader_that_lags_is_not_flooded(
    settings: Settings, fake_worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes_module, "AHEAD", 100)
    total = 2000
    fake_worker.publish(*(made(number, execution=f"e{number % 9}") for number in range(total)))
    async with Outcomes(settings, from_beginning=True, follow=False, remember=total) as outcomes:
        seen = 0
        async for _ in outcomes:
            seen += 1
            await asyncio.sleep(0)
            assert outcomes._items.qsize() <= 100 + 500
    assert seen == total


async def test_readers_without_a_group_each_see_everything(settings: Settings, fake_worker: FakeWorker) -> None:
    async with Outcomes(settings) as one, Outcomes(settings) as other:
        fake_worker.publish(made(0))
        assert await take(one, 1) == await take(other, 1) == [0]


async def test_iterating_alone_enters_by_itself(settings: Settings, fake_worker: FakeWorker) -> None:
    fake_worker.publish(made(0))
    outcomes = Outcomes(settings, from_beginning=True)
    async with aclosing(outcomes), asyncio.timeout(30):
        async for outcome in outcomes:
            assert outcome.result == 0
            break


async def test_a_missing_topic_is_named_on_entering(settings: Settings) -> None:
    nowhere = settings.model_copy(update={"outcome_topic": "tool.nowhere"})
    for options in ({}, {"group_id": "sub"}):
        with pytest.raises(MissingTopic, match=r"tool\.nowhere does not exist"):
            async with Outcomes(nowhere, **options):  # type: ignore[arg-type]
                pass


@pytest.mark.parametrize("options", [{"from_beginning": True}, {"follow": False}])
def test_a_group_has_its_own_position(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="its own position"):
        Outcomes(Settings.load(), group_id="sub", **options)


@pytest.mark.kafka
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_members_of_a_group_share_the_topic_and_miss_nothing(
    protocol: str, settings: Settings, fake_worker: FakeWorker
) -> None:
    settings = settings.model_copy(update={"group_protocol": protocol})
    missing = set(range(200))
    complete = asyncio.Event()

    async def collect(member: Outcomes) -> None:
        async for outcome in member:
            missing.discard(outcome.result)
            if not missing:
                complete.set()

    fake_worker.publish(*(made(number, execution=f"e{number % 16}") for number in missing))
    async with Outcomes(settings, group_id="sub") as one, Outcomes(settings, group_id="sub") as other:
        readers = [asyncio.create_task(collect(member)) for member in (one, other)]
        async with asyncio.timeout(60):
            await complete.wait()
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def test_a_member_that_lags_is_not_flooded(
    settings: Settings, fake_worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes_module, "AHEAD", 400)
    total = 2000
    fake_worker.publish(*(made(number, execution=f"e{number % 9}") for number in range(total)))
    async with Outcomes(settings, group_id="sub", remember=total) as outcomes, asyncio.timeout(60):
        for _ in range(total):
            await anext(outcomes)
            await asyncio.sleep(0)
            assert outcomes._items.qsize() <= 400 + 500


def test_a_header_name_that_is_no_text_harms_nobody() -> None:
    class Unreadable:
        def headers(self) -> None:
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    assert feed_module._headers(cast("Message", Unreadable())) is None
