from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pytest

from fencepost_dispatch.settings import Settings
from services import answering
from services.answering import FakeWorker
from services.brokers import Broker


class HasTopics(Protocol):
    @property
    def dispatch(self) -> str: ...
    @property
    def outcome(self) -> str: ...
    @property
    def dead_letter(self) -> str: ...


@pytest.fixture
def settings(broker: Broker, topics: HasTopics) -> Settings:
    return Settings.load(
        kafka_bootstrap=broker.bootstrap,
        dispatch_topic=topics.dispatch,
        outcome_topic=topics.outcome,
        dead_letter_topic=topics.dead_letter,
    )


@pytest.fixture
def fake_worker(settings: Settings) -> Iterator[FakeWorker]:
    with answering.fake_worker(settings) as worker:
        yield worker
