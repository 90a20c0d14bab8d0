"""Who waits for which outcome. Nothing is kept for dispatches that nobody holds on to any more."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

from fencepost_schemas import Outcome


class _Execution:
    """Alive while somebody waits for an outcome of this execution."""

    __slots__ = ("__weakref__",)


class Answer:
    """The place where the outcome of one dispatch will lie."""

    __slots__ = ("__weakref__", "_arrived", "_error", "_execution", "_outcome")

    def __init__(self, execution: _Execution) -> None:
        self._execution = execution
        self._arrived = asyncio.Event()
        self._outcome: Outcome | None = None
        self._error: Exception | None = None

    @property
    def arrived(self) -> bool:
        return self._arrived.is_set()

    def put(self, outcome: Outcome | None, error: Exception | None = None) -> None:
        """The first one stays."""
        if not self.arrived:
            self._outcome, self._error = outcome, error
            self._arrived.set()

    async def get(self) -> Outcome:
        await self._arrived.wait()
        if self._outcome is None:
            raise self._error or RuntimeError("no outcome")
        return self._outcome


class Waiting:
    """Answers by event. Event ids are scoped to their execution, so both make the key."""

    def __init__(self) -> None:
        self._answers: WeakValueDictionary[tuple[str, str], Answer] = WeakValueDictionary()
        self._executions: WeakValueDictionary[bytes, _Execution] = WeakValueDictionary()
        self._failure: Exception | None = None

    def __len__(self) -> int:
        return len(self._answers)

    def expect(self, execution_id: str, event_id: str) -> Answer:
        """Where the next outcome of this event will lie; an event that was answered already gets a new answer."""
        answer = self._answers.get((execution_id, event_id))
        if answer is None or answer.arrived:
            answer = Answer(self._execution(execution_id.encode()))
            self._answers[execution_id, event_id] = answer
        if self._failure is not None:
            answer.put(None, self._failure)
        return answer

    def concerns(self, key: bytes | None) -> bool:
        """Whether a record with this key may be waited for; asked by the thread that reads them all."""
        return key is None or key in self._executions

    def settle(self, outcome: Outcome) -> None:
        answer = self._answers.get((outcome.execution_id, outcome.event_id))
        if answer is not None:
            answer.put(outcome)

    def fail(self, error: Exception) -> None:
        """Whoever waits, now or later, gets the error."""
        self._failure = error
        for answer in list(self._answers.values()):
            answer.put(None, error)

    def _execution(self, key: bytes) -> _Execution:
        execution = self._executions.get(key)
        if execution is None:
            execution = self._executions[key] = _Execution()
        return execution
