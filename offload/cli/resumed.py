"""Commands that report stream after stream, and that go on where they were if they are run again."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

from offload.cli.kit.state import run_async
from offload.errors import OffloadError

AGAIN: Final = "what was done so far stays; run the same command again to go on"


class StreamOutcome(Protocol):
    """What came of one stream."""

    @property
    def error(self) -> OffloadError | None:
        """What stopped it."""


def ended(
    main: Callable[[], Coroutine[Any, Any, None]],
    done: Sequence[StreamOutcome],
    show: Callable[[], None],
    *,
    json: bool,
) -> int:
    """Run `main`, which adds to `done`; then show the table, whatever ended it. Return the exit code."""
    try:
        run_async(main)
    except KeyboardInterrupt as exc:
        raise KeyboardInterrupt(AGAIN) from exc
    finally:
        if not json:
            show()
    return 1 if any(one.error for one in done) else 0
