"""The golden vectors: what any client in any language has to agree on, and what never changes."""

from __future__ import annotations

import json
import struct
from importlib.resources import files
from typing import Any

import pytest

from fencepost_schemas import (
    Dispatch,
    Refused,
    Status,
    arguments_hash,
    canonical,
    decode,
    event_digest,
    invocation_key,
    outcome_id,
    parse,
    session_invocation_key,
)


def vectors(name: str) -> Any:
    return json.loads((files("fencepost_schemas") / "vectors" / f"{name}.json").read_text(encoding="utf-8"))


ACCEPTED = vectors("accepted")
IDENTITIES = vectors("identities")


def named(rows: list[Any]) -> Any:
    return pytest.mark.parametrize("row", rows, ids=[row.get("name", str(at)) for at, row in enumerate(rows)])


@named(ACCEPTED["vectors"])
def test_accepted_arguments_have_their_text_hash_and_key(row: Any) -> None:
    for text in (row["input"], row["input"].encode()):
        arguments = parse(text)
        digest = arguments_hash(arguments)
        assert canonical(arguments).decode() == row["canonical"]
        assert digest.hex() == row["arguments_hash"]
        assert invocation_key(**ACCEPTED["call"], arguments_hash=digest).hex() == row["invocation_key"]


def test_vectors_with_one_text_have_one_key_and_no_others_do() -> None:
    texts = {row["canonical"] for row in ACCEPTED["vectors"]}
    assert len({row["invocation_key"] for row in ACCEPTED["vectors"]}) == len(texts)


@named(vectors("refused")["vectors"])
def test_refused_texts_name_their_path(row: Any) -> None:
    text = bytes.fromhex(row["input_hex"]) if "input_hex" in row else row["input"].encode()
    with pytest.raises(Refused) as caught:
        parse(text)
    assert caught.value.path == row["path"]


@named(vectors("doubles")["vectors"])
def test_doubles_have_the_text_of_rfc_8785_appendix_b(row: Any) -> None:
    (value,) = struct.unpack(">d", bytes.fromhex(row["bits"]))
    assert canonical(value).decode() == row["text"]


@named(IDENTITIES["calls"])
def test_calls_keep_their_keys(row: Any) -> None:
    assert invocation_key(**row["call"], arguments_hash=arguments_hash({})).hex() == row["invocation_key"]


@named(IDENTITIES["sessions"])
def test_session_keys_stay(row: Any) -> None:
    assert session_invocation_key(row["session_key"], row["tool_call_id"]) == row["key"]


@named(IDENTITIES["outcomes"])
def test_outcome_ids_stay(row: Any) -> None:
    assert outcome_id(row["execution_id"], row["event_id"], Status(row["status"])) == row["outcome_id"]


@named(IDENTITIES["events"])
def test_event_digests_stay(row: Any) -> None:
    decoded = decode(row["input"].encode())
    assert isinstance(decoded.event, Dispatch)
    assert decoded.arguments_hash is not None
    assert event_digest(decoded.event, decoded.arguments_hash).hex() == row["digest"]
