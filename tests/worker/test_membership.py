"""What a client says of its faults, and for how long that holds."""

from __future__ import annotations

from confluent_kafka import KafkaError

from fencepost_worker.membership import Faults, is_member


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_fault_of_a_connection_that_is_not_repeated_is_over() -> None:
    clock = Clock()
    faults = Faults(clock)
    faults.note(KafkaError(KafkaError._AUTHENTICATION, "wrong password"))
    faults.note(KafkaError(KafkaError._TRANSPORT, "connection refused"))
    clock.now = 59
    assert (faults.access, faults.other) == ("wrong password", "connection refused")
    faults.note(KafkaError(KafkaError._TRANSPORT, "connection refused"))
    clock.now = 61
    assert (faults.access, faults.other) == (None, "connection refused")


def test_a_missing_permission_holds_until_the_brokers_answer() -> None:
    clock = Clock()
    faults = Faults(clock)
    faults.note(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "no access"))
    clock.now = 10_000
    assert faults.access == "no access"
    faults.over()
    assert faults.access is None


def test_a_group_that_hands_out_nothing_is_one_after_some_seconds() -> None:
    assert is_member('{"cgrp": {"state": "up", "stateage": 3000}}')
    assert not is_member('{"cgrp": {"state": "up", "stateage": 2999}}')
    assert not is_member('{"cgrp": {"state": "wait-broker", "stateage": 60000}}')
    assert not is_member("{}")
