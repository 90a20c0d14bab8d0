"""Fixtures for every test: the services, a database each, topics each. `tests/services` says where they come from."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from hypothesis import settings

from services import Unavailable, brokers
from services import postgres as postgres_service
from services.brokers import Broker, Embedded, Kafka, embedded_broker, real_kafka
from services.cluster import KafkaCluster
from services.postgres import Postgres, postgres_server
from services.shelves import Bucket, s3_server, variables

settings.register_profile("fast", max_examples=50, deadline=None)
settings.register_profile("ci", max_examples=200, deadline=None, derandomize=True, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "fast"))

_BACKENDS = ("embedded", pytest.param("kafka", marks=pytest.mark.kafka))
_used = pytest.StashKey[dict[str, str]]()


def pytest_report_header() -> str:
    return f"services: kafka={brokers.planned()}, postgres={postgres_service.planned()}"


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_used] = {}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if used := config.stash[_used]:
        terminalreporter.write_line("services used: " + ", ".join(f"{kind}={name}" for kind, name in used.items()))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What asks for `broker` runs against both, or against real Kafka alone where it is marked ``kafka``."""
    if "broker" in metafunc.fixturenames:
        real_only = metafunc.definition.get_closest_marker("kafka") is not None
        metafunc.parametrize("broker", _BACKENDS[1:] if real_only else _BACKENDS, indirect=True)


@pytest.fixture(scope="session")
def embedded_kafka(pytestconfig: pytest.Config) -> Iterator[Embedded]:
    """The broker inside librdkafka."""
    with embedded_broker() as broker:
        pytestconfig.stash[_used].setdefault("embedded broker", broker.name)
        yield broker


@pytest.fixture(scope="session")
def _real_kafka_or_reason(pytestconfig: pytest.Config) -> Iterator[Kafka | Unavailable]:
    # An error of a session fixture is raised once for each test; the search for Kafka should happen once for all.
    source = real_kafka()
    try:
        kafka = source.__enter__()
    except Unavailable as reason:
        pytestconfig.stash[_used]["kafka"] = f"none ({reason})"
        yield reason
        return
    pytestconfig.stash[_used]["kafka"] = kafka.name
    yield kafka
    source.__exit__(None, None, None)


@pytest.fixture(scope="session")
def real_kafka_broker(_real_kafka_or_reason: Kafka | Unavailable) -> Kafka:
    """Real Apache Kafka; skips, with the reason, where there is none."""
    if isinstance(_real_kafka_or_reason, Unavailable):
        pytest.skip(str(_real_kafka_or_reason))
    return _real_kafka_or_reason


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest, _real_kafka_or_reason: Kafka | Unavailable) -> Broker:
    """The best Kafka there is, for tests that do not mind which."""
    if isinstance(_real_kafka_or_reason, Kafka):
        return _real_kafka_or_reason
    embedded: Embedded = request.getfixturevalue("embedded_kafka")
    return embedded


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> Broker:
    """Each kind of Kafka in turn, ids ``embedded`` and ``kafka``; a test marked ``kafka`` gets the real one alone."""
    name = "embedded_kafka" if request.param == "embedded" else "real_kafka_broker"
    found: Broker = request.getfixturevalue(name)
    return found


@pytest.fixture
def cluster(real_kafka_broker: Kafka) -> Iterator[KafkaCluster]:
    """The brokers of `real_kafka_broker`, to kill, stop, pause and start; whole again after the test."""
    if real_kafka_broker.cluster is None:
        pytest.skip(f"hurts brokers, and those of {real_kafka_broker.name} are not ours to hurt")
    yield real_kafka_broker.cluster
    real_kafka_broker.cluster.heal()


class Topics:
    """Topics that no other test has, on the test's `broker`: three by role, made when first named, and `new`."""

    def __init__(self, broker: Broker, partitions: int = 4) -> None:
        self.new = broker.new_topic
        self._partitions = partitions
        self._made: dict[str, str] = {}

    def _role(self, stem: str) -> str:
        if stem not in self._made:
            self._made[stem] = self.new(stem, self._partitions)
        return self._made[stem]

    @property
    def dispatch(self) -> str:
        return self._role("tool.dispatch")

    @property
    def outcome(self) -> str:
        return self._role("tool.outcome")

    @property
    def dead_letter(self) -> str:
        return self._role("tool.dead-letter")


@pytest.fixture
def topics(broker: Broker) -> Topics:
    """`Topics` on the test's `broker`."""
    return Topics(broker)


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> Iterator[Postgres]:
    """The Postgres server of the run."""
    with postgres_server() as server:
        pytestconfig.stash[_used]["postgres"] = server.name
        yield server
        server.drop_template()


@pytest.fixture
def database(postgres: Postgres) -> Iterator[str]:
    """The DSN of a fresh database with the ledger's newest schema; dropped after the test."""
    name = postgres.new_database(postgres.migrated())
    yield postgres.dsn(name)
    postgres.drop(name)


@pytest.fixture(scope="module")
def module_database(postgres: Postgres) -> Iterator[str]:
    """As `database`, one for a whole module: tests that share it begin with `emptied`."""
    name = postgres.new_database(postgres.migrated())
    yield postgres.dsn(name)
    postgres.drop(name)


@pytest.fixture
def empty_database(postgres: Postgres) -> Iterator[str]:
    """The DSN of a fresh database with nothing in it; dropped after the test."""
    name = postgres.new_database()
    yield postgres.dsn(name)
    postgres.drop(name)


@pytest.fixture(scope="session")
def _s3() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def bucket(_s3: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A bucket that no other test has, at a server that speaks S3; the environment says how to reach it."""
    for name, value in variables(_s3).items():
        monkeypatch.setenv(name, value)
    return Bucket(_s3)


@pytest.fixture(scope="session")
def kcat() -> str:
    """The path of kcat, a Kafka client that is not ours; skips where it is not installed."""
    path = shutil.which("kcat") or shutil.which("kafkacat")
    if path is None:
        pytest.skip("needs kcat (Debian: apt-get install kcat)")
    return path
