"""Workers as processes: what a signal, a kill or a pause does to a call; a stranger with nothing but kcat."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fencepost_ledger import State
from services.brokers import Broker
from services.rig import PATIENCE, Rig
from services.worker_processes import Processes


@pytest.fixture
def rig(broker: Broker, topics: Any, database: str) -> Iterator[Rig]:
    made = Rig(broker, topics, database)
    yield made
    made.close()


@pytest.fixture
def processes(rig: Rig, tmp_path: Path) -> Iterator[Processes]:
    made = Processes(rig, tmp_path)
    yield made
    made.close()


def _kcat(kcat: str, *options: str, stdin: str = "") -> str:
    done = subprocess.run([kcat, *options], input=stdin, capture_output=True, text=True, timeout=PATIENCE, check=True)
    return done.stdout


async def test_with_kcat_alone_a_record_runs_its_tool_once_and_its_outcome_is_read(
    rig: Rig, processes: Processes, kcat: str
) -> None:
    record = {
        "event_id": "from-a-stranger",
        "execution_id": rig.execution,
        "node_id": "triage",
        "call_index": 0,
        "generation": 1,
        "tool": "desk.create",
        "arguments": {"n": 42},
    }
    produce = ("-P", "-b", rig.bootstrap, "-t", rig.topics.dispatch, "-K", "|")
    processes.start()
    for _ in range(2):
        _kcat(kcat, *produce, stdin=f"{rig.execution}|{json.dumps(record)}\n")
    await rig.outcomes(2)
    text = _kcat(kcat, "-C", "-b", rig.bootstrap, "-t", rig.topics.outcome, "-o", "beginning", "-e", "-q")
    first, again = (json.loads(line) for line in text.splitlines())
    assert processes.effects() == {"created 42": 1}
    assert first["outcome_id"] == again["outcome_id"]
    assert {first["status"], again["status"]} == {"succeeded"}
    assert sorted([first["replayed"], again["replayed"]]) == [False, True]
    assert first["result"] == again["result"] == {"n": 42}


@pytest.mark.kafka  # the embedded broker misses a killed member after half a minute; the demo waits for that
async def test_a_worker_killed_inside_a_call_leaves_that_call_unknown_and_every_other_answered_once(
    rig: Rig, processes: Processes, tmp_path: Path
) -> None:
    doomed = rig.event(tool="desk.create_when", arguments={"n": -1, "gate": str(tmp_path / "never")})
    others = [rig.event(arguments={"n": n}) for n in range(40)]
    worker = processes.start()
    rig.produce(doomed, *others[:20])
    await processes.until_acted("created -1")
    answers = {outcome["event_id"]: {outcome["status"]} for outcome in await rig.outcomes(20)}
    worker.kill()
    processes.start()
    rig.produce(*others[20:])
    while len(answers) < 41:
        (outcome,) = await rig.outcomes(1)
        answers.setdefault(outcome["event_id"], set()).add(outcome["status"])
    assert answers.pop(doomed["event_id"]) == {"indeterminate"}
    assert all(statuses == {"succeeded"} for statuses in answers.values())
    assert processes.effects() == {f"created {n}": 1 for n in range(-1, 40)}
    assert [call.event_id for call in rig.desk.calls(state=State.indeterminate)] == [doomed["event_id"]]


@pytest.mark.kafka
async def test_a_worker_paused_past_its_lease_runs_nothing_twice_and_its_late_truth_is_published(
    rig: Rig, processes: Processes, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    event = rig.event(tool="desk.create_when", arguments={"n": 1, "gate": str(gate)})
    paused = processes.start()
    rig.produce(event)
    await processes.until_acted("created 1")
    paused.send_signal(signal.SIGSTOP)
    processes.start()
    rig.produce(event)
    (unknown,) = await rig.outcomes(1)
    gate.touch()
    paused.send_signal(signal.SIGCONT)
    statuses = {unknown["status"]}
    while "succeeded" not in statuses:
        (outcome,) = await rig.outcomes(1)
        statuses.add(outcome["status"])
    assert statuses == {"indeterminate", "succeeded"}
    assert outcome["event_id"] == event["event_id"]
    assert outcome["result"] == {"n": 1}
    assert processes.effects() == {"created 1": 1}


class PaymentService(ThreadingHTTPServer):
    """A service that honours `Idempotency-Key`: it acts once per key, and answers a repeat with the first answer."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), PaymentRequest)
        self.requests: list[str] = []
        self.refunds: dict[str, str] = {}
        self.lock = threading.Lock()
        self.acted = threading.Event()
        self.answer_first = threading.Event()


class PaymentRequest(BaseHTTPRequestHandler):
    server: PaymentService

    def do_POST(self) -> None:
        service, key = self.server, self.headers["Idempotency-Key"]
        with service.lock:
            first = not service.requests
            service.requests.append(key)
            refund = service.refunds.setdefault(key, f"refund-{len(service.refunds) + 1}")
        service.acted.set()
        if first:
            service.answer_first.wait(PATIENCE)  # the effect is done, its caller will not live to hear of it
        self.send_response(200)
        self.end_headers()
        self.wfile.write(refund.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def payments() -> Iterator[PaymentService]:
    service = PaymentService()
    serving = threading.Thread(target=service.serve_forever)
    serving.start()
    yield service
    service.answer_first.set()
    service.shutdown()
    service.server_close()
    serving.join()


@pytest.mark.kafka
async def test_an_idempotent_call_whose_worker_died_runs_again_with_the_same_key_and_acts_once(
    rig: Rig, processes: Processes, payments: PaymentService
) -> None:
    url = f"http://127.0.0.1:{payments.server_port}/refunds"
    worker = processes.start()
    rig.produce(rig.event(tool="pay.refund", arguments={"order": "o-1", "url": url}))
    assert await asyncio.to_thread(payments.acted.wait, PATIENCE)
    worker.kill()
    processes.start()
    (outcome,) = await rig.outcomes(1)
    assert (outcome["status"], outcome["attempt"]) == ("succeeded", 2)
    assert outcome["result"] == {"refund": "refund-1", "attempt": 2}
    assert payments.requests == [outcome["invocation_key"]] * 2
    assert payments.refunds == {outcome["invocation_key"]: "refund-1"}


async def test_sigterm_drains_and_leaves_with_0(rig: Rig, processes: Processes, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    worker = processes.start()
    rig.produce(rig.event(tool="desk.create_when", arguments={"n": 1, "gate": str(gate)}))
    await processes.until_acted("created 1")
    worker.terminate()
    gate.touch()
    (outcome,) = await rig.outcomes(1)
    assert outcome["status"] == "succeeded"
    assert worker.wait(PATIENCE) == 0


async def test_a_second_signal_leaves_at_once(rig: Rig, processes: Processes, tmp_path: Path) -> None:
    worker = processes.start()
    rig.produce(rig.event(tool="desk.create_when", arguments={"n": 1, "gate": str(tmp_path / "never")}))
    await processes.until_acted("created 1")
    worker.terminate()
    assert worker.stderr is not None
    while "draining" not in worker.stderr.readline():
        pass
    worker.terminate()
    assert worker.wait(PATIENCE) == 130
