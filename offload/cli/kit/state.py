"""What a command finds around it: the plugins, the debug switch, and how arguments become objects.

What the arguments alone show to be wrong raises `Usage`, which ends with exit code 2; everything
else that fails ends with 1.
"""

from __future__ import annotations

import asyncio
import re
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from types import FrameType
from typing import Any, TypeVar

from offload.cli.kit.ending import Usage
from offload.cli.kit.output import print_note
from offload.contracts.catalogue import Catalogue
from offload.contracts.decoder import Decoder
from offload.contracts.events import Event, Waiting
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.opening import RequestLimits
from offload.contracts.source import Source
from offload.contracts.store import ObjectStore
from offload.errors import Misuse
from offload.model.position import Position, parse_position
from offload.native.offloader import TierOptions
from offload.native.place import TierPlan
from offload.plugins import Plugins
from offload.session import GivenOptions, Session, as_offloader
from offload.store.retry import RetryPolicy

__all__ = ["CommandContext"]


T = TypeVar("T")


@dataclass
class CommandContext:
    """Of one process."""

    plugins: Plugins
    debug: bool = False
    is_quiet: bool = False
    """The command's output is for programs: nobody reads that it waits."""

    @cached_property
    def session(self) -> Session:
        """That of the process. A command closes what it opens, and so nothing is left in it at the end."""
        return Session(plugins=self.plugins, emit=self._announcing(self.plugins.emit))

    def tier(
        self,
        url: str,
        options: Sequence[str] | None = None,
        *,
        how: TierOptions | None = None,
        plan: TierPlan | None = None,
        emit: Callable[[Event], None] | None = None,
    ) -> LedgerOffloader:
        """The tier that an argument names, to change it. As `catalogue`, but refuses what is only read."""
        with _usage():
            return as_offloader(self.catalogue(url, options, how=how, plan=plan, emit=emit))

    def catalogue(
        self,
        url: str,
        options: Sequence[str] | None = None,
        *,
        how: TierOptions | None = None,
        plan: TierPlan | None = None,
        emit: Callable[[Event], None] | None = None,
    ) -> Catalogue:
        """The tier that an argument names, with `NAME=VALUE` options. Must be called on the event loop."""
        with _usage():
            storage_options = dict(_pair(option) for option in options or ())
            return self.session.catalogue(
                url,
                storage_options=storage_options,
                options=how,
                plan=plan,
                emit=None if emit is None else self._announcing(emit),
            )

    def _announcing(self, emit: Callable[[Event], None]) -> Callable[[Event], None]:
        def announce(event: Event) -> None:
            if isinstance(event, Waiting) and not self.is_quiet:
                print_note(waiting_text(event))
            emit(event)

        return announce

    def bare_store(self, url: str, options: Mapping[str, object], limits: RequestLimits) -> ObjectStore:
        """The store that a URL names, as it is: with deadlines, and with hardly any patience."""
        with _usage():
            both = {**options, **asdict(limits)}
            return self.session.store(url, storage_options=both, policy=RetryPolicy(attempts_max=2))

    def options(self, options: Sequence[str] | None) -> GivenOptions:
        """What `NAME=VALUE` options say, by whom they are for."""
        with _usage():
            return GivenOptions.of(dict(_pair(option) for option in options or ()))

    def source(self, url: str) -> Source:
        """The source that an argument names."""
        with _usage():
            return self.session.source(url)

    def decoder(self, name: str) -> Decoder:
        """The decoder that an argument names."""
        with _usage():
            decoder: Decoder = self.plugins.by_name("decoder", name).load()()
        return decoder


def waiting_text(event: Waiting) -> str:
    """For what a command waits, why, since when, and how long it will."""
    cause = re.sub(r"^\w+://\S*: ", "", str(event.error))  # the store was named already
    return (
        f"waiting for {event.url} for {event.waited_seconds:.0f} s of at most "
        f"{event.patience_seconds:.0f} s: {cause}"
    )


def _pair(option: str) -> tuple[str, str]:
    name, equals, value = option.partition("=")
    if not name or not equals:
        raise Misuse(f"--option takes NAME=VALUE, not {name!r}")
    return name, value


def position_of(text: str) -> Position:
    """The place that a SPEC names."""
    with _usage():
        return parse_position(text)


def run_async(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a command's asynchronous part; Ctrl-C cancels it cleanly and is raised again, a second at once."""
    by_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if by_default and threading.current_thread() is threading.main_thread():  # so asyncio sets its handler
        return asyncio.run(_interrupted_between_turns(main()))
    return asyncio.run(main())


async def _interrupted_between_turns(work: Coroutine[Any, Any, T]) -> T:
    """Let the first Ctrl-C wait until the loop's callback ends.

    asyncio's handler cancels wherever the signal meets the interpreter, also in a callback that is about to
    set the result of a future. That future is cancelled then, and the loop prints a traceback for it.
    """
    cancel, loop, pressed = signal.getsignal(signal.SIGINT), asyncio.get_running_loop(), False
    assert callable(cancel)

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True
        loop.call_soon_threadsafe(cancel, number, frame)

    signal.signal(signal.SIGINT, interrupt)
    try:
        return await work
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def _usage() -> Iterator[None]:
    try:
        yield
    except Misuse as exc:
        raise Usage(str(exc)) from exc
