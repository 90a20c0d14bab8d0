"""Worker processes on a rig, and the effects that their tools had."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from services.rig import Rig

TESTS = Path(__file__).parents[1]


class Processes:
    """Worker processes on a rig, and the effects that their tools had."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self.rig = rig
        self.folder = folder
        self.effects_file = folder / "effects"
        self.effects_file.touch()
        self._started: list[subprocess.Popen[str]] = []

    def environment(self, **overrides: str) -> dict[str, str]:
        rig = self.rig
        ours = {
            "KAFKA_BOOTSTRAP": rig.bootstrap,
            "LEDGER_DSN": rig.database,
            "GROUP_ID": rig.group,
            "GROUP_PROTOCOL": rig.protocol,
            "DISPATCH_TOPIC": rig.topics.dispatch,
            "OUTCOME_TOPIC": rig.topics.outcome,
            "DEAD_LETTER_TOPIC": rig.topics.dead_letter,
            "LEASE_SECONDS": "1",
            # A killed member is missed after this time; KIP-848 has it as a setting of the broker.
            **({"KAFKA__SESSION_TIMEOUT_MS": "6000"} if rig.protocol == "classic" else {}),
            "STRICT": "false",
            "METRICS_PORT": "0",
            **overrides,
        }
        env = {name: value for name, value in os.environ.items() if not name.startswith("FENCEPOST_")}
        env |= {f"FENCEPOST_{name}": value for name, value in ours.items()}
        path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
        return env | {"DESK_EFFECTS": str(self.effects_file), "PYTHONPATH": path}

    def start(self, *program: str, **overrides: str) -> subprocess.Popen[str]:
        """A worker, or another Python program (module and arguments) with a worker's surroundings."""
        worker = ("fencepost_worker.cli", "worker", "--tools", "services.desk_tools")
        command = [sys.executable, "-m", *(program or worker)]
        started = subprocess.Popen(
            command, env=self.environment(**overrides), stderr=subprocess.PIPE, text=True, cwd=self.folder
        )
        self._started.append(started)
        return started

    def effects(self) -> Counter[str]:
        return Counter(self.effects_file.read_text().splitlines())

    async def until_acted(self, line: str) -> None:
        await self.rig.until(lambda: line in self.effects())

    def close(self) -> None:
        for worker in self._started:
            if worker.poll() is None:
                worker.kill()
            worker.communicate()
