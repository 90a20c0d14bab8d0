"""Services from Docker, by testcontainers, where a daemon answers."""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

KAFKA_IMAGE = "confluentinc/cp-kafka:8.0.0"
POSTGRES_IMAGE = "postgres:18-alpine"


@functools.cache
def daemon() -> bool:
    """Does a Docker daemon answer, at DOCKER_HOST or at its usual socket?"""
    if "DOCKER_HOST" not in os.environ and not _listens("/var/run/docker.sock"):
        return False
    import docker

    client = docker.from_env(timeout=3)
    try:
        return bool(client.ping())
    except Exception:  # noqa: BLE001 (whatever is wrong with Docker, the next source is asked)
        return False
    finally:
        client.close()


def _listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) == 0


@contextmanager
def kafka() -> Iterator[str]:
    """One broker (KRaft); yields its bootstrap server."""
    from testcontainers.kafka import KafkaContainer

    container = KafkaContainer(KAFKA_IMAGE).with_kraft().with_env("KAFKA_AUTO_CREATE_TOPICS_ENABLE", "false")
    with container.with_env("KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS", "0") as running:
        yield running.get_bootstrap_server()


@contextmanager
def postgres() -> Iterator[str]:
    """A server; yields the DSN of its first database."""
    from testcontainers.postgres import PostgresContainer

    with PostgresContainer(POSTGRES_IMAGE, driver=None) as running:
        yield running.get_connection_url()
