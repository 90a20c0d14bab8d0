"""The program as a test runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from typer.testing import CliRunner, Result

from fencepost_worker.cli import app


def fencepost(*words: object, **options: Any) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], **options)


def done(*words: object, **options: Any) -> str:
    """What it prints when all is well."""
    result = fencepost(*words, **options)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


def told(*words: object, **options: Any) -> Any:
    """The one JSON object that it prints when all is well."""
    return json.loads(done(*words, "--json", **options))


def complaint(code: int, *words: object, **options: Any) -> str:
    """The one line on stderr with which it fails, having said nothing else."""
    result = fencepost(*words, **options)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (code, "", 1), result.output
    return result.stderr


def process(*words: object) -> subprocess.CompletedProcess[str]:
    """As a process of its own: beside a worker in this one, whose log lines would be taken for what is printed."""
    command = [sys.executable, "-m", "fencepost_worker.cli", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)
