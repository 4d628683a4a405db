"""The application: its commands, plugins' among them, and the one place where errors become exit codes."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from itertools import takewhile
from typing import Annotated, Any, Final

import typer

from offload.cli.commands import BUILT_IN
from offload.cli.kit.ending import ClosedPipe, Interrupted, Usage, guarded
from offload.cli.kit.output import escape_what_cannot_be_printed, one_line, print_error, print_note
from offload.cli.values import take_values_as_they_are
from offload.contracts.plugin import Command
from offload.errors import OffloadError
from offload.plugins import Plugins, conflict_text

# What the library raises for a wrong argument: the base of its `BadParameter`, which it does not export.
_ArgumentError: Any = typer.BadParameter.__mro__[2]

# What the library returns after Ctrl-C outside of any command; no command of ours returns it.
_CTRL_C: Final = 130

BLAS_THREADS: Final = "OPENBLAS_NUM_THREADS"
"""The variable that the library in NumPy's wheels reads when it is loaded."""


def build(found: Plugins, named: str | None) -> typer.Typer:
    """Return the application: the commands of its own, and every command that a plugin adds.

    Only the one that is `named` is imported, and may fail; the others are there to be listed.
    """
    app = typer.Typer(
        name="offload",
        help="Move a broker's sealed log data to any object store, and read it back.",
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )

    @app.callback()
    def options(
        context: typer.Context,
        debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and the log.")] = False,
        show_version: Annotated[
            bool, typer.Option("--version", is_eager=True, callback=_version, help="Show the version.")
        ] = False,
    ) -> None:
        """Move a broker's sealed log data to any object store, and read it back."""
        from offload.cli.kit.state import CommandContext  # here, because help and completion need no tier

        context.obj = CommandContext(plugins=found, debug=debug)
        _log(found, debug=debug)

    for declaration in (*BUILT_IN.values(), *_plugin_commands(found)):
        _add(app, declaration, named)
    return app


def _log(found: Plugins, *, debug: bool) -> None:
    """Log errors, or all that is ours: SDKs write tokens and signatures into their debug logs."""
    logging.basicConfig(level=logging.INFO if debug else logging.ERROR, handlers=[_Stderr()])
    ours = {each.declaration.target.partition(":")[0].partition(".")[0] for each in found.declared}
    for name in {"offload", *ours}:
        logging.getLogger(name).setLevel(logging.DEBUG if debug else logging.NOTSET)


class _Stderr(logging.Handler):
    """One line for each message: when, who, what. Names from outside may hold any character."""

    def emit(self, record: logging.LogRecord) -> None:
        form = self.formatter or logging.Formatter()
        head = f"{form.formatTime(record)} {record.levelname} {record.name}"
        sys.stderr.write(f"{head}: {one_line(record.getMessage())}\n")
        if record.exc_info:
            sys.stderr.write(f"{form.formatException(record.exc_info)}\n")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"ledger-offload {version('ledger-offload')}")
        raise typer.Exit


def _words_to_complete() -> list[str]:
    """What a shell asks to complete, without the program's name: it calls without arguments for that."""
    words = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS") or ""
    return words.split()[1:]


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    escape_what_cannot_be_printed()
    words = arguments or _words_to_complete()
    options = [*takewhile(lambda word: word.startswith("-"), words)]  # none of them takes a value
    named = next(iter(words[len(options) :]), None)
    try:
        command = typer.main.get_command(build(Plugins.find(), named))
        take_values_as_they_are(command)
        code: int | None = command.main(args=arguments, prog_name="offload", standalone_mode=False)
        if code == _CTRL_C:
            raise Interrupted
        return code or 0
    except typer.Exit as done:
        return done.exit_code
    except SystemExit as stopped:
        if isinstance(stopped.__context__, BrokenPipeError):  # of the help, which no command of ours prints
            raise ClosedPipe from stopped
        raise
    except _ArgumentError as error:
        error.show()
        return int(error.exit_code)
    except OffloadError as error:
        if "--debug" in options:  # known before the application is, should a command's code fail
            raise
        print_error(error)
        return 2 if isinstance(error, Usage) else 1


def _plugin_commands(found: Plugins) -> Iterator[Command]:
    """The commands of plugins, without those that would take another's name."""
    for declared in found.of_kind("command"):
        rivals = [found.conflicts[claim] for claim in declared.claims() if claim in found.conflicts]
        name = declared.declaration.name
        if name in BUILT_IN:
            print_note(f"command {name!r} of {declared.plugin.origin} is left out: offload has its own")
        elif rivals:
            print_note(conflict_text(f"command {name!r}", rivals[0]))
        else:
            assert isinstance(declared.declaration, Command)
            yield declared.declaration


def _add(app: typer.Typer, declaration: Command, named: str | None) -> None:
    target: Callable[..., Any] | typer.Typer = _only_listed
    text: str | None = declaration.help
    if declaration.name == named and declaration.name in BUILT_IN:
        with _one_blas_thread():
            target, text = declaration.load(), None  # its own page shows the whole docstring
    elif declaration.name == named:
        target = declaration.load()
    if isinstance(target, typer.Typer):
        app.add_typer(target, name=declaration.name, help=text)
    else:
        app.command(declaration.name, help=text)(guarded(target))


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    """While it is imported, NumPy starts no threads for linear algebra, which no command of ours needs.

    They cost more processor time than the rest of the import. A value that the user has set is kept.
    """
    is_ours = BLAS_THREADS not in os.environ
    if is_ours:
        os.environ[BLAS_THREADS] = "1"
    try:
        yield
    finally:
        if is_ours:  # programs that a command starts are no concern of ours
            del os.environ[BLAS_THREADS]


def _only_listed() -> None:
    raise AssertionError("the command that runs is the one that the arguments name")
