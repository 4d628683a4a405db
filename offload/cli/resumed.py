"""The ending of commands that report stream after stream, and that resume if they are run again."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

from offload.cli.kit.state import run_async
from offload.ground.errors import OffloadError

AGAIN: Final = "what was done so far stays; run the same command again to continue"


class StreamOutcome(Protocol):
    """The result of a command for one stream."""

    @property
    def error(self) -> OffloadError | None:
        """The error that stopped it; None if none did."""


def ended(
    main: Callable[[], Coroutine[Any, Any, None]],
    done: Sequence[StreamOutcome],
    show: Callable[[], None],
    *,
    json: bool,
) -> int:
    """Run `main`, which adds to `done`. Show the table, also after an error. Return the exit code."""
    try:
        run_async(main)
    except KeyboardInterrupt as exc:
        raise KeyboardInterrupt(AGAIN) from exc
    finally:
        if not json:
            show()
    return 1 if any(one.error for one in done) else 0
