"""A record that the client gave out is handed over before the client is asked for anything else."""

from __future__ import annotations

from typing import Any

from services.brokers import Broker
from services.clients import produce
from services.member import NewMember


class Watched:
    """The client; at each call it looks whether what it gave out before has been handed over."""

    def __init__(self, client: Any, handed_over: Any) -> None:
        self._client = client
        self._handed_over = handed_over
        self.given = 0
        self.kept: list[str] = []

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._client, name)
        return self._look(name, attribute) if callable(attribute) else attribute

    def _look(self, name: str, method: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._handed_over() != self.given:
                self.kept.append(name)
            answer = method(*args, **kwargs)
            if name == "consume":
                self.given += sum(message.error() is None for message in answer)
            return answer

        return call


def test_no_record_is_in_hand_while_the_client_may_serve_a_revocation(
    broker: Broker, topics: Any, member: NewMember
) -> None:
    one = member(topics.dispatch, start=False)
    delivered: list[Any] = []
    deliver = one.thread._deliver

    def count(records: list[Any]) -> None:
        delivered.extend(records)
        deliver(records)

    one.thread._deliver = count
    watched = Watched(one.thread._consumer, lambda: len(delivered))
    one.thread._consumer = watched
    one.start()
    for number in range(20):  # one after the other: each wakes the thread up
        produce(broker.bootstrap, topics.dispatch, [b"%d" % number] * 3)
        one.records.get(timeout=20)
    assert watched.given > 0
    assert not watched.kept
