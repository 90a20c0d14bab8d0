"""Every metric of a worker, in one place: its name, what it says, and where it is read when somebody scrapes.

Nothing of this runs on the way of a call: `meters` has the plain numbers. `deploy/METRICS.md` has the same table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate
from typing import Any, Literal

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from fencepost_dispatch.engine import Engine
from fencepost_dispatch.registry import Registry
from fencepost_ledger.watch import Backlog
from fencepost_worker.consumer import PollThread
from fencepost_worker.meters import HOW, OTHER, STATUSES, Histogram, Meters, Tally
from fencepost_worker.publisher import Publisher, Sent
from fencepost_worker.records import Health

Samples = Mapping[tuple[str, ...], float | Histogram]


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a worker that know something worth a metric; each may be asked from any thread."""

    meters: Meters
    engine: Engine
    poll: PollThread
    publisher: Publisher
    tools: Registry


@dataclass(frozen=True, slots=True)
class Now:
    """What they say at one moment."""

    meters: Meters
    engine: Engine
    poll: Health
    sent: Sent
    tools: Registry

    @classmethod
    def of(cls, parts: Parts) -> Now:
        return cls(parts.meters, parts.engine, parts.poll.health(), parts.publisher.health(), parts.tools)


@dataclass(frozen=True, slots=True)
class Declared:
    """A metric. `read` → its values by their labels; none while nothing is known."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str
    read: Callable[[Now], Samples]

    def family(self, now: Now) -> Metric:
        """Its values, as the client library wants them."""
        samples = sorted(self.read(now).items(), key=lambda sample: sample[0])
        if self.kind == "histogram":
            histogram = HistogramMetricFamily(self.name, self.help, labels=self.labels)
            for labels, value in samples:
                if isinstance(value, Histogram):
                    histogram.add_metric(labels, _buckets(value), value.total)
            return histogram
        kind = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        family = kind(self.name.removesuffix("_total"), self.help, labels=self.labels)
        for labels, value in samples:
            if not isinstance(value, Histogram):
                family.add_metric(labels, value)
        return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    counts = accumulate(histogram.counts.copy())
    return list(zip((*map(floatToGoString, histogram.bounds), "+Inf"), counts, strict=True))


def _one(value: float | Histogram | None) -> Samples:
    return {} if value is None else {(): value}


def _by(values: Mapping[Any, float]) -> Samples:
    return {(str(label),): value for label, value in dict(values).items()}


def _backlog(what: Callable[[Backlog], float]) -> Callable[[Now], Samples]:
    return lambda now: _one(None if now.meters.backlog is None else what(now.meters.backlog))


def _tallies(meters: Meters) -> Iterator[tuple[str, Tally]]:
    """The tools of which something can be told."""
    for tool, tally in (*meters.tools.items(), (OTHER, meters.other)):
        if any(tally.outcomes) or any(tally.run_seconds.counts):
            yield tool, tally


def _version() -> str:
    try:
        return version("fencepost")
    except PackageNotFoundError:  # run from its sources
        return "unknown"


def _outcomes(now: Now) -> Samples:
    counts: dict[tuple[str, ...], float] = {}
    for tool, tally in _tallies(now.meters):
        for place, status in enumerate(STATUSES):
            if count := sum(tally.outcomes[place * len(HOW) : (place + 1) * len(HOW)]):
                counts[status.value, tool] = count
    return counts


def _events(now: Now) -> Samples:
    counts: dict[str, float] = defaultdict(float)
    for _, tally in _tallies(now.meters):
        for place, count in enumerate(tally.outcomes):
            status, how = STATUSES[place // len(HOW)], HOW[place % len(HOW)]
            if count and how != "left":
                counts[status.value if how == "answered" else how] += count
    return _by(counts | {"raised": now.meters.raised, "buried": sum(dict(now.meters.dead_letters).values())})


METRICS = (
    Declared("fencepost_build_info", "gauge", ("version",), "1; the version that runs.",
        lambda _: {(_version(),): 1}),
    # What became of records
    Declared("fencepost_events_total", "counter", ("verdict",),
        "Records that need nothing more: `executed` here, `replayed` from the ledger, refused (`fenced`, `diverged`, "
        "`busy`, `rejected`, `expired`), a fence event `raised`, `buried` as a dead letter.", _events),
    Declared("fencepost_outcomes_total", "counter", ("status", "tool"),
        "Outcomes that the brokers have, those that the sweeper came upon included.", _outcomes),
    Declared("fencepost_dead_letters_total", "counter", ("code",), "Dead letters that the brokers have.",
        lambda now: _by(now.meters.dead_letters)),
    Declared("fencepost_unknown_fields_total", "counter", (), "Fields of records that were ignored.",
        lambda now: _one(now.meters.unknown_fields)),
    Declared("fencepost_event_seconds", "histogram", (),
        "From the record's Kafka timestamp to its acknowledged outcome (end to end, by two machines' clocks).",
        lambda now: _one(now.meters.event_seconds)),
    # Calls
    Declared("fencepost_calls_in_flight", "gauge", (), "Tools that run now; at most CONCURRENCY.",
        lambda now: _one(now.engine.executing)),
    Declared("fencepost_calls_waiting", "gauge", (), "Events that wait for a slot.",
        lambda now: _one(now.engine.slots.waiting)),
    Declared("fencepost_slot_wait_seconds", "histogram", (), "How long events waited for a slot, each time they did.",
        lambda now: _one(now.meters.wait_seconds)),
    Declared("fencepost_run_seconds", "histogram", ("tool",), "How long tools ran, however they ended.",
        lambda now: {(tool,): tally.run_seconds for tool, tally in _tallies(now.meters)}),
    Declared("fencepost_loop_stalls_total", "counter", ("tool",),
        "Times that the event loop stood still for half a second or more, by the tool that held it up.",
        lambda now: _by(now.meters.stalls)),
    Declared("fencepost_loop_stall_seconds_total", "counter", ("tool",), "For how long it did.",
        lambda now: _by(now.meters.stall_seconds)),
    Declared("fencepost_tool_contradictions", "gauge", (), "Tools that claim `read_only` against evidence.",
        lambda now: _one(now.tools.contradictions)),
    # The ledger
    Declared("fencepost_ledger_up", "gauge", (), "1 while the ledger answers.",
        lambda now: _one(now.meters.ledger_trouble is None)),
    Declared("fencepost_ledger_batch_items", "histogram", (), "Operations in one transaction.",
        lambda now: _one(now.meters.batch_items)),
    Declared("fencepost_ledger_commit_seconds", "histogram", (), "How long such a transaction took.",
        lambda now: _one(now.meters.commit_seconds)),
    Declared("fencepost_lease_renewals_total", "counter", (), "Leases made new.",
        lambda now: _one(now.meters.renewals)),
    Declared("fencepost_leases_lost_total", "counter", (),
        "Calls that ran here when somebody else took them for lost.", lambda now: _one(now.meters.lost_leases)),
    Declared("fencepost_leases_lapsed", "gauge", (), "1 while no lease could be renewed for so long that none starts.",
        lambda now: _one(now.engine.slots.paused)),
    Declared("fencepost_calls_undecided", "gauge", (),
        "Of the whole ledger: calls whose outcome is unknown and that nobody has ruled on.",
        _backlog(lambda found: found.undecided)),
    Declared("fencepost_calls_undecided_oldest_seconds", "gauge", (),
        "Of the whole ledger: how long ago the oldest of them began; 0 without any.",
        _backlog(lambda found: found.oldest_undecided)),
    Declared("fencepost_outcomes_unsettled", "gauge", (),
        "Of the whole ledger: recorded ends whose outcome the brokers have not acknowledged.",
        _backlog(lambda found: found.unsettled)),
    # Kafka
    Declared("fencepost_partitions", "gauge", (), "Partitions assigned to this worker.",
        lambda now: _one(len(now.poll.partitions))),
    Declared("fencepost_consumer_lag_records", "gauge", ("partition",),
        "From the partition's oldest unfinished record to its end, as the last fetch knew it.",
        lambda now: _by(now.poll.lag)),
    Declared("fencepost_consumer_paused", "gauge", (), "1 while nothing is taken because too much is in flight.",
        lambda now: _one(now.poll.paused)),
    Declared("fencepost_records_in_flight", "gauge", (), "Records taken and not finished.",
        lambda now: _one(now.poll.in_flight)),
    Declared("fencepost_record_bytes_in_flight", "gauge", (), "Their bytes.",
        lambda now: _one(now.poll.in_flight_bytes)),
    Declared("fencepost_oldest_record_seconds", "gauge", (),
        "How long the record that holds back its partition's commits for longest is in flight; 0 without any.",
        lambda now: _one(now.poll.oldest.seconds if now.poll.oldest else 0)),
    Declared("fencepost_records_unacknowledged", "gauge", (),
        "Outcomes and dead letters handed to the producer and not acknowledged.", lambda now: _one(now.sent.pending)),
)  # fmt: skip


class _Exposition(Collector):
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def collect(self) -> Iterator[Metric]:
        now = Now.of(self._parts)
        for declared in METRICS:
            yield declared.family(now)

    def describe(self) -> list[Metric]:
        return []  # or registering would collect


def registry(parts: Parts) -> CollectorRegistry:
    """A registry of this worker alone, with the process's own metrics (`process_…`) beside it."""
    made = CollectorRegistry()
    made.register(_Exposition(parts))
    ProcessCollector(registry=made)
    return made
