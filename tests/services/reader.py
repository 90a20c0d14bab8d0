"""Somebody who reads the documentation and does what it says, in a folder of their own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from services.clients import eventually
from services.document import Block, Command, same, same_story

PATIENCE = 90.0  # seconds; a bound for what never comes, not a time to wait
NUMBERS_VARY, STAYS_UP = "numbers vary", "stays up"  # remarks about a block

_ROOT = Path(__file__).parents[2]
_PROGRAM = f"#!{sys.executable}\nfrom fencepost_worker.cli import main\nmain()\n"
_BOOTSTRAP, _DSN = "localhost:9092", "postgresql://fencepost:secret@localhost:5432/fencepost"
_TOPICS = ("tool.dispatch", "tool.outcome", "tool.dead-letter")


class NotExecuted(Exception):
    """There is a block, and no way to execute it."""


@dataclass(frozen=True, slots=True)
class Place:
    """What stands for the services of the document; `own` ends the names of topics and groups that nobody else has."""

    bootstrap: str
    dsn: str
    own: str
    real: bool

    def settings(self) -> dict[str, str]:
        """What makes the names of the document the reader's own, without a word in the document."""
        dispatch, outcome, dead_letter = (name + self.own for name in _TOPICS)
        return {
            "FENCEPOST_DISPATCH_TOPIC": dispatch,
            "FENCEPOST_OUTCOME_TOPIC": outcome,
            "FENCEPOST_DEAD_LETTER_TOPIC": dead_letter,
            "FENCEPOST_GROUP_ID": f"reader{self.own}",
            "FENCEPOST_GROUP_PROTOCOL": "classic" if self.real else "consumer",
            "FENCEPOST_METRICS_PORT": "0",
        }

    def meant(self, text: str) -> str:
        """A command of the document, as it has to be typed here."""
        for topic in _TOPICS:
            text = re.sub(rf"-t {topic}(?=\s|$)", f"-t {topic}{self.own}", text)
        return text.replace(_BOOTSTRAP, self.bootstrap).replace(_DSN, self.dsn)

    def shown(self, printed: str) -> str:
        """What was printed here, as the document has it."""
        return printed.replace(self.own, "").replace(self.dsn, _DSN).replace(self.bootstrap, _BOOTSTRAP)


class Reader:
    """Follows blocks in their order; `leave` at the end, and `close` whatever happens."""

    def __init__(self, folder: Path, place: Place) -> None:
        self._folder = folder
        self._place = place
        self._files: list[str] = []
        self._typed: list[str] = []
        self._up: list[subprocess.Popen[str]] = []
        self.without_kcat: list[str] = []
        ours = {name: value for name, value in os.environ.items() if not name.startswith("FENCEPOST_")}
        path = os.pathsep.join([str(folder / "bin"), str(Path(sys.executable).parent), ours["PATH"]])
        self._env = ours | {"PATH": path, "PYTHONUNBUFFERED": "1"} | place.settings()
        program = folder / "bin" / "fencepost"
        program.parent.mkdir()
        program.write_text(_PROGRAM)
        program.chmod(0o755)

    def follow(self, block: Block) -> None:
        """Do what the block says. Raises NotExecuted; AssertionError where it is not as the document says."""
        if block.language == "console" and block.commands:
            for command in block.commands:
                self._type(command, block)
        elif block.language in {"python", "json", "toml"} and block.file:
            (self._folder / block.file).write_text(block.text)
            self._files.append(block.file)
        else:
            raise NotExecuted(f"line {block.line}: nothing executes this block ({block.language or 'no language'})")

    def leave(self) -> None:
        """End what stays up, which must end in order. Raises NotExecuted for files that no command has used."""
        if unused := [name for name in self._files if not any(Path(name).stem in text for text in self._typed)]:
            raise NotExecuted(f"no command uses {', '.join(unused)}")
        for program in self._up:
            program.send_signal(signal.SIGTERM)
        assert [program.wait(PATIENCE) for program in self._up] == [0] * len(self._up)

    def close(self) -> None:
        for program in self._up:
            program.kill()
            program.communicate()

    def _type(self, command: Command, block: Block) -> None:
        self._typed.append(command.text)
        word, _, rest = command.text.partition(" ")
        if word == "export":
            name, _, value = self._place.meant(rest).partition("=")
            self._env[name] = value
        elif word == "make":
            self._look_at_make(rest)
        elif "kcat" in command.text.split() and shutil.which("kcat") is None:
            self.without_kcat.append(command.text)
        elif block.remark == STAYS_UP:
            self._compare(command, block, self._start(command))
        else:
            self._compare(command, block, self._run(command.text))

    def _look_at_make(self, target: str) -> None:
        """Make is what runs the tests: only what it would do is looked at."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "ARGS"))}
        make = ["make", "-n", target]
        plan = subprocess.run(make, cwd=_ROOT, env=env, capture_output=True, text=True, check=True).stdout
        assert plan.splitlines()[-1].split() in ([".venv/bin/fencepost", "demo"], [".venv/bin/pytest"])

    def _run(self, text: str) -> str:
        done = subprocess.run(
            ["bash", "-c", self._place.meant(text)],
            cwd=self._folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, f"`{text}` ended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def _start(self, command: Command) -> str:
        """Start it, and wait until its worker serves → as many lines as it is said to print."""
        log = self._folder / f"log-{len(self._up)}"
        with log.open("w") as stderr:
            program = subprocess.Popen(
                ["bash", "-c", f"exec {self._place.meant(command.text)}"],
                cwd=self._folder,
                env=self._env,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        self._up.append(program)
        eventually(lambda: "worker started" in log.read_text() or program.poll() is not None, PATIENCE)
        assert program.poll() is None, log.read_text()
        assert program.stdout is not None
        return "".join(program.stdout.readline() for _ in command.output.splitlines())

    def _compare(self, command: Command, block: Block, printed: str) -> None:
        if not self._place.real and command.text in {"fencepost topics", "fencepost doctor"}:
            return  # the embedded broker has no settings of topics to tell of
        alike = same_story if block.remark == NUMBERS_VARY else same
        printed = self._place.shown(printed)
        assert alike(command.output, printed), f"line {block.line}: `{command.text}` printed\n{printed}"
