"""Identity on real Postgres: no two calls meet whatever their ids are made of, and no id is ever read as SQL."""

from __future__ import annotations

import ast
import json
import random
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

import fencepost_ledger
from fencepost_ledger import Desk, NotFound, State, sweep
from fencepost_ledger.verdicts import Admit, Name, Policy, Probe, Raise, Rejected, Replay, Settle, Start
from services.holder import Book, Holder, call, key_of
from services.rulings import ANN


def longest(characters: int, seed: int) -> str:
    """Of characters with four bytes in UTF-8, no two of them alike, so that nothing compresses it."""
    return "".join(map(chr, random.Random(seed).sample(range(0x1F000, 0x1FAFF), characters)))


SEPARATORS = [
    ":",
    "/",
    "|",
    ",",
    "\\",
    '","',
    '"]["',
    "'",
    "''",
    " ",
    "\u00a0",
    "\u2028",
    "\u200d",
    "\u0301",
    "\\n",
    "%",
    "",
]
IDS = {
    "SQL": "'; DROP TABLE fencepost.calls; --",
    "dollar quotes": "$$ $1 $tag$",
    "placeholders": "%s %(items)s %% {0} {items} :items ?",
    "JSON": '{"e": "x"}, ["\\u0000", null]',
    "backslashes": "\\'\\\\x00\\",
    "right to left": "\u202eexecution\u202c \u05d0\u05d1",
    "not normalised": "e\u0301 \u212b \ufb01",
    "astral": "\U0001f600\U0001d518\U0010ffff",
    "wildcards": "% _ * .* [a-z]",
    "blank": " ",
    "a word of SQL": "NULL",
    "the longest": longest(256, seed=1),
}
LOOKALIKES = [
    "é",
    "e\u0301",
    "É",
    "\u0435\u0301",
    " é",
    "é ",
    "é\u200d",
    "e",
]  # the fourth begins with a Cyrillic letter


def recorded(holder: Holder, item: Admit) -> str | None:
    verdict = holder.look(item)
    assert isinstance(verdict, Replay), verdict
    return verdict.row.result


# --- calls that would meet if their parts were joined, or compared loosely --------------------------------------------


@pytest.mark.parametrize("separator", SEPARATORS)
def test_calls_whose_parts_join_to_one_text_never_meet(holder: Holder, book: Book, separator: str) -> None:
    calls: dict[str, Admit] = {}
    for i, j in combinations(range(1, 6), 2):
        org, execution, node = (separator.join(part) for part in ("abcdef"[:i], "abcdef"[i:j], "abcdef"[j:]))
        book.open(execution, org)
        calls[json.dumps([org, execution, node])] = call(execution_id=execution, node_id=node)
    for parts, item in calls.items():
        holder.run(item, result=parts)
    assert {parts: recorded(holder, item) for parts, item in calls.items()} == {parts: parts for parts in calls}


def test_calls_of_one_execution_whose_parts_join_to_one_text_never_meet(holder: Holder) -> None:
    parts = [("n", 1, "1t"), ("n1", 1, "t"), ("n", 11, "t"), ("m:1", 1, "t"), ("m", 1, "1:t")]
    calls = [call(f"e{n}", node_id=node, call_index=i, tool=tool) for n, (node, i, tool) in enumerate(parts)]
    for number, item in enumerate(calls):
        holder.run(item, result=str(number))
    assert [recorded(holder, item) for item in calls] == ["0", "1", "2", "3", "4"]


def test_ids_that_look_alike_are_not_the_same(holder: Holder, book: Book) -> None:
    for text in LOOKALIKES:
        book.open(text, text)
    calls = [
        call(event, execution_id=execution, node_id=node)
        for execution in LOOKALIKES
        for node, event in zip(LOOKALIKES, LOOKALIKES, strict=True)
    ]
    assert all(isinstance(verdict, Start) for verdict in holder.admit(*calls))
    assert len(book.rows()) == len(LOOKALIKES) ** 2


# --- any id goes through the whole ledger, and comes out as it went in ------------------------------------------------


@pytest.fixture(params=IDS)
def item(request: pytest.FixtureRequest, book: Book) -> Admit:
    """A call all of whose ids are of this kind; its execution is open."""
    text = IDS[request.param]
    with Desk(book.dsn) as desk:
        assert desk.open_execution(text, text[:128])
    metadata = json.dumps({text: text})
    return call(
        text[-128:], execution_id=text, node_id=text[::-1], org_claim=text[:128], tool_call_id=text, metadata=metadata
    )


def org_of(item: Admit) -> str:
    assert item.org_claim is not None
    return item.org_claim


def test_a_call_of_any_ids_is_answered_from_the_ledger(holder: Holder, other: Holder, item: Admit, book: Book) -> None:
    term = holder.run(item)
    assert recorded(other, item) == '"done"'
    row = book.row()
    assert (row.execution_id, row.node_id, row.event_id) == (item.execution_id, item.node_id, item.event_id)
    assert (row.org_id, row.key, row.metadata) == (org_of(item), key_of(item, org_of(item)), item.metadata)
    assert row.as_json()["tool_call_id"] == item.tool_call_id
    reused = holder.look(call(item.event_id, {"other": 1}, execution_id=item.execution_id))
    assert isinstance(reused, Rejected)
    holder.do(Settle(term.execution_id, term.key, row.revision), Raise(item.execution_id, item.node_id, 2))
    assert not book.unsettled()
    assert book.generation(item.node_id) == 2


def test_a_call_of_any_ids_is_claimed_by_a_later_generation(holder: Holder, item: Admit, book: Book) -> None:
    holder.run(item)
    moved = call("later", execution_id=item.execution_id, node_id=item.node_id, call_index=5, generation=2)
    assert recorded(holder, moved) == '"done"'
    assert book.row().claimed_by == key_of(moved, org_of(item))


def test_a_call_of_any_ids_is_taken_over_given_up_and_found(
    holder: Holder, other: Holder, item: Admit, book: Book
) -> None:
    more: dict[str, Any] = {"execution_id": item.execution_id, "node_id": item.node_id}
    again, asked = call("2", call_index=1, policy=Policy("idempotent"), **more), call("3", call_index=2, **more)
    holder.admit(item, again, asked)
    book.lease_over(seconds=99)
    found = call("4", call_index=2, policy=Policy(probed=True), probe=Probe(1, "found", '"there"'), **more)
    taken, lost, there = other.admit(again, item, found)
    assert isinstance(taken, Start)
    assert isinstance(lost, Replay)
    assert isinstance(there, Replay)
    states = {row.call_index: row.state for row in book.rows()}
    assert states == {0: State.indeterminate, 1: State.executing, 2: State.completed}


def test_a_call_of_any_ids_is_found_and_ruled_on_at_the_desk(holder: Holder, item: Admit, book: Book) -> None:
    book.open("x2", "another")
    holder.run(item, "indeterminate")
    with Desk(book.dsn, org_of(item)) as desk:
        assert [one.execution_id for one in desk.executions(org_of(item))] == [item.execution_id]
        assert desk.redispatch(item.execution_id, item.node_id) == 2
        (row,) = desk.calls(State.indeterminate, item.execution_id, org_of(item))
        ruled = desk.resolve(desk.call(row.key.hex()), succeeded="1", **ANN | {"reason": f"- {item.execution_id}"})
        assert ruled.decided_reason == f"- {item.execution_id}"
        desk.close_execution(item.execution_id)
    with Desk(book.dsn, "another") as desk, pytest.raises(NotFound):
        desk.call(row.key.hex())


def test_a_call_of_any_ids_is_forgotten(holder: Holder, item: Admit, book: Book) -> None:
    term = holder.run(item)
    holder.do(Settle(term.execution_id, term.key, 2), Name(term.execution_id, term.key, "memory:///a/b"))
    book.age(hours=99)
    book.ask("UPDATE fencepost.blobs SET expires_at = now() - interval '1 hour'")
    swept = sweep(book.dsn, holder.house, lambda _: None)
    assert swept is not None
    assert (swept.forgotten, swept.blobs, book.rows()) == (2, 1, [])


# --- one org's ids in the mouth of another ----------------------------------------------------------------------------


def test_what_another_org_recorded_answers_nobody_else(holder: Holder, book: Book) -> None:
    """The same event id, node, position, tool and arguments, in an execution of another org."""
    book.open("y", "zeta")
    holder.run(call(), result='"acme\'s"')
    holder.run(call(execution_id="y"), result='"zeta\'s"')
    assert recorded(holder, call()) == '"acme\'s"'
    assert recorded(holder, call(execution_id="y")) == '"zeta\'s"'


@pytest.mark.parametrize("policy", [Policy(), Policy("idempotent"), Policy("read_only")], ids=lambda p: p.effect)
def test_a_claim_of_another_org_learns_nothing_of_what_is_recorded(holder: Holder, book: Book, policy: Policy) -> None:
    book.open("y", "zeta")
    holder.run(call(execution_id="y"))
    for claim in ("acme", "ZETA", "zeta ", "zet\u0430"):
        (answer,) = holder.do(call(execution_id="y", org_claim=claim, policy=policy))
        assert (answer.org_id, answer.key) == (None, None)
        assert (answer.verdict.code, "zeta" in answer.verdict.message) == ("org_mismatch", False)


# --- SQL is made of constants; values are parameters ------------------------------------------------------------------

LEDGER = Path(fencepost_ledger.__file__).parent
SQL = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE|FROM|WHERE|SET|ALTER|CREATE|DROP|JOIN|VALUES)\b")
CONSTANT = re.compile(r"_?[A-Z][A-Z_]*")
# Each of these is one of a few constants: the tables of a migration, the two sources of a listing.
CHOSEN = {"table", "POLICIES[table]", "source", "_source(state)"}


def put_into_sql(path: Path) -> Iterator[str]:
    """Whatever is put into a text of SQL by an f-string, `+`, `%` or `format`."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.JoinedStr(values) if SQL.search(
                "".join(str(v.value) for v in values if isinstance(v, ast.Constant))
            ):
                yield from (ast.unparse(v.value) for v in values if isinstance(v, ast.FormattedValue))
            case ast.BinOp(left, ast.Add() | ast.Mod(), right) if is_sql(left) or is_sql(right):
                yield from (ast.unparse(side) for side in (left, right) if not isinstance(side, ast.Constant))
            case ast.Call(ast.Attribute(text, "format"), values, named) if is_sql(text) or isinstance(text, ast.Name):
                put = [*values, *(keyword.value for keyword in named)]
                yield from (ast.unparse(value) for value in put if not isinstance(value, ast.Constant))


def is_sql(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(SQL.search(node.value))


@pytest.mark.parametrize("path", sorted(LEDGER.rglob("*.py")), ids=lambda path: path.name)
def test_sql_is_made_of_constants(path: Path) -> None:
    assert {put for put in put_into_sql(path) if not CONSTANT.fullmatch(put)} <= CHOSEN


def test_a_value_in_sql_would_be_noticed(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(
        'f"SELECT {a}"; "DELETE FROM t WHERE k = " + b; "SELECT %s" % c; "SELECT {}".format(d); QUERY.format(k=e)'
    )
    assert set(put_into_sql(bad)) == {"a", "b", "c", "d", "e"}
