"""Canonical JSON: the laws, each against a second implementation of our own written straight from the standards."""

from __future__ import annotations

import json
import math
import pickle
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fencepost_schemas import MAX_DEPTH, MAX_DIGITS, Refused, canonical, parse
from fencepost_schemas.canonical import scan

_SHORT = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}

characters = st.one_of(st.characters(codec="utf-8"), st.sampled_from('\x00\x1f\x7f"\\/\u2028\ufb33\ufffd😀€a'))
texts = st.text(characters, max_size=6)
numbers = st.one_of(
    st.integers(),
    st.integers(-(10**700), 10**700),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([1e21, 1e20, 1e-6, 1e-7, 5e-324, -0.0, 1e16, 123456789012345680000.0, 2.0**53, 10**21]),
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=15,
)
# Few enough for two draws to meet, near enough for a careless encoding to confuse them.
neighbours = st.recursive(
    st.sampled_from([None, "null", 0, 0.0, -0.0, False, "0", "", 1, 1.0, True, "1", "true", 1e21, 10**21, 2**53 + 1])
    | st.sampled_from([2.0**53, 2**53, 1e23, 10**23, "é", "e\u0301", "1,", '","']),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["", "a", "b", "1"]), inner, max_size=2)
    ),
    max_leaves=3,
)


def reference(value: Any) -> str:
    """RFC 8785 with exact integers, as slowly and as literally as it can be written."""
    match value:
        case None | True | False:
            return {None: "null", True: "true", False: "false"}[value]
        case str():
            return '"' + "".join(reference_character(one) for one in value) + '"'
        case int():
            return reference_integer(value)
        case float():
            return reference_double(value)
        case list():
            return "[" + ",".join(reference(element) for element in value) + "]"
        case dict():
            keys = sorted(value, key=utf16_units)
            return "{" + ",".join(reference(key) + ":" + reference(value[key]) for key in keys) + "}"
    raise AssertionError(value)


def reference_character(one: str) -> str:
    return _SHORT.get(one) or (f"\\u{ord(one):04x}" if one < " " else one)


def reference_integer(value: int) -> str:
    digits = []
    rest = abs(value)
    while rest:
        rest, digit = divmod(rest, 10)
        digits.append(str(digit))
    return ("-" if value < 0 else "") + ("".join(reversed(digits)) or "0")


def reference_double(value: float) -> str:
    """ECMA-262, Number::toString: the steps with their letters s, k and n."""
    if value == 0:
        return "0"
    if value < 0:
        return "-" + reference_double(-value)
    exact = Decimal(repr(value)).normalize().as_tuple()
    s = "".join(map(str, exact.digits))
    k, n = len(s), len(s) + int(exact.exponent)
    if k <= n <= 21:
        return s + "0" * (n - k)
    if 0 < n <= 21:
        return s[:n] + "." + s[n:]
    if -6 < n <= 0:
        return "0." + "0" * -n + s
    mantissa = s if k == 1 else s[0] + "." + s[1:]
    return f"{mantissa}e{'+' if n > 0 else '-'}{abs(n - 1)}"


def utf16_units(key: str) -> list[int]:
    raw = key.encode("utf-16-be")
    return [raw[at] << 8 | raw[at + 1] for at in range(0, len(raw), 2)]


def meaning(value: Any) -> Any:
    """What a value stands for, comparable: a double is the number that its shortest decimal names."""
    match value:
        case bool() | None | str():
            return (type(value).__name__, value)
        case int() | float():
            return ("number", Decimal(reference(value)))
        case list():
            return ("array", tuple(meaning(element) for element in value))
        case dict():
            return ("object", frozenset((key, meaning(member)) for key, member in value.items()))
    raise AssertionError(value)


def reversed_keys(value: Any) -> Any:
    match value:
        case dict():
            return {key: reversed_keys(value[key]) for key in reversed(value)}
        case list():
            return [reversed_keys(element) for element in value]
    return value


def as_doubles(value: Any) -> Any:
    match value:
        case bool():
            return value
        case int() if abs(value) <= 2**53:
            return float(value)
        case dict():
            return {key: as_doubles(member) for key, member in value.items()}
        case list():
            return [as_doubles(element) for element in value]
    return value


@given(values)
def test_the_canonical_text_is_what_the_standards_say(value: Any) -> None:
    assert canonical(value).decode() == reference(value)


@given(values)
def test_canonical_is_idempotent(value: Any) -> None:
    once = canonical(value)
    assert canonical(parse(once)) == once
    assert parse(once) == parse(once.decode())


@given(values)
def test_the_order_of_keys_never_matters(value: Any) -> None:
    assert canonical(reversed_keys(value)) == canonical(value)


@given(values)
def test_an_integer_and_the_same_number_as_a_double_are_one(value: Any) -> None:
    assert canonical(as_doubles(value)) == canonical(value)


@given(neighbours, neighbours)
@example(1e21, 10**21)
@example([1, 2], ["1,2"])
def test_no_two_different_values_meet(one: Any, other: Any) -> None:
    if canonical(one) == canonical(other):
        assert meaning(one) == meaning(other)


@given(neighbours, neighbours)
def test_values_that_python_takes_for_equal_meet_only_where_json_does(one: Any, other: Any) -> None:
    # Below 10**21 an integer and a double of one value have one text.
    if meaning(one) == meaning(other) and "e+" not in reference(one) + reference(other):
        assert canonical(one) == canonical(other)


@given(st.integers() | st.integers(-(10**6000), 10**6000))
def test_integers_of_any_size_are_exact(value: int) -> None:
    assert canonical(value).decode() == reference_integer(value)
    assert parse(canonical(value)) == value
    assert type(parse(canonical(value))) is int


@pytest.mark.parametrize(
    "text,same",
    [("1.0", "1"), ("-0.0", "0"), ("-0", "0"), ("1e2", "100"), ("1E2", "100"), ("0.1e1", "1"), ('"\\u0041"', '"A"')],
)
def test_ways_to_write_one_value_are_one(text: str, same: str) -> None:
    assert canonical(parse(text)) == same.encode()


@pytest.mark.parametrize(
    "texts", [("1", '"1"', "true"), ("null", '"null"'), ("0", "false", '""'), ("[]", "{}", '"[]"')]
)
def test_numbers_texts_and_truths_never_meet(texts: tuple[str, ...]) -> None:
    assert len({canonical(parse(text)) for text in texts}) == len(texts)


@given(values)
def test_what_the_standard_library_writes_is_read_alike(value: Any) -> None:
    text = json.dumps(value)
    assert parse(text) == json.loads(text)
    assert scan(text, MAX_DEPTH).document() == json.loads(text)


# --- refusals -----------------------------------------------------------------------------------------------------

names = st.one_of(st.sampled_from(["a", "b_1", "A", "z"]), st.sampled_from(["", "a b", "1", "é", '"', "a.b", "😀"]))
steps = st.lists(st.integers(0, 2) | names, max_size=5)
faults = st.sampled_from([math.nan, math.inf, -math.inf, "\ud800", "x\udc00y", {"\ud83d": 1}, 10**MAX_DIGITS])


def planted(path: list[int | str], fault: Any) -> Any:
    """A sound value with one fault, at the path."""
    for step in reversed(path):
        fault = {"a0": [1], step: fault, "zz": None} if isinstance(step, str) else ["x"] * step + [fault, 1.5]
    return fault


def written(path: list[int | str]) -> str:
    parts = []
    for step in path:
        if isinstance(step, int):
            parts.append(f"[{step}]")
        else:
            parts.append("." + step if step.isidentifier() and step.isascii() else f"[{json.dumps(step)}]")
    return "$" + "".join(parts)


def as_text(value: Any) -> str:
    long, mark = 10**MAX_DIGITS, "long"
    text = json.dumps(mark if value == long else value, default=lambda _: mark)
    return text.replace(f'"{mark}"', "1" + "0" * MAX_DIGITS)


def refusal(call: Any, argument: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        call(argument)
    return caught.value


@given(steps, faults)
def test_a_refusal_names_the_same_path_from_objects_and_from_bytes(path: list[int | str], fault: Any) -> None:
    value = planted(path, fault)
    text = as_text(planted(path, "long" if isinstance(fault, int) else fault))
    where = written(path) + ('["\\ud83d"]' if isinstance(fault, dict) else "")
    from_object, from_bytes, from_text = refusal(canonical, value), refusal(parse, text.encode()), refusal(parse, text)
    assert from_object.path == from_bytes.path == from_text.path == where
    assert from_object.reason == from_bytes.reason == from_text.reason
    assert str(from_object) == f"{where}: {from_object.reason}"


@given(steps)
def test_a_duplicate_key_is_refused_at_its_path(path: list[int | str]) -> None:
    text = as_text(planted(path, "HERE")).replace('"HERE"', '{"k": 1, "l": 2, "\\u006b": 3}')
    assert refusal(parse, text).path == written([*path, "k"])


@given(steps)
def test_bytes_that_are_not_utf8_are_refused_at_their_path(path: list[int | str]) -> None:
    text = as_text(planted(path, "HERE")).encode().replace(b"HERE", b"ab\xff\xfe")
    assert refusal(parse, text).path == written(path)


@pytest.mark.parametrize("text", ['["a\ud800"]', '["\\ud83d\ude00"]', '{"\udfff": 1}'], ids=ascii)
def test_a_surrogate_that_is_no_escape_is_refused_too(text: str) -> None:
    assert refusal(parse, text).reason == "a lone surrogate"


@pytest.mark.parametrize("token", ["1e400", "-1e400", "1" + "0" * 400 + ".0"])
def test_a_number_beyond_doubles_is_refused(token: str) -> None:
    assert str(refusal(parse, f'{{"a":[{token}]}}')) == "$.a[0]: a number beyond the range of a double"


class Colour(StrEnum):
    red = "red"


class Level(IntEnum):
    low = 1


class Name(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "thing",
    [
        (1, 2),
        {1},
        b"x",
        datetime(2026, 1, 1, tzinfo=UTC),
        UUID(int=1),
        Decimal(1),
        1j,
        object(),
        Colour.red,
        Level.low,
        Name("x"),
        OrderedDict(a=1),
        defaultdict(int),
        math,
        Ellipsis,
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_what_is_not_json_is_refused_and_never_coerced(thing: Any) -> None:
    fault = refusal(canonical, {"a": [thing]})
    assert fault.path == "$.a[0]"
    assert type(thing).__name__ in fault.reason


@pytest.mark.parametrize("key", [1, 1.5, None, True, (1,), b"a", Name("n"), Colour.red], ids=repr)
def test_a_key_that_is_no_string_is_refused_and_never_coerced(key: Any) -> None:
    for members in ({key: 1}, {"a": 1, key: 2}, {key: 1, "z": 2}):
        assert refusal(canonical, {"o": members}).path == "$.o"


def test_a_refusal_never_shows_the_value() -> None:
    for text in ('{"password":"hunter2\\ud800"}', '{"password":"hunter2', '{"password":hunter2}'):
        assert "hunter2" not in str(refusal(parse, text))


def test_a_long_key_is_cut_in_the_path() -> None:
    assert len(refusal(canonical, {"k" * 100_000: math.nan}).path) < 100


def nested(depth: int, inside: Any = None) -> Any:
    value = [] if inside is None else inside
    for level in range(depth - 1):
        value = [value] if level % 2 else {"a": value}
    return value


def test_sixty_four_levels_are_read_and_the_sixty_fifth_is_refused() -> None:
    text = canonical(nested(MAX_DEPTH))
    assert parse(text) == nested(MAX_DEPTH)
    from_object = refusal(canonical, nested(MAX_DEPTH + 1))
    from_bytes = refusal(parse, json.dumps(nested(MAX_DEPTH + 1)))
    assert str(from_object) == str(from_bytes)
    assert from_object.reason == "nested too deep"


def test_many_brackets_side_by_side_are_not_deep() -> None:
    assert canonical(parse("[" + ",".join(["[[]]"] * 1000) + "]")).count(b"[") == 2001


@pytest.mark.parametrize(
    "text", ["[" * 2**20, '{"a":' * 2**17, "[" * 2**19 + "]" * 2**19], ids=["open", "objects", "closed"]
)
def test_no_depth_ends_in_a_recursion_error(text: str) -> None:
    assert refusal(parse, text.encode()).reason == "nested too deep"


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert refusal(canonical, loop).reason == "nested too deep"


def test_near_the_end_of_the_stack_the_answer_is_the_same() -> None:
    text = json.dumps(nested(MAX_DEPTH + 1))

    def deeper(levels: int) -> Refused:
        return refusal(parse, text) if levels == 0 else deeper(levels - 1)

    assert str(deeper(sys.getrecursionlimit() // 2)) == str(refusal(parse, text))


@pytest.fixture(params=[640, 4300, 0])
def limit(request: pytest.FixtureRequest) -> Iterator[int]:
    """The interpreter's limit of digits: the lowest, the usual, none."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(request.param)
    yield request.param
    sys.set_int_max_str_digits(before)


def test_the_interpreters_limit_of_digits_is_neither_needed_nor_changed(limit: int) -> None:
    digits = "9" * MAX_DIGITS
    assert canonical(parse(f"[{digits},-{digits}]")).decode() == f"[{digits},-{digits}]"
    assert sys.get_int_max_str_digits() == limit


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("length", [598, 599, 600, 601, 602, 640, 641, 642, 4300, 4301])
def test_integers_at_the_limits_of_the_interpreter_are_exact(length: int) -> None:
    for digits in ("1" + "0" * (length - 1), "9" * length, "-" + "7" * length):
        assert canonical(parse(digits)).decode() == digits
        assert canonical(parse(digits) + 1) != canonical(parse(digits))


@pytest.mark.parametrize("sign", ["", "-"])
def test_an_integer_beyond_the_limit_of_digits_is_refused(sign: str) -> None:
    text = f'{{"a":{sign}1{"0" * MAX_DIGITS}}}'
    value = {"a": int(sign + "1") * 10**MAX_DIGITS}
    assert str(refusal(parse, text)) == str(refusal(canonical, value))


@given(
    st.binary(max_size=40) | st.text(st.sampled_from('{}[]",:\\u0dD8 1eE+-.tnN\n\ufeffé'), max_size=25).map(str.encode)
)
def test_whatever_the_bytes_there_is_a_value_or_a_refusal(text: bytes) -> None:
    assert answer(lambda: parse(text)) == answer(lambda: scan(text, MAX_DEPTH).document())


def answer(read: Callable[[], Any]) -> tuple[str, object]:
    try:
        return "read", canonical(read())
    except Refused as fault:
        return "refused", fault.path


def test_a_refusal_can_be_pickled() -> None:
    fault = pickle.loads(pickle.dumps(Refused("$.a", "NaN is not JSON")))
    assert (fault.path, fault.reason) == ("$.a", "NaN is not JSON")
