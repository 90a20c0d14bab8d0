"""A cluster of Apache Kafka (KRaft): one JVM a node, broker and controller in one, which tests may kill and pause."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from fencepost_worker.guard import Guarded, free_ports
from services import Unavailable
from services.distribution import Distribution

# What differs from a production broker differs to notice a dead peer and to rebalance within seconds.
_SETTINGS = """
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={folder}
auto.create.topics.enable=false
default.replication.factor={copies}
min.insync.replicas={quorum}
num.partitions=4
offsets.topic.num.partitions=4
offsets.topic.replication.factor={copies}
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor={copies}
transaction.state.log.min.isr={quorum}
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor={copies}
share.coordinator.state.topic.min.isr={quorum}
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=3000
replica.lag.time.max.ms=3000
controller.quorum.election.timeout.ms=500
controller.quorum.fetch.timeout.ms=1500
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
group.consumer.assignment.interval.ms=0
group.consumer.heartbeat.interval.ms=500
group.consumer.min.heartbeat.interval.ms=500
group.consumer.session.timeout.ms=6000
group.consumer.min.session.timeout.ms=2000
log.cleaner.backoff.ms=500
log.cleaner.dedupe.buffer.size=4194304
log.initial.task.delay.ms=1000
log.retention.check.interval.ms=2000
num.network.threads=2
num.io.threads=4
"""

# Made on first use otherwise, which costs the first consumer of a run three seconds.
_INTERNAL = ("__consumer_offsets", "__transaction_state")
_INTERNAL_SETTINGS = {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600"}
Check = Callable[[AdminClient, set[int]], bool]

_QUIET = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",)


class KafkaCluster:
    """Nodes 1 … ``nodes`` on loopback; topics are replicated to three of them, two have to acknowledge.

    ``start_all`` to ``close``, as a context manager. A node that was killed, stopped or paused comes back with `start`
    or `resume`, at its address and with its data; `heal` brings back whatever is away.
    """

    def __init__(self, distribution: Distribution, nodes: int = 3, options: tuple[str, ...] = ()) -> None:
        self.nodes = tuple(range(1, nodes + 1))
        self._distribution = distribution
        self._options = options
        self._folder = Path(tempfile.mkdtemp(prefix="fencepost-kafka-"))
        ports = free_ports(2 * nodes)
        self._ports = dict(zip(self.nodes, ports[:nodes], strict=True))
        self._controllers = dict(zip(self.nodes, ports[nodes:], strict=True))
        self._running: dict[int, Guarded] = {}
        self._paused: set[int] = set()

    def __enter__(self) -> Self:
        return self.start_all()

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        return ",".join(map(self.address, self.nodes))

    @property
    def copies(self) -> int:
        """How many replicas a topic has."""
        return min(3, len(self.nodes))

    def address(self, node: int) -> str:
        return f"127.0.0.1:{self._ports[node]}"

    def log(self, node: int) -> Path:
        return self._folder / f"{node}.log"

    def pid(self, node: int) -> int:
        return self._running[node].pid

    def admin(self, node: int | None = None) -> AdminClient:
        """A client of the cluster, by way of one node when it is named."""
        address = self.bootstrap if node is None else self.address(node)
        return AdminClient({"bootstrap.servers": address, "log_level": 0, "reconnect.backoff.max.ms": 100})

    def start_all(self) -> Self:
        try:
            for node in self.nodes:
                self._prepare(node)
                self._launch(node)
            self._until_all_are_there(timeout=90)
            self._make_internal_topics()
        except BaseException:
            self.close()
            raise
        return self

    def start(self, node: int, *, timeout: float = 60.0) -> None:
        """Starts a node that is away, and returns when the others know it again."""
        self._launch(node)
        self._until_all_are_there(timeout, {n for n in self._running if n not in self._paused})

    def kill(self, node: int) -> None:
        """SIGKILL: no goodbye to anybody."""
        self._running.pop(node).stop(signal.SIGKILL)
        self._paused.discard(node)

    def stop(self, node: int, *, timeout: float = 30.0) -> None:
        """An orderly shutdown: leadership moves to other nodes first. SIGKILL after ``timeout`` seconds."""
        self._running.pop(node).stop(signal.SIGTERM, timeout=timeout)

    def pause(self, node: int) -> None:
        """SIGSTOP: connections stay open, nothing answers."""
        self._running[node].send(signal.SIGSTOP)
        self._paused.add(node)

    def resume(self, node: int) -> None:
        self._running[node].send(signal.SIGCONT)
        self._paused.discard(node)

    def heal(self, timeout: float = 60.0) -> None:
        """Everything up again, and every replica in step."""
        for node in tuple(self._paused):
            self.resume(node)
        for node in self.nodes:
            if node not in self._running or not self._running[node].running:
                self._launch(node)
        self._until_all_are_there(timeout)

    def close(self) -> None:
        for server in self._running.values():
            server.stop(signal.SIGKILL)
        self._running.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _prepare(self, node: int) -> None:
        data = self._folder / str(node)
        shutil.copytree(self._distribution.formatted(node), data)
        voters = ",".join(f"{voter}@127.0.0.1:{port}" for voter, port in self._controllers.items())
        settings = _SETTINGS.format(
            node=node, voters=voters, port=self._ports[node], controller=self._controllers[node], folder=data,
            copies=self.copies, quorum=self.copies // 2 + 1,
        )  # fmt: skip
        self._settings(node).write_text(settings)

    def _settings(self, node: int) -> Path:
        return self._folder / f"{node}.properties"

    def _launch(self, node: int) -> None:
        options = (*self._options, f"-XX:ErrorFile={self._folder}/{node}.hs_err", *_QUIET)
        command = self._distribution.java("kafka.Kafka", self._settings(node), options=options)
        self._running[node] = Guarded(command, log=self.log(node), end=signal.SIGKILL, remove=self._folder)

    def _until_all_are_there(self, timeout: float, nodes: set[int] | None = None) -> None:
        wanted = set(self.nodes) if nodes is None else nodes
        until = time.monotonic() + timeout
        for node in wanted:
            # A client that knows one address asks that node: it answers once the controller has let it in.
            self._until(_answers, self.admin(node), {node}, until)
        self._until(_in_step, self.admin(), wanted, until)

    def _until(self, holds: Check, admin: AdminClient, nodes: set[int], until: float) -> None:
        while not holds(admin, nodes):
            ended = [node for node in nodes if not self._running[node].running]
            if ended or time.monotonic() > until:
                raise Unavailable(f"Kafka did not start: {self._last_words(*(ended or nodes))}")
            time.sleep(0.03)

    def _make_internal_topics(self) -> None:
        topics = [NewTopic(name, 4, self.copies, config=_INTERNAL_SETTINGS) for name in _INTERNAL]
        admin = self.admin()  # held: a client that is dropped takes its requests along
        for made in admin.create_topics(topics, operation_timeout=30).values():
            made.result(timeout=30)

    def _last_words(self, *nodes: int) -> str:
        said = self.log(nodes[0]).read_text(errors="replace").splitlines() if self.log(nodes[0]).exists() else []
        return said[-1] if said else f"node {nodes[0]} said nothing"


def _answers(admin: AdminClient, nodes: set[int]) -> bool:
    try:
        return nodes <= admin.list_topics(timeout=1).brokers.keys()
    except KafkaException:
        return False


def _in_step(admin: AdminClient, nodes: set[int]) -> bool:
    """All of ``nodes`` are members, and no replica on one of them lags behind."""
    try:
        seen = admin.list_topics(timeout=1)
    except KafkaException:
        return False
    partitions = [part for topic in seen.topics.values() for part in topic.partitions.values()]
    return nodes <= seen.brokers.keys() and all(nodes & {*part.replicas} <= {*part.isrs} for part in partitions)


def train(distribution: Distribution) -> None:
    """Runs a broker through its daily round, and has its JVM keep the classes that this took."""
    with KafkaCluster(distribution, 1, (f"-XX:ArchiveClassesAtExit={distribution.archive}",)) as cluster:
        kafka = {"bootstrap.servers": cluster.bootstrap}
        admin = cluster.admin()
        admin.create_topics([NewTopic("round", 4, 1)])["round"].result(30)
        producer = Producer({**kafka, "transactional.id": "round"})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce("round", b"value")
        producer.commit_transaction(30)
        for protocol in ("classic", "consumer"):
            consumer = Consumer(
                {**kafka, "group.id": protocol, "group.protocol": protocol, "auto.offset.reset": "earliest"}
            )
            consumer.subscribe(["round"])
            consumer.poll(30)
            consumer.close()
        cluster.stop(1, timeout=60)
