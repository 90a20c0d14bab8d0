"""A worker killed at every arrow of the line: the call acts at most once, and its last truth is published."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services import killed_worker
from services.brokers import Broker
from services.rig import PATIENCE, Rig
from services.worker_processes import Processes

# What is known afterwards. From the commit of the reservation to that of the end, a lost holder means "unknown".
AFTER = {
    "taken, not decoded": "succeeded",
    "decoded, not admitted": "succeeded",
    "admitted, not committed": "succeeded",
    "committed, tool not entered": "indeterminate",
    "entered, not acted": "indeterminate",
    "acted, not returned": "indeterminate",
    "finalized, not committed": "indeterminate",
    "finalize committed, not published": "succeeded",
    "publishing, not acknowledged": "succeeded",
    "settled, not committed": "succeeded",
    "settle committed": "succeeded",
    "offset not stored": "succeeded",
    "offset stored, not committed": "succeeded",
}
ACTED = {"entered, not acted": 0, "committed, tool not entered": 0}


@pytest.fixture
def rig(embedded_kafka: Broker, database: str) -> Iterator[Rig]:
    made = Rig(embedded_kafka, Roles(embedded_kafka), database)
    yield made
    made.close()


class Roles:
    """Topics of one partition: the order of the answers is the order of the deliveries."""

    def __init__(self, broker: Broker) -> None:
        self.dispatch, self.outcome, self.dead_letter = (
            broker.new_topic(stem, 1) for stem in ("tool.dispatch", "tool.outcome", "tool.dead-letter")
        )


@pytest.fixture
def processes(rig: Rig, tmp_path: Path) -> Iterator[Processes]:
    made = Processes(rig, tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("arrow", AFTER, ids=str)
async def test_killed_at_any_arrow_a_call_acts_at_most_once_and_its_last_truth_is_published(
    rig: Rig, processes: Processes, arrow: str
) -> None:
    event = rig.event(arguments={"n": 1})
    rig.produce(event)
    killed = processes.start("services.killed_worker", arrow)
    assert killed.wait(PATIENCE) == -9
    # Another group has none of the dead one's commits: the record is delivered again, whatever was committed.
    processes.start(GROUP_ID=f"{rig.group}-again")
    outcome: dict[str, Any] = {}
    while not outcome.get("replayed") and outcome.get("status") != AFTER[arrow]:
        (outcome,) = await rig.outcomes(1)
        assert outcome["event_id"] == event["event_id"]
    assert outcome["status"] == AFTER[arrow]
    assert processes.effects().total() == ACTED.get(arrow, 1)
    (call,) = rig.desk.calls()
    assert call.state == {"succeeded": "completed"}.get(AFTER[arrow], AFTER[arrow])


async def test_killed_before_a_dead_letter_was_acknowledged_the_record_is_buried_again(
    rig: Rig, processes: Processes
) -> None:
    rig.produce(b"garbage")
    assert processes.start("services.killed_worker", "publishing, not acknowledged").wait(PATIENCE) == -9
    processes.start(GROUP_ID=f"{rig.group}-again")
    assert [letter.value() for letter in await rig.dead_letters(2)] == [b"garbage"] * 2


def test_every_arrow_is_tried() -> None:
    assert killed_worker.ARROWS.keys() == AFTER.keys()
