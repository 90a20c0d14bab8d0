"""The `fencepost` program: its commands, its global options, and errors as one line with an exit code.

Exit codes: 0 done, 1 the check failed, 2 usage, 3 a service cannot be reached; 130 after Ctrl-C.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fencepost_worker.commands import calls, dispatching, executions, identity, output, services
from fencepost_worker.commands.options import Options, options

FAILED, USAGE, UNREACHABLE = 1, 2, 3
REPORT = "this is a fault of fencepost: run it again with --debug and report what it prints"

# By name: a command that needs neither Kafka nor Postgres does not import their errors. Subclasses count.
_EXIT_CODES = {
    "AccessRefused": UNREACHABLE,
    "BlobsUnavailable": UNREACHABLE,
    "BrokersUnavailable": UNREACHABLE,
    "EmbeddedUnavailable": UNREACHABLE,
    "KafkaUnavailable": UNREACHABLE,
    "LedgerUnavailable": UNREACHABLE,
    "InvalidDispatch": USAGE,
    "Refused": USAGE,
    "Ambiguous": FAILED,
    "BlobDamaged": FAILED,
    "BlobMissing": FAILED,
    "ClassificationBlocked": FAILED,
    "DuplicateTool": FAILED,
    "MissingTopic": FAILED,
    "Moved": FAILED,
    "NotFound": FAILED,
    "NotMigrated": FAILED,
    "OrgConflict": FAILED,
    "PortUnavailable": FAILED,
    "SettingsError": FAILED,
    "ToolRefused": FAILED,
    "TopicsUnfit": FAILED,
    "ToolsNotLoaded": FAILED,
}


class Root(TyperGroup):
    """The program: global options may stand anywhere, and no error is more than a line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(_global_first(args)))

    def invoke(self, ctx: Any) -> Any:
        try:
            answer = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _forget_stdout()
            raise typer.Exit(0) from None  # the reader has what it wanted
        except (typer.TyperException, typer.Exit, typer.Abort, KeyboardInterrupt):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is one line
            raise typer.Exit(_told(error, ctx.ensure_object(Options))) from None
        return answer

    def main(self, *args: Any, **extra: Any) -> Any:
        try:
            code = super().main(*args, **extra | {"standalone_mode": False})
        except typer.TyperException as error:
            code = _usage(error)
        except typer.Abort:
            code = 130
        sys.exit(code if isinstance(code, int) else 0)


app = typer.Typer(
    name="fencepost",
    cls=Root,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Tool calls of AI agents, each one run once: not one too many, not one too few.",
    epilog="Settings: FENCEPOST_… in the environment, or a TOML file (--config).",
)
for _command in (services.demo, services.dev, services.worker, services.migrate, services.topics, services.doctor):
    app.command()(_command)
app.add_typer(executions.app, name="executions")
app.command()(dispatching.dispatch)
app.command()(dispatching.redispatch)
app.command()(dispatching.outcomes)
app.add_typer(calls.app, name="calls")
app.command()(services.sweep)
app.command()(identity.key)


def _show_version(wanted: bool) -> None:
    if wanted:
        output.line(f"fencepost {version('fencepost')}")
        raise typer.Exit


@app.callback()
def _global_options(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", exists=True, dir_okay=False, help="Settings as TOML.")
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Tracebacks, and the clients' own debug lines.")] = False,
    version: Annotated[  # noqa: ARG001
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    chosen = options(context)
    chosen.config, chosen.debug = config, debug
    if debug:
        from fencepost_worker.logs import set_up_logs  # noqa: PLC0415

        set_up_logs("console", chosen.redact, debug=True)


def main() -> None:
    """The entry point of the `fencepost` command."""
    app()


def _global_first(args: list[str]) -> Iterator[str]:
    """`--debug` and `--config FILE` to the front, wherever they stand before a `--`."""
    end = args.index("--") if "--" in args else len(args)
    front: list[str] = []
    rest: list[str] = []
    words = iter(args[:end])
    for word in words:
        if word == "--config":
            front += [word, *([value] if (value := next(words, None)) is not None else [])]
        elif word == "--debug" or word.startswith("--config="):
            front.append(word)
        else:
            rest.append(word)
    yield from front + rest + args[end:]


def _told(error: Exception, chosen: Options) -> int:
    """Say it on stderr → the exit code."""
    code, text = _judged(error)
    if chosen.debug:
        sys.stderr.write(chosen.redact(traceback.format_exc()))
    output.note(f"fencepost: {chosen.redact(text)}")
    return code


def _judged(error: Exception) -> tuple[int, str]:
    for kind in type(error).__mro__:
        if kind.__name__ in _EXIT_CODES:
            return _EXIT_CODES[kind.__name__], str(error)
    if type(error).__name__ == "KafkaException":  # a property that librdkafka does not know or take
        return FAILED, f"{error.args[0].str()}: correct FENCEPOST_KAFKA__…"
    match error:
        case ValueError():
            return USAGE, str(error)
        case OSError() if error.filename is not None:
            return USAGE, f"{error.filename}: {error.strerror}"
        case _:
            return FAILED, f"{type(error).__name__}: {error} ({REPORT})"


def _usage(error: typer.TyperException) -> int:
    context = getattr(error, "ctx", None)
    if text := " ".join(error.format_message().split()):  # empty when the help was shown instead
        program = "fencepost" if context is None else context.command_path
        output.note(f"{program}: {text.rstrip('.')} (see `{program} --help`)")
    return USAGE


def _forget_stdout() -> None:
    """So that the interpreter's last flush does not fail on it again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
