"""`fencepost dev`: paste two lines, talk to it with any Kafka client, and end it."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from services.processes import Family, environment, passable

_TOOLS = """
from fencepost_dispatch import tool

@tool("mine.create")
def create(n: int) -> int:
    return n
"""

EVENT = {
    "event_id": "1",
    "execution_id": "try",
    "node_id": "first",
    "call_index": 0,
    "generation": 1,
    "tool": "tickets.create",
    "arguments": {"project": "OPS", "title": "Disk full"},
}


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return passable(tmp_path_factory, "dev")


def dev(folder: Path, *options: str) -> Family:
    command = [sys.executable, "-m", "fencepost_worker.cli", "dev", *options]
    return Family(command, env=environment(TMPDIR=str(folder)), cwd=folder)


def exported(family: Family) -> dict[str, str]:
    """The two lines for a shell."""
    assert family.process.stdout is not None
    lines = [family.process.stdout.readline() for _ in range(2)]
    found = [re.fullmatch(r"export FENCEPOST_(\w+)=(\S+)\n", line) for line in lines]
    assert all(found), lines
    return {match[1]: match[2] for match in found if match}


def asked(bootstrap: str, event: dict[str, Any]) -> dict[str, Any]:
    """One dispatch from a plain client → its outcome."""
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 2})
    producer.produce("tool.dispatch", json.dumps(event), event["execution_id"])
    assert producer.flush(20) == 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"})
    consumer.subscribe(["tool.outcome"])
    message = consumer.poll(30)
    consumer.close()
    assert message is not None
    assert message.error() is None
    return json.loads(message.value() or b"")  # type: ignore[no-any-return]


def ended(family: Family, how: signal.Signals) -> str:
    family.process.send_signal(how)
    _, err = family.process.communicate(timeout=30)
    assert family.process.returncode == 0, err
    return err


@pytest.mark.slow
def test_dev_serves_plain_clients_and_ends_without_a_trace(folder: Path) -> None:
    with dev(folder) as family:
        services = exported(family)
        outcome = asked(services["KAFKA_BOOTSTRAP"], EVENT)
        assert outcome["status"] == "succeeded"
        assert outcome["result"] == {"key": "OPS-1", "title": "Disk full"}
        err = ended(family, signal.SIGINT)
    assert "consumer property" not in err
    assert family.descendants > 1
    assert not family.left()
    assert not list(folder.iterdir())


@pytest.mark.slow
def test_dev_keeps_the_ledger_in_the_folder_that_it_is_given(folder: Path) -> None:
    kept = folder / "kept"
    with dev(folder, "--data", str(kept)) as first:
        assert asked(exported(first)["KAFKA_BOOTSTRAP"], EVENT)["executed"]
        ended(first, signal.SIGTERM)
    with dev(folder, "--data", str(kept)) as second:
        assert asked(exported(second)["KAFKA_BOOTSTRAP"], EVENT)["replayed"]
        ended(second, signal.SIGTERM)
    assert not second.left()
    assert [path.name for path in folder.iterdir()] == ["kept"]


@pytest.mark.slow
def test_dev_serves_the_tools_that_it_is_given(folder: Path) -> None:
    (folder / "my_tools.py").write_text(_TOOLS)
    with dev(folder, "--tools", "my_tools") as family:
        event = EVENT | {"tool": "mine.create", "arguments": {"n": 7}}
        assert asked(exported(family)["KAFKA_BOOTSTRAP"], event)["result"] == 7
        assert "curl" not in ended(family, signal.SIGINT)
    assert not family.left()
