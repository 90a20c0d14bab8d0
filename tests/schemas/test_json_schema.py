"""The published JSON Schemas are those of the models."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

from fencepost_schemas import Dispatch, Fence, Outcome
from fencepost_schemas.__main__ import schemas

_FOLDER = files("fencepost_schemas") / "json"


def test_the_published_schemas_are_up_to_date() -> None:
    published = {file.name: file.read_text(encoding="utf-8") for file in _FOLDER.iterdir()}
    assert published == schemas(), "python -m fencepost_schemas writes them anew"


@pytest.mark.parametrize(
    "kind,model", [("tool.dispatch.v1", Dispatch), ("tool.fence.v1", Fence), ("tool.outcome.v1", Outcome)]
)
def test_a_schema_names_every_field_and_its_type_and_lets_others_pass(
    kind: str, model: type[Dispatch | Fence | Outcome]
) -> None:
    schema = json.loads(schemas()[f"{kind}.schema.json"])
    assert set(schema["properties"]) == {"type", *model.model_fields}
    assert schema["properties"]["type"]["const"] == kind
    assert "type" not in schema["required"]
    assert "additionalProperties" not in schema


def test_the_limits_of_the_contract_are_in_the_schema() -> None:
    fields = json.loads(schemas()["tool.dispatch.v1.schema.json"])["properties"]
    assert (fields["call_index"]["minimum"], fields["call_index"]["maximum"]) == (0, 2**31 - 1)
    assert (fields["generation"]["minimum"], fields["generation"]["maximum"]) == (1, 2**63 - 1)
    assert fields["tool"]["pattern"] == "^[A-Za-z0-9_.:/-]+$"
    assert fields["execution_id"]["maxLength"] == 256
