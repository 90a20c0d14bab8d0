"""The command line as such: usage, identity, exit codes, and errors of one line."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from fencepost_worker.cli import app

KEY = ["key", "--org", "acme", "--execution", "exec-42", "--node", "triage", "--index", "0", "--tool", "jira.create"]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("FENCEPOST_")]:
        monkeypatch.delenv(name)


def fencepost(*words: str, **options: Any) -> Result:
    return CliRunner().invoke(app, list(words), **options)


def complaint(result: Result) -> str:
    """The one line on stderr."""
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    return result.stderr


def program(*words: str, **environment: str) -> list[str]:
    return [sys.executable, "-m", "fencepost_worker.cli", *words]


@pytest.fixture
def closed_port() -> Iterator[int]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # bound and not listening: refused
        yield bound.getsockname()[1]


def test_the_version_is_the_distribution_s() -> None:
    assert fencepost("--version").stdout == f"fencepost {version('fencepost')}\n"


@pytest.mark.parametrize(
    "command",
    [
        ["demo"],
        ["dev"],
        ["worker"],
        ["migrate"],
        ["topics"],
        ["doctor"],
        ["executions", "open"],
        ["executions", "close"],
        ["executions", "list"],
        ["dispatch"],
        ["redispatch"],
        ["outcomes"],
        ["calls", "list"],
        ["calls", "show"],
        ["calls", "resolve"],
        ["calls", "release"],
        ["sweep"],
        ["key"],
    ],
)
def test_every_command_has_a_help_of_its_own(command: list[str]) -> None:
    result = fencepost(*command, "--help")
    assert result.exit_code == 0
    assert " ".join(command) in result.stdout


@pytest.mark.parametrize("command", [[], ["calls"], ["executions"]])
def test_without_a_command_the_help_is_shown_and_it_counts_as_usage(command: list[str]) -> None:
    result = fencepost(*command)
    assert result.exit_code == 2
    assert "Usage" in result.stdout + result.stderr


@pytest.mark.parametrize(
    "words, said",
    [
        (["dispach"], "dispatch"),
        (["doctor", "--jsn"], "--jsn"),
        (["executions", "open", "e"], "--org"),
        (["calls", "list", "--state", "odd"], "indeterminate"),
        (["calls", "list", "--limit", "0"], "--limit"),
        (["worker"], "--tools"),
        (["key", "--org", "acme"], "--execution"),
        (["--config", "/nowhere/fencepost.toml", "doctor"], "/nowhere/fencepost.toml"),
        (["dispatch", "--execution", "e"], "--node"),
        (["dispatch", "--file", "f", "--tool", "t"], "not both"),
        (["dispatch", "--file", "/nowhere/events.jsonl"], "/nowhere/events.jsonl"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(words: list[str], said: str) -> None:
    result = fencepost(*words)
    assert result.exit_code == 2
    assert said in complaint(result)


def test_a_key_shows_what_the_identity_is_made_of() -> None:
    result = fencepost(*KEY, "--arguments", '{"title": "Disk full", "project": "OPS", "n": 1.0, "big": 1e2}')
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "canonical": '{"big":100,"n":1,"project":"OPS","title":"Disk full"}',
        "arguments_hash": "49581e7401e86290dfc5e8aca8cd7176d137b403ce6ee7bc8ca9e25f751f39eb",
        "invocation_key": "c0c347bafd51e219b01482a294d9970128298d248ca01a621a815a52ab9127c8",
    }


def test_a_key_is_ascii_and_exact_whatever_the_arguments() -> None:
    result = fencepost(*KEY, "--arguments", '{"ü": 123456789012345678901234567890, "a": "\\u0000"}')
    assert result.stdout.isascii()
    shown = json.loads(result.stdout)["canonical"]
    assert shown == '{"a":"\\u0000","ü":123456789012345678901234567890}'


def test_a_key_reads_large_arguments_from_stdin() -> None:
    text = json.dumps({"a": "x" * 300_000})
    assert fencepost(*KEY, "--arguments", "-", input=text).exit_code == 0


@pytest.mark.parametrize(
    "arguments, path",
    [
        ('{"a": [NaN]}', "$.a[0]: "),
        ('{"a": 1e400}', "$.a: "),
        ('{"a": 1, "a": 2}', "$.a: "),
        ('{"a": "\\ud800"}', "$.a: "),
        ("[1]", "$: "),
        ("{", "$"),
        ("", "$"),
    ],
)
def test_refused_arguments_are_named_by_their_path_and_exit_2(arguments: str, path: str) -> None:
    result = fencepost(*KEY, "--arguments", arguments)
    assert result.exit_code == 2
    assert path in complaint(result)


@pytest.mark.parametrize(
    "option, value", [("--execution", ""), ("--node", "a\nb"), ("--index", "-1"), ("--tool", "a b")]
)
def test_ids_that_no_dispatch_may_have_have_no_key(option: str, value: str) -> None:
    result = fencepost(*KEY, "--arguments", "{}", option, value)
    assert result.exit_code == 2
    complaint(result)


def test_an_unknown_setting_is_one_line_with_the_nearest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEPOST_LEASE_SECOND", "3")
    result = fencepost("doctor")
    assert result.exit_code == 1
    assert "did you mean FENCEPOST_LEASE_SECONDS?" in complaint(result)


def test_the_config_file_is_read_wherever_it_is_named(tmp_path: Path) -> None:
    config = tmp_path / "fencepost.toml"
    config.write_text("concurrency = 0")
    for words in (
        ["--config", str(config), "migrate"],
        ["migrate", "--config", str(config)],
        ["migrate", f"--config={config}"],
    ):
        assert f"concurrency in {config}" in complaint(fencepost(*words))


@pytest.mark.parametrize(
    "command", [["migrate"], ["executions", "list"], ["calls", "show", "abcd"], ["redispatch", "e", "n"]]
)
def test_a_missing_dsn_says_what_to_set(command: list[str]) -> None:
    result = fencepost(*command)
    assert result.exit_code == 1
    assert "FENCEPOST_LEDGER_DSN is not set" in complaint(result)


@pytest.mark.parametrize("command", [["migrate"], ["executions", "list"], ["calls", "list"], ["redispatch", "e", "n"]])
def test_an_unreachable_database_is_exit_3_and_shows_no_password(
    command: list[str], closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FENCEPOST_LEDGER_DSN", f"postgresql://ann:hunter2@127.0.0.1:{closed_port}/x")
    result = fencepost(*command)
    assert result.exit_code == 3
    assert "hunter2" not in complaint(result)


@pytest.mark.parametrize("command", [["outcomes"], ["dispatch", *KEY[3:], "--arguments", "{}"]])
def test_an_unreachable_broker_is_exit_3(command: list[str], closed_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("feed", "sender"):
        monkeypatch.setattr(f"fencepost_dispatch.{module}.CONNECT_SECONDS", 0.5)
    monkeypatch.setenv("FENCEPOST_KAFKA_BOOTSTRAP", f"127.0.0.1:{closed_port}")
    result = fencepost(*command)
    assert result.exit_code == 3
    assert "no Kafka broker answers" in complaint(result)


def test_tracebacks_are_shown_with_debug_alone_and_without_secrets(closed_port: int) -> None:
    environment = os.environ | {"FENCEPOST_LEDGER_DSN": f"postgresql://ann:hunter2@127.0.0.1:{closed_port}/x"}
    shown = subprocess.run(
        program("executions", "list", "--debug"), env=environment, capture_output=True, text=True, check=False
    )
    assert shown.returncode == 3
    assert "Traceback" in shown.stderr
    assert "hunter2" not in shown.stderr


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    script = tmp_path / "much.py"
    script.write_text(
        textwrap.dedent("""
            import sys
            from fencepost_worker import cli
            from fencepost_worker.commands import output

            @cli.app.command()
            def much() -> None:
                for number in range(100_000):
                    output.record({"number": number})

            sys.argv = ["fencepost", "much"]
            cli.main()
        """)
    )
    writer = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with writer:
        assert writer.stdout is not None
        assert writer.stderr is not None
        assert json.loads(writer.stdout.readline()) == {"number": 0}
        writer.stdout.close()
        assert writer.stderr.read() == ""
    assert writer.returncode == 0


def test_ctrl_c_leaves_at_once_and_in_silence(closed_port: int) -> None:
    environment = os.environ | {"FENCEPOST_KAFKA_BOOTSTRAP": f"127.0.0.1:{closed_port}"}
    command = [sys.executable, "-c", _SAYS_WHEN_IT_RUNS, "outcomes", "--follow"]
    waiting = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with waiting:
        assert waiting.stdout is not None
        assert waiting.stderr is not None
        assert waiting.stdout.readline() == "runs\n"
        waiting.send_signal(signal.SIGINT)
        assert waiting.stderr.read() == ""
    assert waiting.returncode == 130


_SAYS_WHEN_IT_RUNS = """
import asyncio, signal
from fencepost_worker import cli
from fencepost_worker.commands import dispatching

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell starts in the background

async def outcomes(*_, **__):
    print("runs", flush=True)
    await asyncio.Event().wait()

dispatching._outcomes = outcomes
cli.main()
"""
