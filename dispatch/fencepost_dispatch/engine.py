"""The engine: drives many paths at once. What they ask of the ledger in one turn of the loop goes there as one batch,
and comes back as one wake-up. A call costs no future, and no asyncio task but the one its tool runs in.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from datetime import timedelta
from functools import partial
from time import monotonic, perf_counter
from typing import Any

import structlog

from fencepost_dispatch.context import bound_in
from fencepost_dispatch.execute import Ended, Found, Threads, execute, never_entered, probe
from fencepost_dispatch.path import Again, AskProbe, Joined, Lift, Look, Record, Run, Store
from fencepost_dispatch.slots import Slots
from fencepost_dispatch.tools import NotDone
from fencepost_dispatch.watch import Watch
from fencepost_ledger import Ledger, Term
from fencepost_ledger.blobs import store
from fencepost_ledger.verdicts import Admit, Admitted, Finalized, Name, Op, Probe, Settle, Start

log = structlog.get_logger("fencepost.engine")

CallKey = tuple[str, bytes]
# A settled outcome waits at most this long, in seconds, for a transaction to ride along with.
_SETTLE = 0.5
# Seconds between two looks at another holder's run: the first soon, then no faster than is useful.
_LOOKS = (0.05, 0.1, 0.25, 0.5, 1.0)
# At the end of a drain an upload has this long, in seconds: a result given up is better than an end never recorded.
_LAST_UPLOADS = 3.0


def _always() -> bool:
    return True


NEVER_BEGAN = never_entered("cancelled before it began")


OnEnd = Callable[[Any, BaseException | None], None]
Enter = Callable[[Run], Coroutine[Any, Any, Ended]]


class Way:
    """One path under way. `on_end` gets what the path returned, or the exception that ended it.

    `wanted` is asked right before a look that may start the call: when it says no, the path is dropped without an end.
    """

    __slots__ = ("admit", "asked", "on_end", "path", "runs", "since", "slot", "waited_since", "waits", "wanted")

    def __init__(self, path: Generator[Any, Any, Any], on_end: OnEnd, wanted: Callable[[], bool]) -> None:
        self.path = path
        self.on_end = on_end
        self.wanted = wanted
        self.admit: Admit | None = None
        self.asked = 0.0  # when it was given to the ledger: its lease cannot have begun before
        self.slot = False
        self.runs: CallKey | None = None
        self.since = 0.0  # when it stood in line for a slot, or entered the tool
        self.waits = 0
        self.waited_since = 0.0


class Engine:
    """Everything but the constructor and the callbacks handed to the ledger belongs to the event loop's thread.

    Args:
        ledger: makes the ledger with this engine's callbacks (`deliver`, `lost`, `lapse`), called in its threads.
        concurrency: calls that may execute at once. threads: where sync tools run.
        steps: what else paths may yield: a step's class → handler of (way, step), which ends in `resume`.
        on_idle: called when no path is under way any more. watch: is told how long calls wait and run.
        around: wraps what runs a tool, as in a span.
    """

    def __init__(
        self,
        ledger: Callable[[Engine], Ledger],
        *,
        concurrency: int,
        threads: Threads,
        steps: dict[type[Any], Callable[[Way, Any], None]] | None = None,
        on_idle: Callable[[], None] = lambda: None,
        watch: Watch = Watch(),  # noqa: B008 - it has no state
        around: Callable[[Enter], Enter] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = threads
        self._on_idle = on_idle
        self._watch = watch
        self._enter = self._execute if around is None else around(self._execute)
        threads.on_free = lambda: self._from_thread(self.slots.look)
        self._in_threads = 0
        self.slots: Slots[Way] = Slots(concurrency, self._granted, lambda: max(0, threads.taken - self._in_threads))
        self.under_way = 0
        self._tasks: dict[asyncio.Task[Ended], Run] = {}
        self._uploads: set[asyncio.Task[None]] = set()
        self._running: set[CallKey] = set()
        self._joined: dict[CallKey, list[Way]] = defaultdict(list)
        self._outbox: list[tuple[Op, Any]] = []
        self._settled: list[tuple[Op, Any]] = []
        self._handlers: dict[type[Any], Callable[[Way, Any], None]] = {
            Look: self._look,
            Run: self._run,
            AskProbe: self._ask,
            Name: lambda way, step: self._submit(step, way),
            Store: self._store,
            Record: self._record,
            Lift: lambda way, step: self._submit(step.to, way),
            Joined: self._join,
            Again: self._again,
            **(steps or {}),
        }
        self.ledger = ledger(self)
        self._half_lease = self.ledger.house.lease / timedelta(seconds=2)

    # --- paths ----------------------------------------------------------------------------------------------------

    def launch(self, path: Generator[Any, Any, Any], on_end: OnEnd, wanted: Callable[[], bool] = _always) -> None:
        """Set a path on its way."""
        self.under_way += 1
        self.resume(Way(path, on_end, wanted), None)

    def drop_unwanted(self) -> None:
        """Drop at once what stands in line for a slot and is not wanted any more."""
        for way in self.slots.take_out(lambda way: not way.wanted()):
            self._drop(way)

    def resume(self, way: Way, answer: Any) -> None:
        """Send the path the answer to its last step, and see to its next one."""
        try:
            step = way.path.send(answer)
        except StopIteration as end:
            self._ended(way, end.value, None)
        except Exception as error:  # noqa: BLE001 - whatever it is, this event must end and its neighbours go on
            self._ended(way, None, error)
        else:
            self._handle(way, step)

    def _handle(self, way: Way, step: Any) -> None:
        try:
            self._handlers[type(step)](way, step)
        except Exception as error:  # noqa: BLE001 - likewise: a step that cannot be seen to ends its path
            way.path.close()
            self._ended(way, None, error)

    def settle(self, settled: Settle) -> None:
        """The broker has the outcome: rides along with the next ledger transaction, and nobody waits for it."""
        if not self._settled:
            self._loop.call_later(_SETTLE, self.flush)
        self._settled.append((settled, None))

    def flush(self) -> None:
        """Send what is settled without waiting for company."""
        if self._settled:
            self._send()

    def _ended(self, way: Way, value: Any, error: BaseException | None) -> None:
        self._give_back(way)
        self._release(way)
        self.under_way -= 1
        way.on_end(value, error)
        self._look_idle()

    # --- the ledger -----------------------------------------------------------------------------------------------

    def _look(self, way: Way, step: Look) -> None:
        way.admit = step.admit
        way.since = perf_counter()
        self.slots.acquire(step.tenant, way)

    def _granted(self, way: Way) -> None:
        way.slot = True
        self._watch.waited(perf_counter() - way.since)
        if way.admit is not None and way.wanted():
            way.asked = monotonic()
            self._submit(way.admit, way)
        else:
            self._drop(way)

    def _drop(self, way: Way) -> None:
        way.path.close()
        self._give_back(way)
        self.under_way -= 1
        self._look_idle()

    def _look_idle(self) -> None:
        if not self.under_way:
            self._on_idle()

    def _submit(self, op: Op, way: Way | None) -> None:
        if not self._outbox:
            self._loop.call_soon(self._send)
        self._outbox.append((op, way))

    def _send(self) -> None:
        batch = self._settled + self._outbox
        self._settled, self._outbox = [], []
        if batch:
            self.ledger.submit(batch)

    def deliver(self, answers: list[tuple[Way | None, Any]]) -> None:
        """From the ledger's thread: the answers of one transaction."""
        self._from_thread(self._delivered, answers)

    def _delivered(self, answers: list[tuple[Way | None, Any]]) -> None:
        for way, answer in answers:
            if way is not None:
                self._note(way, answer)
                self.resume(way, answer)

    def _note(self, way: Way, answer: Any) -> None:
        match answer:
            case Admitted(verdict=Start(term=Term() as term)):
                self._running.add((term.execution_id, term.key))
            case Admitted(verdict=Start()) | Finalized() | None:
                pass
            case _:
                self._give_back(way)

    def _give_back(self, way: Way) -> None:
        if way.slot:
            way.slot = False
            self.slots.release()

    # --- tools ----------------------------------------------------------------------------------------------------

    def _run(self, way: Way, step: Run) -> None:
        way.since = perf_counter()
        if step.term is not None:
            way.runs = _key(step.term)
            step = replace(step, enter_by=way.asked + self._half_lease)
        self._in_threads += not step.tool.is_async
        task = self._loop.create_task(self._enter(step))
        self._tasks[task] = step
        task.add_done_callback(partial(self._ran, way))

    def _execute(self, run: Run) -> Coroutine[Any, Any, Ended]:
        return execute(run.tool, run.arguments, run.context, self._threads, run.enter_by)

    def _ran(self, way: Way, task: asyncio.Task[Ended]) -> None:
        tool = self._tasks.pop(task).tool
        self._in_threads -= not tool.is_async
        self._watch.ran(tool.name, perf_counter() - way.since)
        # A task that is cancelled before its first step never enters the tool.
        self.resume(way, NEVER_BEGAN if task.cancelled() else task.result())

    @property
    def executing(self) -> int:
        """How many tools run."""
        return len(self._tasks)

    def inside(self, task: asyncio.Task[Any] | None) -> Run | None:
        """The run that this task is, or (Python 3.12) was started by; any thread may ask."""
        if task is None:
            return None
        tasks = self._tasks.copy()
        if task in tasks:
            return tasks[task]
        call = bound_in(getattr(task, "get_context", copy_context)())
        return next((run for run in tasks.values() if run.context is call), None)

    def _store(self, way: Way, step: Store) -> None:
        """Beside `_tasks`: what cancels tools leaves uploads alone. The slot is kept, or a slow store would fill the
        memory with results."""
        task = self._loop.create_task(store(step.ref, step.data))
        self._uploads.add(task)
        task.add_done_callback(partial(self._stored, way))

    def _stored(self, way: Way, task: asyncio.Task[None]) -> None:
        self._uploads.discard(task)
        error = asyncio.CancelledError("the worker ends") if task.cancelled() else task.exception()
        if error is not None:
            log.error("a large result could not be stored, and is dropped", reason=str(error))
        self.resume(way, error is None)

    def _record(self, way: Way, step: Record) -> None:
        """The run has ended, its end is queued for the ledger: whoever joined looks right behind it."""
        self._submit(step.end, way)
        self._give_back(way)
        self._release(way)

    def _release(self, way: Way) -> None:
        if way.runs is None:
            return
        key, way.runs = way.runs, None
        self._running.discard(key)
        for joined in self._joined.pop(key, ()):
            self.resume(joined, None)

    def _join(self, way: Way, step: Joined) -> None:
        key = (step.execution_id, step.key or b"")
        if key in self._running:
            self._joined[key].append(way)
        else:
            # It ended between the ledger's answer and now; its end is on the way to the ledger.
            self._loop.call_later(_LOOKS[0], self.resume, way, None)

    def _again(self, way: Way, _step: Again) -> None:
        now = self._loop.time()
        if not way.waits:
            way.waited_since = now
        pause = _LOOKS[min(way.waits, len(_LOOKS) - 1)]
        way.waits += 1
        self._loop.call_later(pause, self._look_again, way)

    def _look_again(self, way: Way) -> None:
        self.resume(way, self._loop.time() - way.waited_since)

    def _ask(self, way: Way, step: AskProbe) -> None:
        task = self._loop.create_task(self._probed(step))
        task.add_done_callback(lambda done: self.resume(way, _unknown(step) if done.cancelled() else done.result()))

    async def _probed(self, step: AskProbe) -> Probe:
        match await probe(step.tool, step.arguments, step.context, self._threads):
            case Found(result, error):
                said = None if error is None else json.dumps(error.model_dump())
                return Probe(step.revision, "found", result, error=said)
            case NotDone():
                return Probe(step.revision, "not_done")
            case _:
                return _unknown(step)

    # --- leases ---------------------------------------------------------------------------------------------------

    def lost(self, terms: list[Term]) -> None:
        """From the lease thread: these calls are no longer ours; what somebody else may run again is cancelled."""
        keys = {(term.execution_id, term.key) for term in terms}
        log.warning("lost calls", calls=[key.hex() for _, key in sorted(keys)][:10], count=len(keys))
        self._from_thread(self._cancel, lambda run: run.term is not None and _key(run.term) in keys)

    def lapse(self, lapsed: bool) -> None:
        """From the lease thread: nothing could be renewed for a whole lease (start nothing), or it could again."""
        log.warning("leases lapsed: starting nothing" if lapsed else "leases renewed: starting again")
        self._from_thread(self._lapse, lapsed)

    def _lapse(self, lapsed: bool) -> None:
        self.slots.pause(lapsed)
        if lapsed:
            self._cancel(lambda run: run.term is not None)

    def _cancel(self, which: Callable[[Run], bool]) -> None:
        for task, run in list(self._tasks.items()):
            if run.shared and which(run):
                task.cancel()

    def cancel_all(self) -> None:
        """Cancel every tool that still runs, as at the end of a drain; each one's end is recorded as unknown.

        What is being stored has a little longer: those tools have acted, and that is what has to be recorded.
        """
        for task in list(self._tasks):
            task.cancel()
        self._loop.call_later(_LAST_UPLOADS, self._give_up_uploads)

    def _give_up_uploads(self) -> None:
        for task in list(self._uploads):
            task.cancel()

    def _from_thread(self, callback: Callable[..., None], *args: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: the process ends, and the ledger makes that safe
            self._loop.call_soon_threadsafe(callback, *args)


def _key(term: Term) -> CallKey:
    return term.execution_id, term.key


def _unknown(step: AskProbe) -> Probe:
    return Probe(step.revision, "unknown")
