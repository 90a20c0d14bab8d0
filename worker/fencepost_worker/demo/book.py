"""The orchestrator's own book: what it asked for, how often it sent that, and what of it came back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fencepost_worker.demo.tickets import Ticket
from fencepost_worker.demo.verdict import Counts
from fencepost_worker.demo.wire import Answer

Answers = Mapping[str, Sequence[Answer]]
TICKET, LIST = "tickets.create", "tickets.list"


@dataclass(frozen=True, slots=True)
class Call:
    """One call that the agents' orchestrator wants made; `partition` is where its execution's events go."""

    org: str
    execution: str
    node: str
    index: int
    partition: int
    tool: str = TICKET

    @property
    def name(self) -> str:
        """Also the title of the ticket that it asks for, so that tickets can be counted against calls."""
        return f"{self.execution}/{self.node}/{self.index}"

    def event(self, generation: int = 1) -> dict[str, Any]:
        """The dispatch, `tool.dispatch.v1`."""
        return {
            "event_id": f"{self.name}@{generation}",
            "execution_id": self.execution,
            "node_id": self.node,
            "call_index": self.index,
            "generation": generation,
            "tool": self.tool,
            "arguments": {"project": "OPS", "title": self.name} if self.tool == TICKET else {},
        }


@dataclass(slots=True)
class Book:
    """Grows as the story goes on."""

    calls: dict[str, Call] = field(default_factory=dict)
    events: dict[str, Call] = field(default_factory=dict)
    sent: Counter[str] = field(default_factory=Counter)
    zombie: dict[str, str] = field(default_factory=dict)
    """Call → its event of the older generation, sent after the newer one had begun."""
    interrupted: set[str] = field(default_factory=set)
    frozen: set[str] = field(default_factory=set)
    poison: int = 0

    def enter(self, call: Call, event_id: str) -> None:
        """The event is about to be sent (once more)."""
        self.events[event_id] = call
        self.sent[event_id] += 1
        if call.tool == TICKET:
            self.calls[call.name] = call

    @property
    def deliveries(self) -> int:
        """Of calls that ask for tickets."""
        return sum(times for event_id, times in self.sent.items() if self._asks(event_id))

    def answered(self, answers: Answers) -> int:
        """Deliveries that have an answer; more answers than deliveries of an event (a redelivery) count for nothing."""
        return sum(min(times, len(answers.get(event_id, ()))) for event_id, times in self.sent.items())

    def repeated(self, answers: Answers) -> int:
        """Deliveries beyond what was sent: Kafka's own, since their offsets had not been committed."""
        return sum(max(0, len(answers.get(one, ())) - self.sent[one]) for one in self.events if self._asks(one))

    def counts(self, answers: Answers, tickets: Iterable[Ticket], listed: Iterable[str], dead_letters: int) -> Counts:
        """Everything that the judge wants to know."""
        statuses = self._statuses(answers)
        return Counts(
            calls=frozenset(self.calls),
            tickets=Counter(ticket.title for ticket in tickets),
            unanswered=self.sent.total() - self.answered(answers),
            foreign=sum(answer.org != call.org for id_, call in self.events.items() for answer in answers.get(id_, ())),
            zombie=frozenset(self.zombie),
            fenced=frozenset(name for name, event_id in self.zombie.items() if _fenced(answers.get(event_id, ()))),
            interrupted=frozenset(self.interrupted),
            unknown=frozenset(name for name, seen in statuses.items() if seen[-1] == "indeterminate"),
            listed=frozenset(listed),
            frozen=frozenset(self.frozen),
            late=frozenset(name for name, seen in statuses.items() if _late(seen)),
            poison=self.poison,
            dead_letters=dead_letters,
        )

    def _asks(self, event_id: str) -> bool:
        return self.events[event_id].tool == TICKET

    def _statuses(self, answers: Answers) -> dict[str, list[str]]:
        """Call → its answers' statuses in the order of the topic (one execution, one partition)."""
        found: dict[str, list[str]] = {}
        for event_id, call in self.events.items():
            found.setdefault(call.name, []).extend(answer.status for answer in answers.get(event_id, ()))
        return {name: seen for name, seen in found.items() if seen}


def _fenced(given: Sequence[Answer]) -> bool:
    return {answer.status for answer in given} == {"fenced"}


def _late(seen: list[str]) -> bool:
    return "indeterminate" in seen and seen[-1] == "succeeded"
