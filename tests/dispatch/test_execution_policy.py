"""What an execution says of divergence stands over the workers' setting."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from fencepost_dispatch import Line, tool
from fencepost_dispatch.settings import Settings
from fencepost_ledger import Desk
from fencepost_schemas import Dispatch, Outcome


@tool("desk.create")
async def create(title: str) -> str:
    return title


def dispatch(execution: str, title: str, generation: int) -> Dispatch:
    return Dispatch(
        event_id=f"{title}-{generation}",
        execution_id=execution,
        node_id="triage",
        call_index=0,
        generation=generation,
        tool="desk.create",
        arguments={"title": title},
    )


async def another_mind(line: Line, desk: Desk, execution: str) -> Outcome:
    """The node asks for a leak, is dispatched again, and now asks for a fire."""
    await line.run(dispatch(execution, "leak", 1))
    desk.redispatch(execution, "triage")
    return await line.run(dispatch(execution, "fire", 2))


@pytest.mark.parametrize(
    "says, status, result",
    [
        (None, "diverged", None),
        ("refuse", "diverged", None),
        ("adopt", "succeeded", "leak"),
        ("execute", "succeeded", "fire"),
    ],
)
async def test_an_execution_says_for_itself_what_a_diverging_call_gets(
    database: str, says: Any, status: str, result: str | None
) -> None:
    with Desk(database) as desk:
        desk.open_execution("e", "acme", on_divergence=says)
        async with Line([create], Settings(ledger_dsn=database)) as line:
            outcome = await another_mind(line, desk, "e")
    assert (outcome.status, outcome.result) == (status, result)


async def test_opened_again_an_execution_may_change_what_it_says_and_silence_changes_nothing(database: str) -> None:
    with Desk(database) as desk:
        assert desk.open_execution("e", "acme")
        assert not desk.open_execution("e", "acme", on_divergence="execute")
        assert not desk.open_execution("e", "acme")
        async with Line([create], Settings(ledger_dsn=database)) as line:
            outcome = await another_mind(line, desk, "e")
    assert (outcome.status, outcome.result) == ("succeeded", "fire")


def test_a_generation_that_cannot_rise_any_further_is_not_taken_for_a_lost_database(database: str) -> None:
    with Desk(database) as desk, psycopg.connect(database, autocommit=True) as connection:
        desk.open_execution("e", "acme")
        connection.execute("INSERT INTO fencepost.generations VALUES ('e', 'triage', 9223372036854775807)")
        with pytest.raises(ValueError, match="out of range"):
            desk.redispatch("e", "triage")
