"""Programs started by a test, together with everything that they start."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import pytest

LOOK = 0.05  # seconds between looks at who is there


def environment(**more: str) -> dict[str, str]:
    """Ours without settings of Fencepost, with `more`."""
    return {name: value for name, value in os.environ.items() if not name.startswith("FENCEPOST_")} | more


def passable(factory: pytest.TempPathFactory, name: str) -> Path:
    """A temporary folder that the account of an embedded Postgres can pass through: pytest's are closed to others."""
    path = factory.mktemp(name)
    for parent in (path, path.parent, path.parent.parent):
        parent.chmod(parent.stat().st_mode | 0o011)
    return path


class Family:
    """A program and, as far as one can see by looking often, all of its descendants; ended with the block."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], cwd: Path | None = None) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=env, cwd=cwd, stdout=pipe, stderr=pipe, text=True)
        self._seen: set[psutil.Process] = set()
        self._over = threading.Event()
        self._looking = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._looking.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()
        self._over.set()
        self._looking.join()

    @property
    def descendants(self) -> int:
        """How many were seen."""
        return len(self._seen)

    def left(self, patience: float = 5.0) -> list[str]:
        """Command lines of the descendants that have not ended after `patience` seconds."""
        _, alive = psutil.wait_procs(self._seen, timeout=patience)
        return [" ".join(one.cmdline()) for one in alive]

    def _look(self) -> None:
        try:
            root = psutil.Process(self.process.pid)
            while not self._over.wait(LOOK):
                self._seen.update(root.children(recursive=True))
        except psutil.NoSuchProcess:
            pass
