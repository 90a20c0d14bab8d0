"""The plot: what is done to the workers, act by act."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count

from fencepost_worker.demo.book import LIST, Book, Call
from fencepost_worker.demo.report import Telling, Unknown, as_json, print_json, stuck_as_json
from fencepost_worker.demo.stage import PARTITIONS, WORKERS, Stage
from fencepost_worker.demo.verdict import judge
from fencepost_worker.demo.wire import Stuck
from fencepost_worker.guard import sigterm_unwinds

ORGS = ("acme", "globex")
NODES = ("triage", "repair", "order", "invoice", "close")
POISON = (b"not JSON", b"\xff\xfe", b'{"event_id": 7}', b'{"event_id": "a", "event_id": "b"}', b"")


def perform(*, json: bool) -> int:
    """Tell the story → exit code. Raises EmbeddedUnavailable."""
    tell = Telling(json=json)
    began = time.monotonic()
    tell.say("Fencepost: every tool call runs once. Not one too many, not one too few.", style="bold")
    with sigterm_unwinds(), ExitStack() as opened:
        with tell.doing("Postgres, a Kafka broker and a ticket system start"):
            stage = opened.enter_context(Stage())
        story = Story(stage, tell)
        try:
            story.run()
        except Stuck as stuck:
            tell.words(stage.last_words())
            tell.say(f"fencepost: the demo got stuck: {stuck}", style="bold red")
            if json:
                print_json(stuck_as_json(str(stuck)))
            return 1
        return story.judged(began, json=json)


class Story:
    """Twelve executions of two organizations; those with one number share a partition."""

    def __init__(self, stage: Stage, tell: Telling) -> None:
        self.stage, self.wire, self.tell = stage, stage.wire, tell
        self.book = Book()
        self.turns = count()
        self.executions = [(org, f"{org}-{number}", number - 1) for number in range(1, PARTITIONS + 1) for org in ORGS]

    def run(self) -> None:
        self.gather()
        self.flood()
        self.redispatch()
        frozen = self.accidents()
        self.late_truth(frozen)

    def gather(self) -> None:
        """All workers are in the group, each with an equal share of the partitions."""
        for org, execution, _ in self.executions:
            self.stage.desk.open_execution(execution, org)
        with self.tell.doing(f"{WORKERS} workers join the group"):
            self._share_out()
        workers = ", ".join(str(pid) for pid in self.stage.workers)
        self.tell.found(f"Started here: Postgres, a Kafka broker, a ticket system, and worker processes {workers}.")

    def flood(self) -> None:
        """Act 1."""
        calls = [
            Call(org, execution, node, index, partition)
            for node in NODES
            for index in range(5)
            for org, execution, partition in self.executions
        ]
        self.tell.act(
            1,
            f"The agents of {len(ORGS)} organizations ask for {len(calls)} tickets. "
            f"A third of the events is delivered twice; {len(POISON)} records are garbage.",
        )
        for number, call in enumerate(calls):
            self.send(call, times=2 if number % 3 == 0 else 1)
        for number, value in enumerate(POISON):
            self.wire.send(value, number)
        self.book.poison = len(POISON)
        self.answered("the flood", lambda: len(self.wire.dead) >= len(POISON))
        self.tell.found(
            f"{self.book.deliveries} deliveries answered, {len(self.stage.tickets.tickets())} tickets filed, "
            f"{len(self.wire.dead)} dead letters."
        )

    def redispatch(self) -> None:
        """Act 2."""
        org, execution, partition = self.executions[0]
        calls = [Call(org, execution, "escalate", index, partition) for index in range(6)]
        self.tell.act(
            2,
            "An agent's body stalls half-way through its node, so the orchestrator dispatches the node again, as "
            "generation 2. Then the old body wakes up and goes on sending.",
        )
        for call in calls[:3]:
            self.send(call)
        self.answered("the first body's calls")
        generation = self.stage.desk.redispatch(execution, "escalate")
        for call in calls:
            self.send(call, generation)
        self.answered("the second body's calls")
        for call in calls[3:]:
            self.book.zombie[call.name] = self.send(call, 1)
        self.answered("the first body's late calls")
        fenced = sum(self.wire.answers[event][-1].status == "fenced" for event in self.book.zombie.values())
        replayed = sum(self.wire.answers[call.event(generation)["event_id"]][-1].replayed for call in calls)
        self.tell.found(
            f"Of the new body's 6 calls, {replayed} got the result that is on record already and {6 - replayed} ran. "
            f"The old body's {len(self.book.zombie)} late calls: {fenced} fenced."
        )

    def accidents(self) -> int:
        """Act 3 → the frozen process."""
        doomed, other = self._partitions_of_two(self._share_out())
        killed = Call("acme", f"acme-{doomed + 1}", "refund", 0, doomed)
        frozen = Call("globex", f"globex-{other + 1}", "refund", 0, other)
        self.tell.act(
            3,
            "The ticket system is slow: it files tickets and does not answer. In the middle of one call each, a worker "
            "is killed (SIGKILL) and another frozen (SIGSTOP). 60 more calls arrive.",
        )
        self.book.interrupted.add(killed.name)
        self.book.frozen.add(frozen.name)
        with self.stage.tickets.slow():
            victims = [self._enter(killed), self._enter(frozen)]
            if victims[0] == victims[1]:
                raise Stuck("two calls of two workers ran in one")
            self.stage.kill(victims[0])
            self.stage.freeze(victims[1])
        for index in range(5):
            for org, execution, partition in self.executions:
                self.send(Call(org, execution, "later", index, partition))
        self.answered("the last worker to take over")
        (left,) = self.stage.workers.keys() - {victims[1]}
        self.tell.found(
            f"Worker {left} has taken over from {victims[0]} (killed) and {victims[1]} (frozen). How their two calls "
            "ended it cannot know, so it repeats neither: both are answered `indeterminate`. "
            f"Of what had ended before, Kafka delivered {self.book.repeated(self.wire.answers)} events again; "
            "none of them ran again."
        )
        return victims[1]

    def late_truth(self, frozen: int) -> None:
        """Act 4."""
        self.tell.act(4, f"Worker {frozen} wakes up (SIGCONT), long after its lease, and finds its ticket's answer.")
        self.stage.thaw(frozen)
        (name,) = self.book.frozen
        events = [event for event, call in self.book.events.items() if call.name == name]
        with self.tell.doing("the late result"):
            self.wire.wait(lambda: any(a.status == "succeeded" for e in events for a in self.wire.answers[e]), "it")
        tickets = sum(ticket.title == name for ticket in self.stage.tickets.tickets())
        self.tell.found(f"The truth comes late and is welcome: that call is `succeeded` now. Tickets of it: {tickets}.")

    def judged(self, began: float, *, json: bool) -> int:
        """After everything has ended: count, judge, tell → exit code."""
        with self.tell.doing("the workers drain and leave"):
            self.stage.end_workers()
            self.wire.close()
        unknown = self._unknown()
        tickets = self.stage.tickets.tickets()
        counts = self.book.counts(self.wire.answers, tickets, [one.call for one in unknown], len(self.wire.dead))
        promises = judge(counts)
        seconds = time.monotonic() - began
        self.tell.table(promises)
        self.tell.unknown(unknown)
        held = all(promise.held for promise in promises)
        if not held:
            self.tell.words(self.stage.last_words())
        verdict = "Every promise held" if held else "A PROMISE WAS BROKEN"
        told = f"{len(counts.calls)} calls, {self.book.deliveries} deliveries, {len(tickets)} tickets, {seconds:.1f} s."
        self.tell.say(f"{verdict}: {told}", style="bold green" if held else "bold red")
        if json:
            print_json(as_json(counts, promises, unknown, seconds))
        return 0 if held else 1

    def send(self, call: Call, generation: int = 1, times: int = 1) -> str:
        """Put the event on the topic, `times` times → its id."""
        event = call.event(generation)
        event_id = str(event["event_id"])
        for _ in range(times):
            self.book.enter(call, event_id)
            self.wire.send(event, call.partition)
        return event_id

    def answered(self, what: str, also: Callable[[], bool] = lambda: True) -> None:
        """Wait until every delivery has an answer. Raises Stuck."""
        total, before = self.book.sent.total(), self.book.answered(self.wire.answers)
        with self.tell.doing(what, total - before) as progress:
            self._wait(what, also, lambda answered: progress(answered - before))

    def _wait(
        self, what: str, also: Callable[[], bool] = lambda: True, progress: Callable[[int], None] = lambda _: None
    ) -> None:
        total = self.book.sent.total()

        def done() -> bool:
            answered = self.book.answered(self.wire.answers)
            progress(answered)
            return answered == total and also()

        self.wire.flush()
        self.wire.wait(done, what)

    def _share_out(self) -> dict[int, int]:
        """Ask until every worker has an equal share of the partitions → `_owners`. Raises Stuck."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            owners = self._owners()
            shares = Counter(owners.values())
            if len(shares) == WORKERS and max(shares.values()) == min(shares.values()):
                return owners
        raise Stuck("waited for the workers to share the partitions")

    def _owners(self) -> dict[int, int]:
        """Partition → the process that serves it, found out by asking each for something harmless."""
        asked, turn = {}, next(self.turns)
        for org, execution, partition in self.executions[:: len(ORGS)]:
            asked[partition] = self.send(Call(org, execution, "hello", turn, partition, LIST))
        self._wait("the workers to be there")
        return {partition: self.wire.answers[event][-1].pid for partition, event in asked.items()}

    def _partitions_of_two(self, owners: dict[int, int]) -> tuple[int, int]:
        """One each of two workers."""
        return 1, next(other for other in owners if owners[other] != owners[1])

    def _enter(self, call: Call) -> int:
        """Send it, and wait until its ticket is filed and unanswered → the process that is inside of it."""
        self.send(call)
        self.wire.flush()
        with self.tell.doing(f"a worker enters {call.name}"):
            if not self.stage.tickets.wait_for(call.name, 20):
                raise Stuck(f"waited for the ticket of {call.name}")
        if (pid := self.stage.inside(call.name)) not in self.stage.workers:
            raise Stuck(f"nobody executes {call.name}")
        return pid

    def _unknown(self) -> list[Unknown]:
        """What the ledger lists as indeterminate, with the command for whoever has looked into the ticket system."""
        keys = {ticket.title: ticket.key for ticket in self.stage.tickets.tickets()}
        return [Unknown(name, key, _resolve(key, keys.get(name))) for name, key in self.stage.unknown().items()]


def _resolve(invocation_key: str, ticket: str | None) -> str:
    found = "--failed not_there" if ticket is None else f"""--succeeded '{{"key": "{ticket}"}}'"""
    return f"fencepost calls resolve {invocation_key[:12]} {found} --by YOU --reason 'looked into the ticket system'"
