"""Live and ready, told truly: in an outage, in a drain, with a blocked loop, and whatever is sent to the port."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from fencepost_dispatch import tool
from fencepost_worker import health as health_module
from fencepost_worker import port as port_module
from fencepost_worker.embedded import EmbeddedBroker
from fencepost_worker.health import Broker, Probes, Signs, not_live, not_ready
from fencepost_worker.port import PortUnavailable, Reply, opened
from fencepost_worker.publisher import Sent
from fencepost_worker.records import Health
from services.brokers import Embedded
from services.clients import eventually
from services.observed import Port, embedded_rig
from services.postgres import Postgres
from services.rig import PATIENCE, Rig

POLL = Health(
    turn_seconds=0.1,
    partitions=(0, 1),
    assigned=True,
    in_flight=0,
    in_flight_bytes=0,
    paused=False,
    auth_error=None,
    error=None,
    oldest=None,
    lag={},
)
WELL = Signs(poll=POLL, sent=Sent(0, None, None), leaving=None, still=0.1, holding=None, ledger=None, lapsed=False)


@pytest.fixture
def rig(embedded_kafka: Embedded, database: str) -> Iterator[Rig]:
    with embedded_rig(embedded_kafka, database) as made:
        yield made


@pytest.fixture
def port() -> Port:
    return Port()


@tool("desk.create")
async def create() -> None:
    pass


# --- the judgement ----------------------------------------------------------------------------------------------------


def test_a_worker_that_stands_by_without_a_partition_is_ready() -> None:
    assert not_ready(replace(WELL, poll=replace(POLL, partitions=())), None) == []


@pytest.mark.parametrize(
    "signs, silence, word",
    [
        (replace(WELL, leaving="draining"), None, "draining"),
        (replace(WELL, poll=replace(POLL, assigned=False)), None, "group"),
        (replace(WELL, ledger="Postgres at db cannot be used"), None, "Postgres"),
        (replace(WELL, lapsed=True), None, "leases"),
        (WELL, "connection refused", "connection refused"),
        (replace(WELL, poll=replace(POLL, auth_error="SASL")), None, "SASL"),
        (replace(WELL, sent=Sent(3, "ACL", None)), None, "ACL"),
        (replace(WELL, still=7.0, holding="desk.block"), None, "desk.block"),
    ],
)
def test_what_is_wrong_is_a_reason_not_to_be_ready_and_none_to_be_restarted(
    signs: Signs, silence: str | None, word: str
) -> None:
    (reason,) = not_ready(signs, silence)
    assert word in reason
    assert not_live(signs) == []


@pytest.mark.parametrize(
    "signs, word", [(replace(WELL, poll=replace(POLL, turn_seconds=61.0)), "poll"), (replace(WELL, still=61.0), "loop")]
)
def test_only_what_does_not_turn_any_more_is_to_be_restarted(signs: Signs, word: str) -> None:
    (reason,) = not_live(signs)
    assert word in reason


def test_an_error_of_one_broker_among_others_is_no_reason() -> None:
    assert not_ready(replace(WELL, poll=replace(POLL, error="one of three is down")), None) == []


def test_brokers_are_asked_once_a_moment_however_often_one_probes() -> None:
    asked: list[float] = []
    broker = Broker(lambda seconds: asked.append(seconds) or "down")
    assert [broker.trouble() for _ in range(100)] == ["down"] * 100
    assert len(asked) == 1


def test_a_probe_is_one_line_of_json_without_secrets() -> None:
    signs = replace(WELL, ledger="refused\nfor user:sesame@db")
    probes = Probes(
        lambda: signs, Broker(lambda _: None), CollectorRegistry(), lambda text: text.replace("sesame", "***")
    )
    reply = probes.readyz()
    assert reply.status == 503
    assert json.loads(reply.body) == {"ready": False, "reasons": ["refused for user:***@db"]}
    assert reply.body.count(b"\n") == 1
    assert probes.livez() == Reply(200, "application/json", b'{"live": true}\n')


# --- the port ---------------------------------------------------------------------------------------------------------


def told(number: int, request: bytes) -> bytes:
    """What the port says to these bytes, until it closes."""
    with socket.create_connection(("127.0.0.1", number), timeout=10) as connection:
        connection.sendall(request)
        said = b""
        try:
            while data := connection.recv(65536):
                said += data
        except ConnectionResetError:
            pass
        return said


@pytest.fixture
def open_port() -> Iterator[int]:
    def fail(_: str) -> Reply:
        raise ZeroDivisionError("sesame")

    routes = {"/livez": lambda _: Reply(200, "text/plain", b"here"), "/fails": fail}
    with opened(0, routes) as number:
        yield number


WELL_FORMED = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    "request_, status",
    [
        (b"\x00\xff\xfe\r\n\r\n", b""),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b""),
        (b"GET\r\n\r\n", b"400"),
        (b"GET /livez HTTP/9.9.9\r\n\r\n", b"400"),
        (b"GET /livez HTTP/3.0\r\n\r\n", b"505"),
        (b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n", b"414"),
        (b"GET /livez HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", b"431"),
        (b"GET /livez HTTP/1.1\r\nA: " + b"b" * 100_000 + b"\r\n\r\n", b"431"),
        (b"POST /livez HTTP/1.1\r\nContent-Length: 9\r\n\r\n", b"501"),
        (b"GET //[::bad HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /nowhere HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /fails HTTP/1.1\r\n\r\n", b"500"),
        (b"GET /livez?verbose=1 HTTP/1.1\r\n\r\n", b"200"),
        (b"GET /livez HTTP/1.1\r\nAccept: \xff;q=x,,;;\r\n\r\n", b"200"),
    ],
    ids=lambda value: repr(value[:40]),
)
def test_whatever_is_asked_is_answered_or_cut_off_and_the_next_one_is_served(
    open_port: int, request_: bytes, status: bytes
) -> None:
    said = told(open_port, request_)
    assert status in said.split(b"\r\n")[0]
    assert b"sesame" not in said
    assert told(open_port, WELL_FORMED).endswith(b"\r\n\r\nhere")


def test_a_head_has_no_body(open_port: int) -> None:
    said = told(open_port, b"HEAD /livez HTTP/1.1\r\n\r\n")
    assert b"Content-Length: 4" in said
    assert said.endswith(b"\r\n\r\n")


def test_whoever_says_nothing_keeps_a_place_for_a_moment_only(monkeypatch: pytest.MonkeyPatch, open_port: int) -> None:
    monkeypatch.setattr(port_module, "SECONDS", 0.3)
    silent = [socket.create_connection(("127.0.0.1", open_port)) for _ in range(port_module.CONNECTIONS + 5)]
    for connection in silent[: port_module.CONNECTIONS]:
        connection.sendall(b"G")
    eventually(lambda: told(open_port, WELL_FORMED).endswith(b"here"))
    for connection in silent:
        connection.close()


def test_a_port_in_use_is_one_line_with_its_cure(open_port: int) -> None:
    with (
        pytest.raises(PortUnavailable, match=r"^port \d+ .*in use.*FENCEPOST_METRICS_PORT") as refused,
        opened(open_port, {}),
    ):
        pass
    assert "\n" not in str(refused.value)


# --- a worker ---------------------------------------------------------------------------------------------------------


async def test_a_worker_whose_port_is_taken_does_not_start(rig: Rig, port: Port) -> None:
    with opened(port.number, {}), pytest.raises(PortUnavailable):
        async with rig.worker(create, metrics_port=port.number):
            pass


async def test_an_idle_worker_tells_that_the_ledger_is_away_and_that_it_is_back(
    rig: Rig, port: Port, postgres: Postgres
) -> None:
    async with rig.worker(create, metrics_port=port.number, lease_seconds=1):
        await rig.until(port.ready)
        await asyncio.to_thread(postgres.stop)
        try:
            await rig.until(lambda: not port.ready())
            status, (reason,) = await asyncio.to_thread(port.probe, "/readyz")
            assert status == 503
            assert "FENCEPOST_LEDGER_DSN" in reason
            assert await asyncio.to_thread(port.value, "fencepost_ledger_up") == 0
            assert await asyncio.to_thread(port.probe, "/livez") == (200, [])
        finally:
            await asyncio.to_thread(postgres.start)
        await rig.until(port.ready)
        assert await asyncio.to_thread(port.value, "fencepost_ledger_up") == 1


async def test_a_ledger_that_has_lost_its_tables_is_told_with_its_cure(rig: Rig, port: Port) -> None:
    async with rig.worker(create, metrics_port=port.number, lease_seconds=1):
        await rig.until(port.ready)
        rig.desk._connection().execute("ALTER SCHEMA fencepost RENAME TO elsewhere")
        await rig.until(lambda: not port.ready())
        _, (reason,) = await asyncio.to_thread(port.probe, "/readyz")
        assert "fencepost migrate" in reason
        rig.desk._connection().execute("ALTER SCHEMA elsewhere RENAME TO fencepost")
        await rig.until(port.ready)


async def test_a_worker_tells_that_no_broker_answers_and_that_one_does_again(database: str, port: Port) -> None:
    with EmbeddedBroker() as kafka, embedded_rig(Embedded(kafka), database) as rig:
        async with rig.worker(create, metrics_port=port.number):
            await rig.until(port.ready)
            kafka.stop_node(1)
            await rig.until(lambda: not port.ready())
            status, (reason,) = await asyncio.to_thread(port.probe, "/readyz")
            kafka.start_node(1)
            await rig.until(port.ready)
    assert status == 503
    assert "Kafka" in reason


async def test_a_worker_that_drains_is_not_ready_and_lives(rig: Rig, port: Port) -> None:
    entered, go = asyncio.Event(), asyncio.Event()

    @tool("desk.wait")
    async def wait() -> None:
        entered.set()
        await go.wait()

    async with rig.worker(wait, metrics_port=port.number) as worker:
        rig.produce(rig.event(tool="desk.wait"))
        await entered.wait()
        assert await asyncio.to_thread(port.ready)
        worker.stop()
        assert await asyncio.to_thread(port.probe, "/readyz") == (503, ["draining"])
        assert await asyncio.to_thread(port.probe, "/livez") == (200, [])
        go.set()
        await rig.outcomes(1)
    with pytest.raises(ConnectionRefusedError):
        port.ask("/livez")


async def test_a_blocked_loop_is_told_while_it_is_blocked(
    rig: Rig, port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_module, "SLOW", 0.7)
    monkeypatch.setattr(health_module, "STUCK", 0.7)
    entered, go = threading.Event(), threading.Event()
    seen: dict[str, Any] = {}

    @tool("desk.block")
    async def block() -> None:
        entered.set()
        go.wait(PATIENCE)

    def look() -> None:
        assert entered.wait(PATIENCE)
        eventually(lambda: port.probe("/livez")[0] == 503)
        seen.update(livez=port.probe("/livez"), readyz=port.probe("/readyz"), metrics=port.ask("/metrics")[0])
        go.set()

    async with rig.worker(block, metrics_port=port.number):
        await rig.until(port.ready)
        looking = asyncio.create_task(asyncio.to_thread(look))
        rig.produce(rig.event(tool="desk.block"))
        await rig.outcomes(1)
        await looking
        await rig.until(port.ready)
    assert seen["metrics"] == 200
    for path in ("livez", "readyz"):
        status, (reason,) = seen[path]
        assert status == 503
        assert "desk.block" in reason
