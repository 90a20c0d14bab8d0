"""A worker seen through its port, on the embedded broker: what a probe and a scrape are told."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from fencepost_worker.guard import free_ports
from services.brokers import Embedded
from services.rig import Rig

Labels = tuple[tuple[str, str], ...]


class Port:
    """A client of one worker's port."""

    def __init__(self) -> None:
        (self.number,) = free_ports(1)

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
        """→ the status, and the body."""
        client = http.client.HTTPConnection("127.0.0.1", self.number, timeout=10)
        try:
            client.request(method, path, headers=headers)
            reply = client.getresponse()
            return reply.status, reply.read().decode()
        finally:
            client.close()

    def probe(self, path: str) -> tuple[int, list[str]]:
        """→ the status, and the reasons of its one line."""
        status, body = self.ask(path)
        assert body.endswith("\n")
        assert body.count("\n") == 1
        return status, json.loads(body).get("reasons", [])

    def ready(self) -> bool:
        """Whether the worker says so; one that is not there yet is not."""
        try:
            return self.probe("/readyz") == (200, [])
        except ConnectionRefusedError:
            return False

    def scrape(self) -> dict[str, dict[Labels, float]]:
        """→ every sample: its name, its labels in their order, its value."""
        status, text = self.ask("/metrics")
        assert status == 200
        found: dict[str, dict[Labels, float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
        return found

    def value(self, name: str, **labels: str) -> float | None:
        """One sample, or None while there is none."""
        return self.scrape().get(name, {}).get(tuple(sorted(labels.items())))

    def total(self, name: str) -> float:
        """Over all labels."""
        return sum(self.scrape().get(name, {}).values())


@contextmanager
def embedded_rig(broker: Embedded, database: str) -> Iterator[Rig]:
    """A rig on topics of its own."""
    topics: Any = SimpleNamespace(
        dispatch=broker.new_topic("tool.dispatch"),
        outcome=broker.new_topic("tool.outcome"),
        dead_letter=broker.new_topic("tool.dead-letter"),
    )
    rig = Rig(broker, topics, database)
    yield rig
    rig.close()
