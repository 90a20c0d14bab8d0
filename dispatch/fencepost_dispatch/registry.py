"""The tools a worker serves, by name, and those it must not run because their declaration contradicts itself."""

from __future__ import annotations

import importlib
import logging
import traceback
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from fencepost_dispatch.classify import evidence
from fencepost_dispatch.tools import Tool

logger = logging.getLogger(__name__)


class ClassificationBlocked(Exception):
    """A strict registry was given a read-only tool that by the evidence acts. It stays known, as `Blocked`."""


class DuplicateTool(ValueError):
    """Two tools of one name: a dispatch could not tell which is meant."""


class ToolsNotLoaded(Exception):
    """A module of tools could not be used; the text is one line that says what to do."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """A tool that is known and not run: the answer is `classification_blocked`, with this message."""

    tool: Tool[..., Any]
    evidence: tuple[str, ...]

    @property
    def message(self) -> str:
        """One line: what contradicts what, and the ways out."""
        return (
            f"tool {self.tool.name!r} claims read_only, but {' and '.join(self.evidence)}: "
            'drop effect="read_only", or give override_classification="why it is right"'
        )


class Registry:
    """Tools by name. `strict`: a `read_only` against evidence is blocked; otherwise it is warned of and counted."""

    def __init__(self, *, strict: bool = True) -> None:
        self.strict = strict
        self.contradictions = 0
        self._tools: dict[str, Tool[..., Any] | Blocked] = {}

    def add(self, tool: Tool[..., Any]) -> None:
        """Serve this tool. The same object may be added again.

        Raises:
            DuplicateTool: when another tool has the name.
            ClassificationBlocked: in a strict registry, when evidence contradicts `read_only` and nothing overrides it.
        """
        known = self._known(tool.name)
        if known is tool:
            return
        if known is not None:
            raise DuplicateTool(f"tool {tool.name!r} is declared twice: {_place(known)} and {_place(tool)}; rename one")
        entry = self._classified(tool)
        self._tools[tool.name] = entry
        if isinstance(entry, Blocked):
            raise ClassificationBlocked(entry.message)

    def get(self, name: str) -> Tool[..., Any] | Blocked | None:
        """The tool; `Blocked` when it is known and must not run; None when it is unknown."""
        return self._tools.get(name)

    def names(self) -> list[str]:
        """The names that are served, sorted, without the blocked."""
        return sorted(name for name, entry in self._tools.items() if isinstance(entry, Tool))

    def blocked(self) -> list[Blocked]:
        """What is known and not served."""
        return [entry for entry in self._tools.values() if isinstance(entry, Blocked)]

    def load(self, module: str) -> list[Tool[..., Any]]:
        """Import a module and add every tool among its globals; the blocked are logged, and not in the answer.

        Raises:
            ToolsNotLoaded: when it cannot be imported, or has no tool.
            DuplicateTool: see `add`.
        """
        found = dict.fromkeys(value for value in vars(_imported(module)).values() if isinstance(value, Tool))
        if not found:
            raise ToolsNotLoaded(f'module {module!r} has no tool: decorate a function in it with @tool("name")')
        return [tool for tool in found if self._served(tool)]

    def _known(self, name: str) -> Tool[..., Any] | None:
        entry = self._tools.get(name)
        return entry.tool if isinstance(entry, Blocked) else entry

    def _served(self, tool: Tool[..., Any]) -> bool:
        try:
            self.add(tool)
        except ClassificationBlocked as blocked:
            logger.error("%s", blocked)
        return isinstance(self._tools[tool.name], Tool)

    def _classified(self, tool: Tool[..., Any]) -> Tool[..., Any] | Blocked:
        found = evidence(tool)
        if not found:
            return tool
        blocked = Blocked(tool, found)
        if tool.override_classification is not None:
            why = tool.override_classification
            logger.warning("tool %r runs as read_only although %s; override: %s", tool.name, " and ".join(found), why)
            return tool
        self.contradictions += 1
        if self.strict:
            return blocked
        logger.warning("%s", blocked.message)
        return tool


def _place(tool: Tool[..., Any]) -> str:
    return f"{tool.function.__module__}.{tool.function.__qualname__}"


def _imported(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ToolsNotLoaded(_not_found(module, error)) from error
    except (Exception, SystemExit) as error:
        raise ToolsNotLoaded(_not_imported(module, error)) from error


def _not_found(module: str, error: ModuleNotFoundError) -> str:
    missing = error.name or module
    if module == missing or module.startswith(missing + "."):
        hint = (
            "give its dotted name, as in my_tools.jira"
            if "/" in module or module.endswith(".py")
            else ("run in the folder that holds it, put that on PYTHONPATH, or install it")
        )
        return f"module {module!r} was not found: {hint}"
    return f"module {module!r} needs {missing!r}, which is not installed here: install it"


def _not_imported(module: str, error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        where, text = f"{error.filename}:{error.lineno}", error.msg
    else:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where, text = f"{last.filename}:{last.lineno}", str(error)
    return f"module {module!r} could not be imported: {type(error).__name__}: {' '.join(text.split())} ({where})"
