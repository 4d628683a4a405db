"""The ways in which a command ends: a wrong argument, Ctrl-C, a closed pipe, an operating system error.

This module imports nothing but errors, because every start of the program imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from offload.ground.errors import Misuse, OffloadError

__all__ = ["Usage", "guarded"]


T = TypeVar("T")


class Usage(Misuse):
    """An argument is wrong by itself: nothing outside the command line can make it right."""


class Interrupted(BaseException):
    """Ctrl-C, raised past the command-line library, which would turn it into an exit code of its own.

    Its argument, if there is one, says what was done so far, and how to continue.
    """


class ClosedPipe(BaseException):
    """The reader of stdout closed the pipe. Raised past the command-line library as well."""


def guarded(command: Callable[..., T]) -> Callable[..., T]:
    """Wrap a command so that `main` alone decides how Ctrl-C and a closed pipe end it.

    With `--json`, the command prints no notes about waiting. Every command with JSON output calls that
    parameter `json`.
    """

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> T:
        if "context" in kwargs:
            kwargs["context"].obj.is_quiet = bool(kwargs.get("json"))
        try:
            result = command(*args, **kwargs)
            sys.stdout.flush()  # here, where a closed pipe is still handled
        except KeyboardInterrupt as exc:
            raise Interrupted(*exc.args) from exc
        except BrokenPipeError as exc:
            raise ClosedPipe from exc
        except (
            OSError
        ) as exc:  # stores and sources raise OffloadError: this one is of the output, or the demo
            place = "" if exc.filename is None else f" {exc.filename}"
            raise OffloadError(f"the operating system refuses{place}: {exc.strerror or exc}") from exc
        return result

    return run
