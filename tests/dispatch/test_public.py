"""The package's surface: what a stranger imports, and what that brings along."""

from __future__ import annotations

import subprocess
import sys

import fencepost_dispatch


def test_every_public_name_is_there() -> None:
    assert [name for name in fencepost_dispatch.__all__ if getattr(fencepost_dispatch, name, None) is None] == []


def test_a_module_of_tools_brings_neither_kafka_nor_postgres() -> None:
    program = (
        "import sys; from fencepost_dispatch import tool, ToolFailed, NotDone, current_tool_invocation_context;"
        "print([name for name in sys.modules if name.startswith(('confluent_kafka', 'psycopg', 'sqlalchemy'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
