"""Records: whatever the bytes, an event or poison; and what is written is read back exactly."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost_schemas import (
    MAX_ARGUMENTS_BYTES,
    MAX_DEPTH,
    MAX_DIGITS,
    Decoded,
    Dispatch,
    Fence,
    Outcome,
    Poison,
    Refusal,
    Refused,
    Status,
    arguments_hash,
    decode,
    decode_outcome,
    encode_dispatch,
    encode_outcome,
)

LEAST: dict[str, Any] = {
    "event_id": "evt-1",
    "execution_id": "exec-42",
    "node_id": "triage",
    "call_index": 0,
    "generation": 1,
    "tool": "jira.create_ticket",
    "arguments": {"title": "Disk full"},
}
TRACE = (("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), ("tracestate", b"a=1,b=2"))


def record(**fields: Any) -> bytes:
    return json.dumps(LEAST | fields).encode()


def record_with(arguments: str | bytes) -> bytes:
    raw = arguments.encode() if isinstance(arguments, str) else arguments
    return record(arguments="HERE").replace(b'"HERE"', raw)


def poison(value: bytes | None, headers: Any = None) -> Poison:
    with pytest.raises(Poison) as caught:
        decode(value, headers)
    return caught.value


def dispatch(decoded: Decoded) -> Dispatch:
    assert isinstance(decoded.event, Dispatch)
    return decoded.event


def refused(arguments: str | bytes) -> Refusal:
    decoded = decode(record_with(arguments))
    assert dispatch(decoded).arguments == {}
    assert dispatch(decoded).event_id == "evt-1"
    assert decoded.arguments_hash is None
    assert decoded.refusal is not None
    return decoded.refusal


# --- types and headers --------------------------------------------------------------------------------------------


def test_a_dispatch_is_understood_with_or_without_cloudevents() -> None:
    bare = decode(record())
    assert bare.event == Dispatch.model_validate(LEAST)
    assert bare.arguments_hash == arguments_hash(LEAST["arguments"])
    cloud = [("ce_id", b"x"), ("ce_type", b"tool.dispatch.v1"), ("ce_specversion", b"1.0")]
    assert decode(record(), cloud) == decode(record(), []) == decode(record(), None) == bare


@pytest.mark.parametrize(
    "in_body,in_header,kind",
    [
        (None, None, Dispatch),
        (None, b"", Dispatch),
        (None, b"tool.dispatch.v1", Dispatch),
        (None, b"tool.fence.v1", Fence),
        ("tool.dispatch.v1", b"tool.fence.v1", Dispatch),
        ("tool.dispatch.v1", b"\xff", Dispatch),
        ("tool.fence.v1", None, Fence),
    ],
)
def test_the_body_names_the_type_else_the_header_else_it_is_a_dispatch(
    in_body: str | None, in_header: bytes | None, kind: type
) -> None:
    fields = {} if in_body is None else {"type": in_body}
    assert type(decode(record(**fields), [("ce_type", in_header)]).event) is kind


@pytest.mark.parametrize("kind", ["tool.dispatch.v2", "tool.outcome.v1", "", 1, [], {}, True])
def test_an_unknown_type_is_poison(kind: Any) -> None:
    assert poison(record(type=kind)).code == "unknown_type"


@pytest.mark.parametrize("kind", [b"com.example.order", b"\xff\xfe"])
def test_an_unknown_type_in_the_header_is_poison_when_the_body_names_none(kind: bytes) -> None:
    assert poison(record(), [("ce_type", kind)]).code == "unknown_type"


def test_traces_are_carried_and_no_other_header() -> None:
    assert decode(record(), [("x", b"1"), *TRACE, ("ce_id", b"2"), ("y", None)]).trace == TRACE
    assert decode(record(), [("traceparent", None), ("tracestate", b"")]).trace == ()


def test_a_trace_that_would_swell_every_outcome_is_dropped() -> None:
    assert decode(record(), [TRACE[0], ("tracestate", b"x" * 8193)]).trace == TRACE[:1]


def test_unknown_fields_are_counted() -> None:
    assert decode(record(type="tool.dispatch.v1")).unknown_fields == 0
    assert decode(record(a=1, b={"c": [None]})).unknown_fields == 2
    assert decode(record(type="tool.fence.v1")).unknown_fields == 3


# --- poison -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value,code",
    [
        (None, "no_value"),
        (b"", "not_json"),
        (b" ", "not_json"),
        (b"\xff", "not_json"),
        (b"\xef\xbb\xbf{}", "not_json"),
        (b"{", "not_json"),
        (b"NaN", "not_json"),
        ('{"event_id":"ä"}'.encode("latin-1"), "not_json"),
        (b"null", "not_an_object"),
        (b"[]", "not_an_object"),
        (b'"text"', "not_an_object"),
        (b"1", "not_an_object"),
        (b"{}", "invalid_field"),
        (record(event_id=1), "invalid_field"),
        (record(event_id="a\0"), "invalid_field"),
        (record(event_id="\ud800"), "invalid_field"),
        (record(call_index=True), "invalid_field"),
        (record(generation=2**63), "invalid_field"),
        (record().replace(b'"generation": 1', b'"generation": ' + b"9" * 5000), "invalid_field"),
        (record(deadline="tomorrow"), "invalid_field"),
        (record(other=float("nan")), "not_json"),
        (record(other="\ud800"), "not_json"),
        (record().replace(b'"tool"', b'"node_id"'), "not_json"),
        (record() + b"{}", "not_json"),
    ],
)
def test_what_cannot_be_decoded_is_poison(value: bytes | None, code: str) -> None:
    assert poison(value).code == code


def test_poison_says_where_and_never_what() -> None:
    assert poison(record(tool="s3cret!")).message == "$.tool: String should match pattern '^[A-Za-z0-9_.:/-]+$'"
    assert poison(record(metadata={"a": 1})).message == "$.metadata.a: Input should be a valid string"
    assert poison(record(a={"b": float("inf")})).message == "$.a.b: Infinity is not JSON"
    assert str(poison(None)) == "no_value: a record without a value (a tombstone)"


@pytest.mark.parametrize("key", ["event_id", "call_index", "org_id", "other"])
def test_a_duplicate_key_of_the_envelope_is_poison(key: str) -> None:
    twice = record(org_id="acme", other=1)[:-1] + f', "{key}": 1}}'.encode()
    assert poison(twice).message == f"$.{key}: duplicate key"


def test_depth_is_poison_outside_the_arguments_at_any_depth() -> None:
    reasons = set()
    for depth in (MAX_DEPTH + 1, 500, 5_000, 200_000):
        found = poison(record(other=0).replace(b'"other": 0', b'"other": ' + b"[" * depth + b"]" * depth))
        reasons.add((found.code, found.message))
    assert len(reasons) == 1


# --- refused arguments --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments,message",
    [
        ('{"a":[0,NaN]}', "$.arguments.a[1]: NaN is not JSON"),
        ('{"a":-Infinity}', "$.arguments.a: Infinity is not JSON"),
        ('{"a":1e400}', "$.arguments.a: a number beyond the range of a double"),
        ('{"a":1,"a":1}', "$.arguments.a: duplicate key"),
        ('{"a":"\\ud800"}', "$.arguments.a: a lone surrogate"),
        ('{"\\udc00":1}', '$.arguments["\\udc00"]: a lone surrogate'),
        (f'{{"a":1{"0" * MAX_DIGITS}}}', f"$.arguments.a: an integer of more than {MAX_DIGITS} digits"),
        ("null", "$.arguments: an object is required"),
        ("[]", "$.arguments: an object is required"),
        ('"{}"', "$.arguments: an object is required"),
        ("NaN", "$.arguments: NaN is not JSON"),
        ('{}, "arguments": {}', "$.arguments: duplicate key"),
        ('{"a":NaN,"b":NaN,"c":{"d":1e400}}', "$.arguments.a: NaN is not JSON"),
    ],
)
def test_refused_arguments_leave_the_envelope_and_name_their_path(arguments: str, message: str) -> None:
    assert refused(arguments) == Refusal("invalid_arguments", message)


def test_absent_arguments_are_refused_and_answered() -> None:
    absent = {key: value for key, value in LEAST.items() if key != "arguments"}
    decoded = decode(json.dumps(absent).encode())
    assert decoded.refusal == Refusal("invalid_arguments", "$.arguments: an object is required")
    assert decoded.event == Dispatch.model_validate(LEAST | {"arguments": {}})


@pytest.mark.parametrize("depth", [MAX_DEPTH, 500, 5_000, 100_000])
def test_arguments_nested_too_deep_are_refused_at_one_path_at_any_depth(depth: int) -> None:
    text = '{"a":' + "[" * depth + "]" * depth + "}"
    assert refused(text).message == "$.arguments.a" + "[0]" * (MAX_DEPTH - 1) + ": nested too deep"


def test_arguments_of_sixty_four_levels_are_taken() -> None:
    depth = MAX_DEPTH - 1
    assert decode(record_with('{"a":' + "[" * depth + "]" * depth + "}")).refusal is None


def test_arguments_that_are_not_json_at_all_are_poison() -> None:
    for arguments in (
        "{NaN}",
        '{"a":NaN',
        '{"a":NaN,}',
        '{"a":1e400 2}',
        b'{"a":NaN,"b":"\xff"}',
        '{"a":' + "[" * 99_999,
    ):
        assert poison(record_with(arguments)).code == "not_json"


def test_a_million_open_brackets_are_poison_with_a_short_message() -> None:
    for value in (b"[" * 2**20, b'{"arguments":' + b"[" * 2**20, b'{"arguments":' + b'{"k":' * 2**18):
        found = poison(value)
        assert found.code == "not_json"
        assert len(found.message) < 500


def test_a_refused_dispatch_with_a_bad_envelope_is_poison() -> None:
    value = record(call_index=-1, arguments="HERE").replace(b'"HERE"', b'{"a":NaN}')
    assert poison(value).message.startswith("$.call_index: ")


def test_a_fence_has_no_arguments_to_refuse() -> None:
    assert poison(record_with("[NaN]")[:-1] + b', "type": "tool.fence.v1"}').code == "not_json"


def test_arguments_of_one_mebibyte_are_taken_and_one_byte_more_is_too_large() -> None:
    room = MAX_ARGUMENTS_BYTES - len('{"a":""}')
    assert decode(record(arguments={"a": "x" * room})).refusal is None
    too_large = f"$.arguments: larger than {MAX_ARGUMENTS_BYTES} bytes of canonical JSON"
    assert refused(json.dumps({"a": "x" * (room + 1)})) == Refusal("too_large", too_large)
    with pytest.raises(Refused, match="larger than"):
        encode_dispatch(Dispatch.model_validate(LEAST | {"arguments": {"a": "x" * (room + 1)}}))


def test_escapes_and_white_space_do_not_count_as_size() -> None:
    text = '{"a":"' + "\\u0041" * 200_000 + '"' + " " * 500_000 + "}"
    assert decode(record_with(text)).refusal is None


# --- there and back -----------------------------------------------------------------------------------------------

texts = st.text(max_size=5)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts)
    | st.sampled_from([0, False, "", "None", 1.0, -0.0, "\0", 10**4000, -(10**30), 1e300, "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(json_values)
def test_an_outcome_is_read_back_exactly_whatever_its_result(result: Any) -> None:
    written = encode_outcome(outcome(result=result, error={"code": "c", "message": "\0", "detail": result}))
    read = decode_outcome(written.value, written.headers)
    assert same(read.result, result)
    assert read.error is not None
    assert same(read.error.detail, result)
    assert read.error.message == "\0"


def test_an_integer_longer_than_python_reads_is_carried_everywhere() -> None:
    long = 10**20_000 + 7
    assert decode_outcome(encode_outcome(outcome(result=long)).value).result == long
    event = Dispatch.model_validate(LEAST | {"arguments": {"n": [long]}})
    assert decode(encode_dispatch(event).value).event == event


def same(one: Any, other: Any) -> bool:
    # Equal and of equal types: 1 is not 1.0 and 0 is not False in a result.
    if type(one) is not type(other):
        return False
    match one:
        case dict():
            return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
        case list():
            return len(one) == len(other) and all(map(same, one, other))
        case float():
            return one.hex() == other.hex()
    return bool(one == other)


def outcome(**fields: Any) -> Outcome:
    return Outcome.model_validate(
        {key: value for key, value in LEAST.items() if key != "arguments"}
        | {"outcome_id": "o-1", "status": Status.succeeded, "finished_at": datetime(2030, 1, 1, 12, tzinfo=UTC)}
        | fields
    )


def test_an_outcome_is_written_with_every_field_and_its_headers() -> None:
    written = encode_outcome(outcome(), source="worker-1", trace=TRACE)
    body = json.loads(written.value)
    assert set(body) == {"type", *Outcome.model_fields}
    assert body["type"] == "tool.outcome.v1"
    assert (body["status"], body["result"], body["finished_at"]) == ("succeeded", None, "2030-01-01T12:00:00Z")
    assert written.key == b"exec-42"
    assert written.headers == [
        ("ce_id", b"o-1"),
        ("ce_type", b"tool.outcome.v1"),
        ("ce_source", b"worker-1"),
        ("ce_specversion", b"1.0"),
        ("ce_time", b"2030-01-01T12:00:00Z"),
        ("content-type", b"application/json"),
        *TRACE,
    ]


def test_a_full_outcome_is_read_back() -> None:
    full = outcome(
        tool_call_id="call_0",
        org_id="acme",
        invocation_key="ab" * 32,
        executed=True,
        replayed=True,
        retryable=True,
        attempt=2,
        result_ref={"uri": "s3://b/k", "sha256": "cd" * 32, "size": 2**40, "media_type": "application/json"},
        error={"code": "c", "message": "m", "detail": {"a": [1]}},
        resolution={"by": "ops", "reason": "seen", "at": "2030-01-01T12:00:00.000001Z"},
        started_at="2030-01-01T11:59:59.5Z",
        worker="worker-1",
        metadata={"a": "b"},
    )
    written = encode_outcome(full)
    assert decode_outcome(written.value) == full
    assert all(value is not None for name, value in json.loads(written.value).items() if name != "result")


def test_an_outcome_of_a_later_version_of_ours_is_read() -> None:
    value = json.loads(encode_outcome(outcome()).value) | {"adopted": True, "type": None}
    assert decode_outcome(json.dumps(value).encode()) == outcome()


@pytest.mark.parametrize("value", [None, b"", b"[]", b"{}", b'{"type":"tool.dispatch.v1"}', b"\xff", b"[" * 2**20])
def test_what_is_no_outcome_is_poison(value: bytes | None) -> None:
    with pytest.raises(Poison):
        decode_outcome(value)


@given(st.dictionaries(texts, json_values, max_size=3), st.booleans())
def test_a_dispatch_is_read_back_exactly_or_refused_where_it_is_written(arguments: Any, is_full: bool) -> None:
    more = {"deadline": "2030-01-01T12:00:00.25+01:00", "metadata": {"a": "\0"}, "org_id": "ö", "session_key": "s"}
    fields = LEAST | (more if is_full else {})
    event = Dispatch.model_construct(**(dict(Dispatch.model_validate(fields)) | {"arguments": arguments}))
    try:
        written = encode_dispatch(event, trace=TRACE)
    except Refused:
        assert "\\ud800" in json.dumps(arguments)
        return
    read = decode(written.value, written.headers)
    assert read.event == event
    assert same(dispatch(read).arguments, arguments)
    assert (read.refusal, read.unknown_fields, read.trace) == (None, 0, TRACE)


def test_a_dispatch_is_written_with_its_headers_and_without_what_it_lacks() -> None:
    written = encode_dispatch(Dispatch.model_validate(LEAST), source="planner")
    headers = dict(written.headers)
    assert json.loads(written.value) == {"type": "tool.dispatch.v1"} | LEAST
    assert written.key == b"exec-42"
    assert headers.pop("ce_time").endswith(b"Z")
    assert headers == {
        "ce_id": b"evt-1",
        "ce_type": b"tool.dispatch.v1",
        "ce_source": b"planner",
        "ce_specversion": b"1.0",
        "content-type": b"application/json",
    }


def test_a_fence_is_read_back() -> None:
    fence = Fence.model_validate(LEAST)
    written = encode_dispatch(fence)
    decoded = decode(written.value, written.headers)
    assert decoded == Decoded(fence, None, None, 0, ())
    assert decode(written.value) == decoded


# --- whatever the bytes -------------------------------------------------------------------------------------------

headers = st.none() | st.lists(
    st.tuples(st.sampled_from(["ce_type", "traceparent", "tracestate", "x"]), st.none() | st.binary(max_size=9)),
    max_size=3,
)
_FULL = record(type="tool.dispatch.v1", deadline="2030-01-01T12:00:00Z", metadata={"a": "b"}, org_id="acme", x=[1])
_LONG = "an integer that Python alone would not read"
mutations = st.lists(st.tuples(st.integers(0, len(_FULL)), st.integers(0, 3), st.binary(max_size=4)), max_size=3)
odd = st.sampled_from([None, True, 1.0, -1, _LONG, "\ud800", "a\0", [], {}, "2030-01-01T00:00:60Z", {"\udc00": 1}])
fields = st.dictionaries(st.sampled_from([*Dispatch.model_fields, "type", "x", "", "\ud800"]), odd | json_values)


def mutated(changes: list[tuple[int, int, bytes]]) -> bytes:
    value = _FULL
    for at, cut, put in changes:
        value = value[:at] + put + value[at + cut :]
    return value


def as_json(changes: dict[str, Any]) -> bytes:
    return json.dumps(LEAST | changes).replace(f'"{_LONG}"', "9" * 5000).encode()


@given(st.binary(max_size=60) | mutations.map(mutated) | fields.map(as_json), headers)
def test_whatever_the_bytes_there_is_an_event_or_poison(value: bytes, found: Any) -> None:
    try:
        decoded = decode(value, found)
    except Poison as fault:
        told = str(fault)
    else:
        told = decoded.refusal.message if decoded.refusal else ""
        is_dispatch = isinstance(decoded.event, Dispatch)
        assert (decoded.arguments_hash is None) == (decoded.refusal is not None or not is_dispatch)
        if decoded.arguments_hash is not None:
            assert arguments_hash(dispatch(decoded).arguments) == decoded.arguments_hash
        elif is_dispatch:
            assert dispatch(decoded).arguments == {}
    assert "\n" not in told
    assert len(told) < 10_000


@given(st.binary(max_size=60) | mutations.map(mutated), headers)
def test_whatever_the_bytes_there_is_an_outcome_or_poison(value: bytes, found: Any) -> None:
    try:
        decoded = decode_outcome(value, found)
    except Poison:
        return
    assert isinstance(decoded, Outcome)
