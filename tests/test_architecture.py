"""The shape of the house, held by a test: which way imports go, where drivers may be used, and how long things get."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FLOORS = ("schemas", "ledger", "dispatch", "worker")  # each may use those before it
SOURCES = sorted(path for floor in FLOORS for path in (ROOT / floor).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

# Where bytes meet Kafka.
KAFKA = {
    "dispatch/fencepost_dispatch": {"client.py", "feed.py", "kafka.py", "outcomes.py", "sender.py"},
    "worker/fencepost_worker": {
        "consumer.py", "deadletter.py", "doctor.py", "embedded.py", "membership.py", "publisher.py", "topics.py",
    },
}  # fmt: skip
LEDGER_ONLY = {"sqlalchemy", "psycopg", "psycopg_pool", "alembic"}
VAGUE = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


source = pytest.mark.parametrize("path", SOURCES, ids=named)
anything = pytest.mark.parametrize("path", SOURCES + TESTS, ids=named)


def imports(path: Path) -> Iterator[str]:
    """The modules that a file imports, wherever in the file it does so."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{named(path)}:{node.lineno} imports relatively"
            yield node.module or ""


def packages(path: Path) -> set[str]:
    return {module.split(".")[0] for module in imports(path)}


def floor(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


@source
def test_imports_go_one_way(path: Path) -> None:
    above = {f"fencepost_{name}" for name in FLOORS[FLOORS.index(floor(path)) + 1 :]}
    assert not packages(path) & above


@source
def test_databases_are_for_the_ledger_alone(path: Path) -> None:
    if floor(path) != "ledger":
        assert not packages(path) & LEDGER_ONLY


@source
def test_kafka_is_touched_only_where_bytes_meet_it(path: Path) -> None:
    allowed = KAFKA.get(str(path.parent.relative_to(ROOT)), set())
    assert "confluent_kafka" not in packages(path) or path.name in allowed


@anything
def test_modules_are_named_by_what_they_do(path: Path) -> None:
    assert path.stem not in VAGUE


@anything
def test_files_stay_below_400_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 400


@source
def test_functions_stay_within_40_lines(path: Path) -> None:
    functions = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, _FUNCTIONS))
    assert not [f"{f.name}: {_length(f)}" for f in functions if _length(f) > 40]


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of code: what the docstring says is not counted against the function."""
    assert function.end_lineno is not None
    lines = function.end_lineno - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None and first.end_lineno is not None:
        lines -= first.end_lineno - first.lineno + 1
    return lines


def test_every_package_tells_type_checkers_that_it_is_typed() -> None:
    assert all((ROOT / name / f"fencepost_{name}" / "py.typed").exists() for name in FLOORS)


def test_nothing_lands_in_site_packages_under_a_common_name() -> None:
    made = {path.name for name in FLOORS for path in (ROOT / name).iterdir() if (path / "__init__.py").exists()}
    assert made == {f"fencepost_{name}" for name in FLOORS}
    assert not [name for name in FLOORS if (ROOT / name / "__init__.py").exists()]
