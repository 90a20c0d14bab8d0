"""Another implementation of RFC 8785, in another language, agrees on the golden vectors."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost_schemas import arguments_hash, canonical

_ROOT = Path(__file__).parents[2]
_SOURCE = _ROOT / "tests" / "node"
_CACHE = _ROOT / ".cache" / "node"

Ask = Callable[[dict[str, list[Any]]], Any]


@pytest.fixture(scope="module")
def ask() -> Ask:
    """Asks `tests/node/vectors.mjs`, whose packages are installed once into `.cache/node`."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("the second implementation needs node and npm, which are not on this machine")
    fresh = not (_CACHE / "node_modules").is_dir() or _differs("package-lock.json")
    shutil.copytree(_SOURCE, _CACHE, dirs_exist_ok=True, ignore=shutil.ignore_patterns("node_modules"))
    if fresh:
        install(npm)

    def answer(question: dict[str, list[Any]]) -> Any:
        run = started([node, "vectors.mjs"], json.dumps(question))
        assert run.returncode == 0, run.stderr
        return json.loads(run.stdout)

    return answer


def _differs(name: str) -> bool:
    return not (_CACHE / name).is_file() or (_CACHE / name).read_bytes() != (_SOURCE / name).read_bytes()


def started(command: list[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=_CACHE, input=stdin, capture_output=True, text=True, timeout=100, check=False)


def install(npm: str) -> None:
    run = started([npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"])
    if run.returncode != 0:
        shutil.rmtree(_CACHE / "node_modules", ignore_errors=True)
        pytest.skip(f"the second implementation could not be installed: npm ci ended with {run.returncode}")


def vectors(name: str) -> Any:
    return json.loads((files("fencepost_schemas") / "vectors" / f"{name}.json").read_text(encoding="utf-8"))


def question(**asked: list[Any]) -> dict[str, list[Any]]:
    return {"texts": [], "doubles": [], "arrays": []} | asked


def test_another_implementation_agrees_on_canonical_texts_and_hashes(ask: Ask) -> None:
    rows = [row for row in vectors("accepted")["vectors"] if not row.get("beyond_doubles")]
    answer = ask(question(texts=[row["input"] for row in rows]))
    assert answer["canonical"] == [row["canonical"] for row in rows]
    assert answer["hashes"] == [row["arguments_hash"] for row in rows]


def test_another_implementation_rounds_the_integers_that_are_exact_here(ask: Ask) -> None:
    rows = [row for row in vectors("accepted")["vectors"] if row.get("beyond_doubles")]
    answer = ask(question(texts=[row["input"] for row in rows]))
    assert rows
    assert all(theirs != row["canonical"] for theirs, row in zip(answer["canonical"], rows, strict=True))


def test_another_implementation_agrees_on_doubles(ask: Ask) -> None:
    rows = vectors("doubles")["vectors"]
    assert ask(question(doubles=[row["bits"] for row in rows]))["doubles"] == [row["text"] for row in rows]


def test_another_implementation_derives_the_same_keys_and_ids(ask: Ask) -> None:
    known = vectors("identities")
    nothing = vectors("accepted")["vectors"][0]["arguments_hash"]
    expected = {
        **{row["invocation_key"]: ["fencepost.call.v1", *row["call"].values(), nothing] for row in known["calls"]},
        **{row["key"]: ["fencepost.session.v1", row["session_key"], row["tool_call_id"]] for row in known["sessions"]},
        **{
            row["outcome_id"]: ["fencepost.outcome.v1", row["execution_id"], row["event_id"], row["status"]]
            for row in known["outcomes"]
        },
    }
    assert ask(question(arrays=list(expected.values())))["arrays"] == list(expected)


# What both can say: integers as far as doubles have them exactly; beyond that ours stay exact, and theirs do not.
_SAFE = 2**53 - 1
_numbers = st.integers(-_SAFE, _SAFE) | st.floats(allow_nan=False, allow_infinity=False)
_texts = st.text(st.characters(codec="utf-8"), max_size=8)
_values = st.recursive(
    st.none() | st.booleans() | _numbers | _texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_texts, inner, max_size=4),
    max_leaves=12,
)
_arguments = st.dictionaries(_texts, _values, max_size=5)


@settings(max_examples=40)
@given(batch=st.lists(_arguments, min_size=5, max_size=20))
def test_another_implementation_agrees_on_whatever_is_generated(ask: Ask, batch: list[dict[str, Any]]) -> None:
    answer = ask(question(texts=[json.dumps(arguments) for arguments in batch]))
    assert answer["canonical"] == [canonical(arguments).decode() for arguments in batch]
    assert answer["hashes"] == [arguments_hash(arguments).hex() for arguments in batch]
