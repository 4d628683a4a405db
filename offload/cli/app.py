"""The command-line application: built-in commands, commands of plugins, and the exit codes of errors.

This is the only place where an error becomes an exit code.
"""

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
from offload.cli.grouped import GroupedCommands, ListedCommands
from offload.cli.kit.ending import ClosedPipe, Interrupted, Usage, guarded
from offload.cli.kit.output import escape_what_cannot_be_printed, one_line, print_error, print_note
from offload.cli.values import take_values_as_they_are
from offload.contracts.plugin import Command
from offload.ground.errors import OffloadError
from offload.opening.plugins import Plugins, conflict_text

# The library's error for a wrong argument: the base of `BadParameter`, which it does not export.
_ArgumentError: Any = typer.BadParameter.__mro__[2]

# The library's return value after Ctrl-C outside of any command. No command of ours returns it.
_CTRL_C: Final = 130

BLAS_THREADS: Final = "OPENBLAS_NUM_THREADS"
"""The variable that the library in NumPy's wheels reads when it is loaded."""


def build(found: Plugins, named: str | None, *, alone: bool = False) -> typer.Typer:
    """Return the application with the built-in commands and every command that a plugin adds.

    Imports only the command that is `named`, and may fail doing so. The others are only listed, or with
    `alone` left out if that one exists.
    """
    app = typer.Typer(
        name="offload",
        cls=GroupedCommands,
        help="Copy a broker's sealed log data to any object store, and read it back.",
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
        """Copy a broker's sealed log data to any object store, and read it back."""
        from offload.cli.kit.state import CommandContext  # here, because help and completion need no tier

        context.obj = CommandContext(plugins=found, debug=debug)
        _log(found, debug=debug)

    declared = [*BUILT_IN.values(), *_plugin_commands(found)]
    only = [each for each in declared if alone and each.name == named]
    for declaration in only or declared:
        _add(app, declaration, named)
    return app


def _log(found: Plugins, *, debug: bool) -> None:
    """Log errors only, or with `debug` everything that the framework and its plugins log."""
    # SDKs write tokens and signatures into their debug logs, so their loggers stay at INFO.
    logging.basicConfig(level=logging.INFO if debug else logging.ERROR, handlers=[_Stderr()])
    ours = {each.declaration.target.partition(":")[0].partition(".")[0] for each in found.declared}
    for name in {"offload", *ours}:
        logging.getLogger(name).setLevel(logging.DEBUG if debug else logging.NOTSET)


class _Stderr(logging.Handler):
    """A handler that writes each message as one line. Names from outside may hold any character."""

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
    """Return the words that a shell asks to complete, without the program's name.

    For a completion the shell passes no arguments: the words are in the environment.
    """
    words = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS") or ""
    return words.split()[1:]


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    escape_what_cannot_be_printed()
    words = arguments or _words_to_complete()
    options = [*takewhile(lambda word: word.startswith("-"), words)]  # none of them takes a value
    named = next(iter(words[len(options) :]), None)
    # The library reads the signatures of all commands. Only help, completion and an error list the others.
    alone = bool(arguments) and {*options} <= {"--debug"}
    try:
        command = typer.main.get_command(build(Plugins.find(), named, alone=alone))
        take_values_as_they_are(command)
        code: int | None = command.main(args=arguments, prog_name="offload", standalone_mode=False)
        if code == _CTRL_C:
            raise Interrupted
        return code or 0
    except typer.Exit as done:
        return done.exit_code
    except SystemExit as stopped:
        if isinstance(stopped.__context__, BrokenPipeError):  # the library printed a help text into it
            raise ClosedPipe from stopped
        raise
    except _ArgumentError as error:
        error.show()
        return int(error.exit_code)
    except OffloadError as error:
        if "--debug" in options:  # read from the words: the import of the command itself may have failed
            raise
        print_error(error)
        return 2 if isinstance(error, Usage) else 1


def _plugin_commands(found: Plugins) -> Iterator[Command]:
    """Yield the commands of plugins, except those whose name is taken."""
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
            target, text = declaration.load(), None  # its own help shows the whole docstring
    elif declaration.name == named:
        target = declaration.load()
    if isinstance(target, typer.Typer):
        app.add_typer(target, name=declaration.name, help=text, cls=ListedCommands)
    else:
        app.command(declaration.name, help=text)(guarded(target))


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    """Keep NumPy from starting threads for linear algebra while it is imported.

    No command needs them, and they cost more processor time than the rest of the import. A value that the
    user has set is kept.
    """
    is_ours = BLAS_THREADS not in os.environ
    if is_ours:
        os.environ[BLAS_THREADS] = "1"
    try:
        yield
    finally:
        if is_ours:  # programs that a command starts must not inherit it
            del os.environ[BLAS_THREADS]


def _only_listed() -> None:
    raise AssertionError("the command that runs is the one that the arguments name")
