"""What is said to every command: `--config` and `--debug`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fencepost_dispatch.settings import Settings

Json = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
Execution = Annotated[str | None, typer.Option("--execution", metavar="ID", help="Only this execution.")]
Org = Annotated[str | None, typer.Option("--org", metavar="ORG", help="Only this org.")]

_PASSWORD = re.compile(r"(://[^/\s:@]*:)[^/\s@]+(?=@)")


@dataclass(slots=True)
class Options:
    """The global options of one run of the program, and the settings once a command has asked for them."""

    config: Path | None = None
    debug: bool = False
    loaded: Settings | None = None

    def settings(self, **overrides: Any) -> Settings:
        """The settings; an override that is None was not given.

        Raises:
            SettingsError
        """
        from fencepost_dispatch.settings import Settings  # noqa: PLC0415

        given = {name: value for name, value in overrides.items() if value is not None}
        self.loaded = Settings.load(self.config, **given)
        return self.loaded

    def redact(self, text: str) -> str:
        """Without secrets, also when the settings could not be read."""
        return _PASSWORD.sub(r"\1***", text) if self.loaded is None else self.loaded.redact(text)


def options(context: typer.Context) -> Options:
    """The global options that this command was given."""
    return context.ensure_object(Options)
