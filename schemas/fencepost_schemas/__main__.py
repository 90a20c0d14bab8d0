"""Writes the JSON Schemas of the events beside this file: ``python -m fencepost_schemas``."""

from __future__ import annotations

import json
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fencepost_schemas.dispatch import DISPATCH_TYPE, FENCE_TYPE, Dispatch, Fence
from fencepost_schemas.outcome import OUTCOME_TYPE, Outcome

_EVENTS: dict[str, type[BaseModel]] = {DISPATCH_TYPE: Dispatch, FENCE_TYPE: Fence, OUTCOME_TYPE: Outcome}


def schemas() -> dict[str, str]:
    """File name to text: JSON Schema 2020-12 of every event, as it is on the wire."""
    return {f"{kind}.schema.json": _schema(kind) for kind in _EVENTS}


def _schema(kind: str) -> str:
    schema: dict[str, Any] = _EVENTS[kind].model_json_schema()
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"{kind}.schema.json"}
    schema["properties"] = {"type": {"const": kind, "default": kind}} | schema["properties"]
    return json.dumps(head | schema, indent=2) + "\n"


def main() -> None:
    """Writes all of them."""
    folder = Path(str(files("fencepost_schemas") / "json"))
    folder.mkdir(exist_ok=True)
    for name, text in schemas().items():
        (folder / name).write_text(text, encoding="utf-8")
        sys.stdout.write(f"wrote {name}\n")


if __name__ == "__main__":
    main()
