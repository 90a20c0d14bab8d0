"""The poll thread on a broker: delivery, offsets, limits and ends."""

from __future__ import annotations

import ctypes
import threading
import time

import pytest
from confluent_kafka import KafkaError, Producer, cimpl

from fencepost_worker.consumer import Limits, PollThread
from fencepost_worker.embedded import EmbeddedBroker
from fencepost_worker.membership import consumer_config
from services.brokers import Broker, unique
from services.clients import Lookup, eventually, in_transactions, produce
from services.member import Member, NewMember

both_protocols = pytest.mark.parametrize("protocol", ["classic", "consumer"])


def values(count: int, size: int = 4) -> list[bytes]:
    return [b"%0*d" % (size, number) for number in range(count)]


@both_protocols
def test_an_out_of_order_completion_never_commits_past_an_unfinished_event(
    broker: Broker, member: NewMember, lookup: Lookup, protocol: str
) -> None:
    topic = broker.new_topic()
    produce(broker.bootstrap, topic, values(5))
    one = member(topic, protocol=protocol)
    records = one.take(5)
    one.thread.done([records[0], records[1], records[3], records[4]])
    assert one.thread.stop()
    assert lookup.committed(topic) == 2


@both_protocols
def test_a_new_member_continues_at_the_first_unfinished_event(broker: Broker, member: NewMember, protocol: str) -> None:
    topic = broker.new_topic()
    produce(broker.bootstrap, topic, values(4))
    first = member(topic, protocol=protocol)
    first.thread.done(first.take(4)[:2])
    assert first.thread.stop()
    second = member(topic, protocol=protocol)
    assert [record.value for record in second.take(2)] == [b"0002", b"0003"]


def test_completions_are_committed_while_the_worker_runs(broker: Broker, member: NewMember, lookup: Lookup) -> None:
    topic = broker.new_topic()
    produce(broker.bootstrap, topic, values(3))
    one = member(topic)
    for record in one.take(3):
        one.thread.done(record)
    eventually(lambda: lookup.lag(topic) == 0)


def test_gaps_do_not_stop_the_watermark(broker: Broker, member: NewMember, lookup: Lookup) -> None:
    topic = broker.new_topic()
    in_transactions(
        broker.bootstrap, topic, ([b"a", b"b"], True), ([b"x"], False), ([b"c", b"d"], True), ([b"e"], True)
    )
    one = member(topic)
    records = []
    while not records or records[-1].value != b"e":
        records += one.take(1)
    offsets = [record.offset for record in records]
    assert offsets != list(range(offsets[0], offsets[0] + len(offsets))), "there is no gap"
    unfinished = next(record for record in records if record.value == b"c")
    one.thread.done([record for record in reversed(records) if record is not unfinished])
    eventually(lambda: lookup.committed(topic) == unfinished.offset)
    one.thread.done(unfinished)
    eventually(lambda: lookup.lag(topic) == 0)


def test_lag_is_exactly_zero_after_a_trailing_marker(broker: Broker, member: NewMember, lookup: Lookup) -> None:
    topic = broker.new_topic()
    in_transactions(broker.bootstrap, topic, ([b"a"], True))
    one = member(topic)
    (record,) = one.take(1)
    one.thread.done(record)
    eventually(lambda: lookup.committed(topic) == 2)
    assert lookup.lag(topic) == 0


def test_tombstones_null_keys_and_null_headers_are_delivered(broker: Broker, member: NewMember) -> None:
    topic = broker.new_topic()
    produce(broker.bootstrap, topic, [None, b""])
    produce(broker.bootstrap, topic, [b"v"], key=b"k", headers=[("a", None), ("a", b"\xff"), ("", b"")], timestamp=1234)
    tombstone, empty, full = member(topic).take(3)
    assert (tombstone.key, tombstone.value, tombstone.headers, tombstone.size) == (None, None, None, 0)
    assert (empty.key, empty.value) == (None, b"")
    assert (full.key, full.value, full.timestamp) == (b"k", b"v", 1234)
    assert full.headers == [("a", None), ("a", b"\xff"), ("", b"")]
    assert full.size == 5


def test_header_names_that_are_not_utf8_do_not_stop_the_partition(broker: Broker, member: NewMember) -> None:
    topic = broker.new_topic()
    produce(broker.bootstrap, topic, values(100), headers=[("good", b"v")])  # Python has warmed up when it comes
    produce_with_header_name(broker.bootstrap, topic, b"bad\xff")
    produce(broker.bootstrap, topic, [b"next"])
    *_, strange, following = member(topic).take(102)
    assert (strange.value, strange.headers) == (b"strange", None)
    assert following.value == b"next"


def produce_with_header_name(bootstrap: str, topic: str, name: bytes) -> None:
    """confluent-kafka cannot write such a header, the C library under it can."""
    kafka = ctypes.CDLL(cimpl.__file__)
    for function in (kafka.rd_kafka_conf_new, kafka.rd_kafka_new, kafka.rd_kafka_headers_new):
        function.restype = ctypes.c_void_p
    why = ctypes.create_string_buffer(512)
    config = ctypes.c_void_p(kafka.rd_kafka_conf_new())
    kafka.rd_kafka_conf_set(config, b"bootstrap.servers", bootstrap.encode(), why, ctypes.c_size_t(512))
    client = ctypes.c_void_p(kafka.rd_kafka_new(0, config, why, ctypes.c_size_t(512)))
    headers = ctypes.c_void_p(kafka.rd_kafka_headers_new(ctypes.c_size_t(1)))
    kafka.rd_kafka_header_add(headers, name, ctypes.c_ssize_t(-1), b"v", ctypes.c_ssize_t(1))
    # rd_kafka_vtype_t: topic 1, partition 3, value 4, headers 10, end 0
    fields = (1, topic.encode(), 3, ctypes.c_int32(0), 4, b"strange", ctypes.c_size_t(7), 10, headers, 0)
    assert kafka.rd_kafka_producev(client, *fields) == 0
    assert kafka.rd_kafka_flush(client, 20_000) == 0
    kafka.rd_kafka_destroy(client)


def test_above_a_limit_it_pauses_and_only_well_below_it_goes_on(broker: Broker, member: NewMember) -> None:
    topic = broker.new_topic()
    produce(broker.bootstrap, topic, values(100))
    one = member(topic, limits=Limits(records=16, low=0.5))
    records = one.take(16)
    eventually(lambda: one.thread.health().paused)
    one.thread.done(records[:7])
    eventually(lambda: one.thread.health().in_flight == 9)
    assert one.thread.health().paused
    one.thread.done(records[7])
    rest = one.take(8)
    assert one.records.empty()
    assert [record.value for record in [*records, *rest]] == values(24)


def test_the_bytes_in_flight_are_bounded(broker: Broker, member: NewMember) -> None:
    topic = broker.new_topic()
    produce(broker.bootstrap, topic, values(40, size=50_000))
    one = member(topic, limits=Limits(size=400_000))
    taken = one.take(8)
    eventually(lambda: one.thread.health().paused)
    assert one.thread.health().in_flight_bytes <= 450_000
    while len(taken) < 40:
        one.thread.done(taken)
        taken += one.take(1)
    assert [record.value for record in taken] == values(40, size=50_000)


def test_a_partition_whose_unfinished_offsets_lie_too_far_apart_is_paused_alone(
    broker: Broker, member: NewMember
) -> None:
    topic = broker.new_topic(partitions=2)
    produce(broker.bootstrap, topic, values(50), partition=0)
    one = member(topic, limits=Limits(span=40))
    stuck, *others = one.take(50)
    one.thread.done(others)
    eventually(lambda: one.thread._paused == {0})
    produce(broker.bootstrap, topic, [b"held back"], partition=0)
    produce(broker.bootstrap, topic, [b"elsewhere"], partition=1)
    assert one.take(1)[0].value == b"elsewhere"
    one.thread.done(stuck)
    assert one.take(1)[0].value == b"held back"


def test_it_keeps_polling_while_everything_is_paused(broker: Broker, member: NewMember) -> None:
    topic = broker.new_topic()
    produce(broker.bootstrap, topic, values(4))
    patience = 6.0 if broker.real else 2.0
    settings = {"max.poll.interval.ms": int(patience * 1_000)}
    one = member(topic, limits=Limits(records=2), settings=settings, drain_seconds=0.5)
    records = one.take(2)
    long_call = time.monotonic() + patience + 1
    eventually(lambda: time.monotonic() > long_call)
    assert one.revoked == []
    one.thread.done(records)
    assert [record.value for record in one.take(2)] == values(4)[2:]


def test_after_stop_taking_nothing_is_delivered_and_completions_are_still_committed(
    broker: Broker, member: NewMember, lookup: Lookup
) -> None:
    topic = broker.new_topic()
    produce(broker.bootstrap, topic, values(2))
    one = member(topic)
    records = one.take(2)
    one.thread.stop_taking()
    eventually(lambda: one.thread.health().paused)
    produce(broker.bootstrap, topic, [b"late"])
    one.thread.done(records)
    eventually(lambda: lookup.committed(topic) == 2)
    assert one.records.empty()


def test_a_group_without_commits_starts_at_the_oldest_record(broker: Broker, member: NewMember) -> None:
    topic = broker.new_topic()
    produce(broker.bootstrap, topic, values(2))
    assert [record.offset for record in member(topic).take(2)] == [0, 1]


def test_a_commit_that_the_broker_no_longer_has_starts_at_the_oldest_record(
    broker: Broker, member: NewMember, lookup: Lookup
) -> None:
    topic = broker.new_topic()
    produce(broker.bootstrap, topic, values(3))
    lookup.commit(topic, 1_000)
    one = member(topic)
    assert [record.value for record in one.take(3)] == values(3)
    produce(broker.bootstrap, topic, [b"more"])
    assert one.take(1)[0].value == b"more"


def test_health_names_the_oldest_unfinished_record(broker: Broker, member: NewMember) -> None:
    topic = broker.new_topic()
    produce(broker.bootstrap, topic, values(3))
    one = member(topic)
    records = one.take(3)
    one.thread.done(records[0])
    oldest = eventually(lambda: (seen := one.thread.health().oldest) and seen.offset == 1 and seen)
    assert (oldest.topic, oldest.partition) == (topic, 0)
    assert 0 < oldest.seconds < 20
    assert one.thread.health().turn_seconds < 5
    assert one.thread.health().partitions == (0, 1, 2, 3)
    one.thread.done(records[1:])
    eventually(lambda: one.thread.health().oldest is None)


def test_refused_access_shows_in_health_until_the_broker_answers_again(broker: Broker, member: NewMember) -> None:
    topic = broker.new_topic()
    one = member(topic)
    one.thread._faults.note(KafkaError(KafkaError._AUTHENTICATION, "wrong password"))
    assert one.thread.health().auth_error == "wrong password"
    produce(broker.bootstrap, topic, [b"v"])
    one.take(1)
    assert one.thread.health().auth_error is None


def test_a_poll_thread_that_dies_says_why(broker: Broker, member: NewMember) -> None:
    topic = broker.new_topic()
    one = member(topic)
    reason = RuntimeError("the event loop is closed")

    def raising(records: object) -> None:
        raise reason

    one.on_deliver = raising
    produce(broker.bootstrap, topic, [b"v"])
    assert one.died.wait(20)
    assert one.reason is reason


def test_what_was_taken_by_a_dying_thread_is_not_committed(broker: Broker, member: NewMember, lookup: Lookup) -> None:
    topic = broker.new_topic()
    one = member(topic)

    def raising(records: object) -> None:
        raise RuntimeError

    one.on_deliver = raising
    produce(broker.bootstrap, topic, [b"v"])
    assert one.died.wait(20)
    one.thread.join(20)
    assert not lookup.committed(topic)
    assert member(topic).take(1)[0].value == b"v"


def test_closing_with_the_broker_gone_ends_under_the_watchdog() -> None:
    with EmbeddedBroker() as broker:
        topic = unique("gone")
        broker.create_topic(topic)
        produce(broker.bootstrap, topic, values(3))
        one = Member(broker.bootstrap, topic, "group", settings={"socket.timeout.ms": 1_000}).start()
        one.thread.done(one.take(3))
        broker.stop_node(1)
        eventually(lambda: one.thread.health().error)
        started = time.monotonic()
        assert not one.thread.stop(timeout=1.0)
        assert time.monotonic() - started < 3
        broker.start_node(1)
        one.thread.join(30)
        assert not one.thread.is_alive()


def test_a_thread_that_was_never_started_can_be_stopped(broker: Broker, member: NewMember) -> None:
    assert member(broker.new_topic(), start=False).thread.stop()


def test_idle_members_use_next_to_no_cpu(broker: Broker, member: NewMember) -> None:
    one = member(broker.new_topic())
    turns = 0
    turn = one.thread._turn

    def counted() -> None:
        nonlocal turns
        turns += 1
        turn()

    one.thread._turn = counted  # type: ignore[method-assign]
    threading.Event().wait(1.0)
    assert turns <= 15


@pytest.mark.parametrize(
    "settings, complaint",
    [
        ({"enable.auto.offset.store": True}, "enable.auto.offset.store must stay false"),
        ({"auto.offset.reset": "latest"}, "auto.offset.reset must stay error"),
        ({"isolation.level": "read_uncommitted"}, "isolation.level must stay read_committed"),
        ({"partition.assignment.strategy": "range"}, "partition.assignment.strategy must be cooperative-sticky"),
        ({"max.poll.interval.ms": 20_000}, "max.poll.interval.ms must be longer than the drain"),
        ({"group.id": ""}, "group.id is missing"),
    ],
)
def test_settings_that_break_the_promise_are_refused(settings: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        consumer_config({"bootstrap.servers": "x", "group.id": "g", **settings}, "classic", drain_seconds=25)


def test_settings_of_the_classic_protocol_are_refused_with_the_new_one() -> None:
    with pytest.raises(ValueError, match=r"session\.timeout\.ms belongs to the classic group protocol"):
        consumer_config({"group.id": "g", "session.timeout.ms": 6_000}, "consumer")


def test_a_setting_unknown_to_librdkafka_is_refused_before_the_thread_starts() -> None:
    with pytest.raises(Exception, match="No such configuration property"):
        PollThread({"group.id": "g", "no.such": "1"}, "t", print, print)


def test_the_prefetch_is_bounded_in_bytes() -> None:
    assert consumer_config({"group.id": "g"})["queued.max.messages.kbytes"] <= 16_384


def test_a_burst_is_delivered_in_batches(broker: Broker, member: NewMember) -> None:
    topic = broker.new_topic()
    one = member(topic, start=False)
    wakeups = 0

    def counting(records: object) -> None:
        nonlocal wakeups
        wakeups += 1

    one.on_deliver = counting
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 2})
    for value in values(2_000):
        producer.produce(topic, value, partition=0)
    assert producer.flush(20) == 0
    one.start()
    for _ in range(4):
        one.thread.done(one.take(500))
    assert wakeups < 200
