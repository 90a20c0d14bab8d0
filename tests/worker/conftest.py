"""Members of a consumer group, and a look at what it has committed."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from services.brokers import Broker
from services.clients import Lookup
from services.member import Member, NewMember


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def member(broker: Broker, group: str) -> Iterator[NewMember]:
    """Makes started members of the test's group; all are closed afterwards."""
    members: list[Member] = []
    session = 6_000 if broker.real else 1_500  # the embedded group waits for this long (less a second) to rebalance

    def new(topic: str, *, start: bool = True, **options: Any) -> Member:
        members.append(made := Member(broker.bootstrap, topic, group, session=session, **options))
        return made.start() if start else made

    yield new
    for one in members:
        one.thread.stop(10)


@pytest.fixture
def lookup(broker: Broker, group: str) -> Iterator[Lookup]:
    client = Lookup(broker.bootstrap, group)
    yield client
    client.close()
