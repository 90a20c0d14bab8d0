"""Faults at start: one line on stderr that names the cure, an exit code that says the kind, and no secret."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fencepost_worker.port import opened
from services.brokers import Embedded, Kafka
from services.rig import PATIENCE

TESTS = Path(__file__).parents[1]


class Start:
    """Starts a worker with these settings and waits for its end."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self._folder = folder
        self._settings = settings | {"METRICS_PORT": "0"}

    def __call__(self, tools: str = "services.desk_tools", **settings: str) -> tuple[int, str]:
        """→ its exit code, and what it wrote on stderr."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("FENCEPOST_")}
        env |= {f"FENCEPOST_{name}": value for name, value in (self._settings | settings).items()}
        env |= {"DESK_EFFECTS": str(self._folder / "effects")}
        env |= {"PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))}
        command = [sys.executable, "-m", "fencepost_worker.cli", "worker", "--tools", tools]
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=PATIENCE, cwd=self._folder, check=False
        )
        return done.returncode, done.stderr


@pytest.fixture
def start(tmp_path: Path, embedded_kafka: Embedded, database: str) -> Start:
    return Start(tmp_path, KAFKA_BOOTSTRAP=embedded_kafka.bootstrap, LEDGER_DSN=database)


@pytest.mark.parametrize(
    "setting, code, words",
    [
        ({"LEDGER_DSN": "postgresql://postgres:sesame@127.0.0.1:1/none"}, 3, "FENCEPOST_LEDGER_DSN"),
        ({"KAFKA_BOOTSTRAP": "127.0.0.1:1"}, 3, "FENCEPOST_KAFKA_BOOTSTRAP"),
        ({"CONCURENCY": "3"}, 1, "FENCEPOST_CONCURRENCY"),
        ({"CONCURRENCY": "none"}, 1, "FENCEPOST_CONCURRENCY"),
        ({"KAFKA__NO_SUCH_THING": "3"}, 1, "no.such.thing"),
        ({"LEDGER_DSN": ""}, 1, "FENCEPOST_LEDGER_DSN"),
    ],
    ids=str,
)
def test_a_fault_at_start_is_one_line_with_its_cure_and_no_secret(
    start: Start, setting: dict[str, str], code: int, words: str
) -> None:
    returned, err = start(**setting)
    (line,) = err.splitlines()
    assert words in line
    assert "sesame" not in err
    assert returned == code


def test_a_wrong_password_is_one_line_and_never_printed(start: Start, database: str) -> None:
    head, host = database.rsplit("@", 1)
    returned, err = start(LEDGER_DSN=f"{head.rsplit(':', 1)[0]}:open-sesame@{host}")
    (line,) = err.splitlines()
    assert "password authentication failed" in line
    assert "open-sesame" not in line
    assert returned == 3


def test_a_ledger_without_its_schema_is_named_with_the_cure(start: Start, empty_database: str) -> None:
    returned, err = start(LEDGER_DSN=empty_database)
    (line,) = err.splitlines()
    assert "fencepost migrate" in line
    assert returned == 1


def test_a_module_of_tools_that_does_not_import_is_named_with_the_cure(start: Start) -> None:
    returned, err = start(tools="no_such_tools")
    (line,) = err.splitlines()
    assert "no_such_tools" in line
    assert returned == 1


def test_a_port_in_use_is_named_with_the_cure(start: Start) -> None:
    with opened(0, {}) as port:
        returned, err = start(METRICS_PORT=str(port))
    line = err.splitlines()[-1]  # the embedded broker's settings of topics are warned of before
    assert f"port {port} " in line
    assert "FENCEPOST_METRICS_PORT" in line
    assert returned == 1


@pytest.mark.kafka
def test_a_missing_topic_is_named_with_the_cure(start: Start, real_kafka_broker: Kafka) -> None:
    returned, err = start(KAFKA_BOOTSTRAP=real_kafka_broker.bootstrap, DISPATCH_TOPIC="no-such-topic")
    (line,) = err.splitlines()
    assert "no-such-topic" in line
    assert "fencepost topics" in line
    assert returned == 1
