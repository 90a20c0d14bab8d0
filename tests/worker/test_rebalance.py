"""Partitions that come and go: drained when revoked, dropped when lost."""

from __future__ import annotations

import threading
import time

import pytest

from services.brokers import Broker
from services.clients import Lookup, eventually, produce
from services.member import Member, NewMember

both_protocols = pytest.mark.parametrize("protocol", ["classic", "consumer"])
PARTITIONS = 2


def full_topic(broker: Broker) -> str:
    topic = broker.new_topic(partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        produce(broker.bootstrap, topic, [b"%d" % partition], partition=partition)
    return topic


@both_protocols
def test_a_revocation_waits_for_what_has_started_and_commits_it(
    broker: Broker, member: NewMember, lookup: Lookup, protocol: str
) -> None:
    topic = full_topic(broker)
    first = member(topic, protocol=protocol)
    records = {record.partition: record for record in first.take(PARTITIONS)}
    assert all(first.thread.current(record) for record in records.values())
    second = member(topic, protocol=protocol, start=False)
    second.thread.start()
    assert first.revoking.wait(20)
    (revoked,) = first.revoked[0]
    first.thread.done(records[revoked])
    eventually(lambda: second.thread.health().partitions == (revoked,))
    assert lookup.committed(topic, revoked) == 1
    produce(broker.bootstrap, topic, [b"next"], partition=revoked)
    assert [record.value for record in second.take(1)] == [b"next"]


@both_protocols
def test_a_revocation_drains_within_its_seconds(broker: Broker, member: NewMember, protocol: str) -> None:
    topic = full_topic(broker)
    first = member(topic, protocol=protocol, drain_seconds=1.0)
    records = {record.partition: record for record in first.take(PARTITIONS)}
    second = member(topic, protocol=protocol, start=False)
    second.thread.start()
    assert first.revoking.wait(20)
    began = time.monotonic()
    (revoked,) = first.revoked[0]
    eventually(lambda: first.thread.health().partitions == (1 - revoked,))
    assert 0.9 < time.monotonic() - began < 4
    (again,) = second.take(1)
    assert (again.partition, again.offset) == (revoked, records[revoked].offset)


@both_protocols
def test_what_has_not_started_is_not_waited_for(broker: Broker, member: NewMember, protocol: str) -> None:
    topic = full_topic(broker)
    first = member(topic, protocol=protocol, drain_seconds=60)
    queued = first.take(PARTITIONS)
    first.on_revoking = lambda _: [first.thread.current(record) for record in queued]
    second = member(topic, protocol=protocol, start=False)
    second.thread.start()
    assert second.take(1)[0].offset == 0


@both_protocols
def test_completions_of_an_old_epoch_are_dropped(
    broker: Broker, member: NewMember, lookup: Lookup, protocol: str
) -> None:
    topic = full_topic(broker)
    first = member(topic, protocol=protocol, drain_seconds=0.2)
    records = {record.partition: record for record in first.take(PARTITIONS)}
    second = member(topic, protocol=protocol, start=False)
    second.thread.start()
    (again,) = second.take(1)
    assert not first.thread.current(records[again.partition])
    first.thread.done(records[again.partition])
    assert second.thread.stop()
    eventually(lambda: first.thread.health().partitions == (0, 1))
    (third_time,) = first.take(1)
    assert (third_time.partition, third_time.offset) == (again.partition, again.offset)
    assert third_time.epoch != records[again.partition].epoch
    assert not lookup.committed(topic, again.partition)
    first.thread.done(third_time)
    eventually(lambda: lookup.committed(topic, again.partition) == 1)


@both_protocols
def test_a_record_of_a_lost_partition_is_not_current_and_nothing_of_it_is_committed(
    broker: Broker, member: NewMember, lookup: Lookup, protocol: str
) -> None:
    topic = full_topic(broker)
    patience = 6.0 if broker.real else 2.0
    one = member(topic, protocol=protocol, drain_seconds=0.1, settings={"max.poll.interval.ms": int(patience * 1_000)})
    records = one.take(PARTITIONS)
    hang_once(one, seconds=patience + 0.7)
    produce(broker.bootstrap, topic, [b"hang"], partition=0)
    assert one.revoking.wait(20), "the partitions were not lost"
    assert not any(one.thread.current(record) for record in records)
    one.thread.done(records)
    eventually(lambda: one.thread.health().partitions == (0, 1))
    again = [record for record in one.take(4) if record.value != b"hang"]
    assert {(record.partition, record.offset) for record in again[-2:]} == {(0, 0), (1, 0)}
    assert not any(lookup.committed(topic, partition) for partition in range(PARTITIONS))
    assert not one.died.is_set()


def hang_once(one: Member, seconds: float) -> None:
    """The next delivery holds the poll thread for longer than the group's patience."""
    hung = threading.Event()

    def deliver(records: object) -> None:
        if not hung.is_set():
            hung.set()
            threading.Event().wait(seconds)

    one.on_deliver = deliver


@both_protocols
def test_partitions_that_were_paused_when_they_went_are_read_when_they_come_back(
    broker: Broker, member: NewMember, protocol: str
) -> None:
    topic = full_topic(broker)
    first = member(topic, protocol=protocol, drain_seconds=0.1)
    records = first.take(PARTITIONS)
    first.thread.stop_taking()
    eventually(lambda: first.thread.health().paused)
    second = member(topic, protocol=protocol, start=False)
    second.thread.start()
    (again,) = second.take(1)
    first.thread._taking = True
    assert second.thread.stop()
    eventually(lambda: first.thread.health().partitions == (0, 1))
    assert first.take(1)[0].partition == again.partition
    first.thread.done(records)


@both_protocols
def test_partitions_assigned_while_everything_is_paused_are_paused_too(
    broker: Broker, member: NewMember, protocol: str
) -> None:
    topic = full_topic(broker)
    first, second = (member(topic, protocol=protocol, start=False) for _ in range(2))
    first.start()
    first.thread.done(first.take(PARTITIONS))
    second.thread.start()
    eventually(lambda: len(first.thread.health().partitions) == 1)
    first.thread.stop_taking()
    eventually(lambda: first.thread.health().paused)
    assert second.thread.stop()
    eventually(lambda: first.thread.health().partitions == (0, 1))
    for partition in range(PARTITIONS):
        produce(broker.bootstrap, topic, [b"late"], partition=partition)
    eventually(lambda: first.thread._paused == {0, 1})
    assert first.records.empty()


@both_protocols
def test_a_member_without_partitions_is_assigned_and_healthy(broker: Broker, member: NewMember, protocol: str) -> None:
    topic = broker.new_topic(partitions=1)
    both = [member(topic, protocol=protocol) for _ in range(2)]
    eventually(lambda: sorted(one.thread.health().partitions for one in both) == [(), (0,)])
