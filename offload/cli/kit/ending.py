"""How a command ends: with a wrong argument, Ctrl-C, a closed pipe, or an error of the operating system.

It imports nothing but errors, because every start of the program imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from offload.errors import Misuse, OffloadError

__all__ = ["Usage"]


T = TypeVar("T")


class Usage(Misuse):
    """An argument is wrong, whatever the state of the world."""


class Interrupted(BaseException):
    """Ctrl-C, carried past the command-line library, which would make an exit code of its own of it.

    Its argument, if it has one, says what was done so far, and how to go on.
    """


class ClosedPipe(BaseException):
    """Whoever read stdout has gone, carried past the command-line library as well."""


def guarded(command: Callable[..., T]) -> Callable[..., T]:
    """A command whose end by Ctrl-C or a closed pipe is decided by `main` alone.

    With `--json`, which every command with JSON output names `json`, it is quiet.
    """

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> T:
        if "context" in kwargs:
            kwargs["context"].obj.is_quiet = bool(kwargs.get("json"))
        try:
            result = command(*args, **kwargs)
            sys.stdout.flush()
        except KeyboardInterrupt as exc:
            raise Interrupted(*exc.args) from exc
        except BrokenPipeError as exc:
            raise ClosedPipe from exc
        except OSError as exc:  # stores and sources raise errors of ours: this is the output's, or the demo's
            place = "" if exc.filename is None else f" {exc.filename}"
            raise OffloadError(f"the operating system refuses{place}: {exc.strerror or exc}") from exc
        return result

    return run
