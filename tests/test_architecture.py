"""The shape of the house, held by a test: which way imports go, where drivers may be used, and how long things get."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FLOORS = ("schemas", "ledger", "dispatch", "worker")  # each may use those before it
SOURCES = sorted(path for floor in FLOORS for path in (ROOT / floor).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

# Where bytes meet Kafka.
KAFKA = {
    *(f"dispatch/fencepost_dispatch/{name}.py" for name in ("client", "feed", "kafka", "outcomes", "sender")),
    *(
        f"worker/fencepost_worker/{name}.py"
        for name in ("consumer", "deadletter", "doctor", "embedded", "events", "membership", "publisher", "topics")
    ),
    "worker/fencepost_worker/lag.py",
    "worker/fencepost_worker/replay.py",
    "worker/fencepost_worker/demo/wire.py",
}
LEDGER_ONLY = {"sqlalchemy", "psycopg", "psycopg_pool", "alembic", "obstore"}
VAGUE = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def floor(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


def packages(path: Path) -> set[str]:
    """The packages that a file imports, wherever in the file it does so."""
    return {module.split(".")[0] for module in _imports(path)}


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_imports_go_one_way() -> None:
    above = {name: {f"fencepost_{upper}" for upper in FLOORS[FLOORS.index(name) + 1 :]} for name in FLOORS}
    assert not [named(path) for path in SOURCES if packages(path) & above[floor(path)]]


def test_databases_are_for_the_ledger_alone() -> None:
    assert not [named(path) for path in SOURCES if floor(path) != "ledger" and packages(path) & LEDGER_ONLY]


def test_kafka_is_touched_only_where_bytes_meet_it() -> None:
    assert not [named(path) for path in SOURCES if "confluent_kafka" in packages(path) and named(path) not in KAFKA]


def test_modules_are_named_by_what_they_do() -> None:
    assert not [named(path) for path in SOURCES + TESTS if path.stem in VAGUE]


def test_files_stay_below_400_lines() -> None:
    lines = {named(path): len(path.read_text().splitlines()) for path in SOURCES}
    assert not {name: count for name, count in lines.items() if count >= 400}


def test_functions_stay_within_40_lines() -> None:
    functions = {
        f"{named(path)} {node.name}": _length(node)
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, _FUNCTIONS)
    }
    assert not {name: count for name, count in functions.items() if count > 40}


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
