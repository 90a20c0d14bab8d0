"""The README is executed: every block of it, as a reader would, from top to bottom. And its tables are complete."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from fencepost_dispatch.settings import Settings
from fencepost_schemas import Dispatch, Outcome, Status
from fencepost_worker.cli import app
from services.brokers import Broker
from services.document import blocks, same, same_story
from services.reader import NUMBERS_VARY, NotExecuted, Place, Reader

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = blocks(README)
PROMISE = "every tool call runs once: not one too many, not one too few."


@pytest.fixture
def reader(tmp_path: Path, kafka: Broker, empty_database: str) -> Iterator[Reader]:
    made = Reader(tmp_path, Place(kafka.bootstrap, empty_database, f"-{uuid.uuid4().hex[:8]}", kafka.real))
    yield made
    made.close()


def test_the_first_line_carries_the_promise() -> None:
    assert PROMISE in README.splitlines()[0]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_whoever_does_what_the_readme_says_sees_what_the_readme_shows(reader: Reader) -> None:
    for block in BLOCKS:
        if block.remark != NUMBERS_VARY:
            reader.follow(block)
    reader.leave()
    if reader.without_kcat:
        pytest.skip(f"all was executed but {len(reader.without_kcat)} commands of kcat, which is not installed")


@pytest.mark.slow
def test_the_demo_tells_what_the_readme_shows(reader: Reader) -> None:
    for block in BLOCKS:
        if block.remark == NUMBERS_VARY:
            reader.follow(block)


def test_no_fence_is_overlooked() -> None:
    fences = [line for line in README.splitlines() if line.lstrip(" >").startswith(("```", "~~~"))]
    assert len(fences) == 2 * len(BLOCKS)


@pytest.mark.parametrize("block", ["```ruby\nputs 1\n```\n", "```\nfencepost demo\n```\n", "```python\nx = 1\n```\n"])
def test_a_block_that_nothing_executes_is_a_fault(reader: Reader, block: str) -> None:
    with pytest.raises(NotExecuted):
        reader.follow(*blocks(block))


def test_a_file_that_no_command_uses_is_a_fault(reader: Reader) -> None:
    reader.follow(*blocks("```python\n# unused.py\nx = 1\n```\n"))
    with pytest.raises(NotExecuted, match=r"unused\.py"):
        reader.leave()


def test_a_command_that_fails_is_a_fault(reader: Reader) -> None:
    with pytest.raises(AssertionError, match="ended with 3"):
        reader.follow(*blocks("```console\n$ exit 3\n```\n"))


def test_output_that_is_not_as_shown_is_a_fault(reader: Reader) -> None:
    with pytest.raises(AssertionError, match="printed\ntwo"):
        reader.follow(*blocks("```console\n$ echo two\none\n```\n"))


@pytest.mark.parametrize(
    "shown, printed, alike",
    [
        ("a  b\n", "a b\n\n", True),
        ("a … d\n", "a b c d\n", True),
        ("a … d\n", "a b\nc d\n", False),
        ("a\n…\nd\n", "a\nb\nc\nd\n", True),
        ("a\n…\nd\n", "a\nd\n", True),
        ("a\n…\n", "b\n", False),
        ("a\n", "a\nb\n", False),
        ("a.c\n", "abc\n", False),
    ],
)
def test_output_is_as_shown_but_for_what_is_left_out(shown: str, printed: str, alike: bool) -> None:
    assert same(shown, printed) is alike


def test_a_story_is_the_same_whatever_its_numbers() -> None:
    assert same_story("worker 17 has taken over\nfrom 4", "worker 4711 has\ntaken over from 9")
    assert not same_story("worker 17 has taken over", "worker 17 has given up")


def section(title: str) -> str:
    """The text below a heading, up to the next heading of its level."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", README, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def in_first_column(text: str) -> set[str]:
    """Everything between backticks in the first cells of tables."""
    cells = re.findall(r"^\| ([^|]*) \|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_every_field_of_a_dispatch_is_explained() -> None:
    assert in_first_column(section("Dispatch calls")) == {*Dispatch.model_fields, "type"}


def test_every_field_of_an_outcome_is_explained() -> None:
    assert in_first_column(section("Subscribe to outcomes")) == set(Outcome.model_fields)


def test_every_status_is_explained() -> None:
    assert in_first_column(section("Statuses")) >= set(Status)


def test_every_setting_is_explained() -> None:
    named = {name.lower() for name in in_first_column(section("Settings"))}
    assert {name.partition("__")[0] for name in named} == set(Settings.model_fields)


def test_every_command_is_explained() -> None:
    root = typer.main.get_command(app)
    groups = {name: set(getattr(command, "commands", {None: None})) for name, command in root.commands.items()}
    known = {f"{group} {name}" if name else group for group, names in groups.items() for name in names}
    assert in_first_column(section("Commands")) == known
