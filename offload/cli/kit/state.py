"""The context of a command: the plugins, the debug switch, and the opening of tiers and sources.

An argument that is wrong by itself raises `Usage`, which ends with exit code 2. Every other failure ends
with 1.
"""

from __future__ import annotations

import asyncio
import re
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from types import FrameType
from typing import Any, Final, Self, TypeVar

from offload.cli.kit.advising import Advice
from offload.cli.kit.ending import Usage
from offload.cli.kit.output import print_note, print_notes
from offload.contracts.broker import BrokerView
from offload.contracts.catalogue import Catalogue
from offload.contracts.decoder import Decoder
from offload.contracts.events import Event, Waiting
from offload.contracts.keys import KeyService
from offload.contracts.listener import Listener
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.opening import RequestLimits
from offload.contracts.plugin import Backend
from offload.contracts.source import Source
from offload.contracts.store import ObjectStore
from offload.contracts.target import RestoreTarget
from offload.ground.env import Env
from offload.ground.errors import Corrupt, Misuse, NotOffloaded
from offload.ground.urls import FILE_SCHEME, scheme_of
from offload.model.labels import MasterKey
from offload.model.position import Position, parse_position
from offload.native.layout_check import native_or_none
from offload.native.offloader import TierOptions
from offload.native.place import TierPlan
from offload.opening.backends import as_offloader
from offload.opening.given_options import GivenOptions
from offload.opening.plugins import Plugins
from offload.opening.session import Session
from offload.store.retry import RetryPolicy

__all__ = ["CommandContext", "run_async"]


T = TypeVar("T")

_contexts: Final[list[CommandContext]] = []
"""The contexts that have an open session."""


@dataclass
class CommandContext:
    """The context of the one command that the process runs."""

    plugins: Plugins
    debug: bool = False
    is_quiet: bool = False
    """The command's output is for programs: print no notes about waiting."""
    keys: str | None = None
    """The URL of the key service."""
    advice: Advice = field(default_factory=Advice)
    """The advice after an error about a stream."""
    reading: TierOptions = field(default_factory=TierOptions)
    """The options of tiers that are opened without options of their own."""
    cache_size_bytes: int | None = None
    """The size of the cache that readers of the session share. None: the default."""

    def with_keys(
        self,
        keys: str | None,
        encrypt: str | None = None,
        *,
        encrypted_only: bool = False,
        decrypt: bool = False,
    ) -> Self:
        """Return the context with the value of `--keys`. Call it before a tier is opened.

        Raises `Usage` for a wrong label in `--encrypt`, for a label beside `--decrypt`, and for a label or
        `--encrypted-only` without a key service.
        """
        if encrypted_only and keys is None:
            raise Usage("--encrypted-only needs a key service: add --keys, or set OFFLOAD_KEYS")
        if encrypt is not None:
            if decrypt:
                raise Usage("--encrypt and --decrypt contradict each other: give one of them")
            if keys is None:
                raise Usage("--encrypt needs a key service: add --keys, or set OFFLOAD_KEYS")
            try:
                MasterKey.parse(encrypt)
            except Misuse as error:
                raise Usage(f"--encrypt: {error}") from error
        self.keys, self.reading = keys, TierOptions(encrypted_only=encrypted_only)
        return self

    @cached_property
    def session(self) -> Session:
        """The session of the process. `run_async` closes it, with the key service that belongs to it."""
        session = Session(
            plugins=self.plugins,
            emit=self._announcing(self.plugins.emit),
            keys=self.keys,
            cache_size_bytes=self.cache_size_bytes,
        )
        _contexts.append(self)
        return session

    def tier(
        self,
        url: str,
        options: Sequence[str] | None = None,
        *,
        how: TierOptions | None = None,
        plan: TierPlan | None = None,
        emit: Callable[[Event], None] | None = None,
        keys: str | None = None,
    ) -> LedgerOffloader:
        """Return the tier that an argument names, to change it.

        Like `catalogue`, but refuses a tier that can only be read.
        """
        with _usage():
            return as_offloader(self.catalogue(url, options, how=how, plan=plan, emit=emit, keys=keys))

    def catalogue(
        self,
        url: str,
        options: Sequence[str] | None = None,
        *,
        how: TierOptions | None = None,
        plan: TierPlan | None = None,
        emit: Callable[[Event], None] | None = None,
        keys: str | None = None,
    ) -> Catalogue:
        """Return the tier that an argument names, with `NAME=VALUE` options. Call it on the event loop.

        `keys` is the URL of a key service for this tier alone, in place of that of `with_keys`.
        """
        with _usage():
            storage_options = dict(_pair(option) for option in options or ())
            return self.session.catalogue(
                url,
                storage_options=storage_options,
                options=how or self.reading,
                plan=plan,
                emit=None if emit is None else self._announcing(emit),
                keys=keys,
            )

    @asynccontextmanager
    async def opened_to_read(
        self, url: str, options: Sequence[str] | None = None
    ) -> AsyncIterator[Catalogue]:
        """Open a tier to read it, as `catalogue` does. Then print what a reader of it must know.

        That is printed before an error, too, if the error is damage: a note may say what to do about it.
        """
        async with self.catalogue(url, options) as catalogue:
            try:
                yield catalogue
            except Corrupt:
                print_notes(catalogue.notes)
                raise
            except NotOffloaded as error:
                if layout := await self._layout_of(catalogue, url, options):
                    raise NotOffloaded(f"{error}; it has objects of {layout}: put that before it") from error
                raise
            print_notes(catalogue.notes)

    async def _layout_of(self, catalogue: Catalogue, url: str, options: Sequence[str] | None) -> str | None:
        """If the place is no tier, return the scheme by which a place that another program wrote is named."""
        objects = native_or_none(catalogue)
        if objects is None or objects.is_open:
            return None
        end = f"+{scheme_of(url) or FILE_SCHEME}"
        async with aclosing(self.store(url, options)) as store:
            for each in [each.declaration for each in self.plugins.of_kind("backend")]:
                named = [scheme for scheme in each.schemes if scheme.endswith(end)]
                marker = each.marker if isinstance(each, Backend) else ""
                if marker and named and [key async for key in store.level(marker)]:
                    return f"{named[0]}://"
        return None

    def _announcing(self, emit: Callable[[Event], None]) -> Callable[[Event], None]:
        def announce(event: Event) -> None:
            if isinstance(event, Waiting) and not self.is_quiet:
                print_note(waiting_text(event))
            emit(event)

        return announce

    def bare_store(self, url: str, options: Mapping[str, object], limits: RequestLimits) -> ObjectStore:
        """Return the store that a URL names, without a tier. It has deadlines, and tries a request twice."""
        with _usage():
            both = {**options, **asdict(limits)}
            return self.session.store(url, storage_options=both, policy=RetryPolicy(attempts_max=2))

    def store(self, url: str, options: Sequence[str] | None = None) -> ObjectStore:
        """Return the store that an argument names, for a command that reads or writes objects of its own.

        `NAME=VALUE` options are those of the backend, and limits. The store has the patience of a tier.
        """
        with _usage():
            return self.session.store(url, storage_options=dict(_pair(option) for option in options or ()))

    def options(self, options: Sequence[str] | None) -> GivenOptions:
        """Sort `NAME=VALUE` options: for the data store, for the commit store, and limits."""
        with _usage():
            return GivenOptions.of(dict(_pair(option) for option in options or ()))

    def source(self, url: str, options: Sequence[str] | None = None) -> Source:
        """Return the source that an argument names, with `NAME=VALUE` options."""
        with _usage():
            pairs = dict(_pair(option, "--source-option") for option in options or ())
            return self.session.source(url, source_options=pairs)

    def broker(self, url: str, user: str | None, password: str | None) -> BrokerView:
        """Return the view of the broker that an argument names."""
        with _usage():
            return self.session.broker(url, user=user, password=password)

    def listener(self, url: str) -> Listener:
        """Return the server that an argument names. It does not listen yet."""
        with _usage():
            return self.session.listener(url)

    def target(self, url: str, options: Sequence[str] | None = None) -> RestoreTarget:
        """Return the place to restore to that an argument names, with `NAME=VALUE` options."""
        with _usage():
            pairs = dict(_pair(option, "--target-option") for option in options or ())
            return self.session.target(url, target_options=pairs)

    @asynccontextmanager
    async def key_service(self, url: str) -> AsyncIterator[KeyService]:
        """Open the key service that an argument names, and close it afterwards."""
        with _usage():
            service = self.session.key_service(url)
        async with aclosing(service):
            yield service

    def decoder(self, name: str) -> Decoder:
        """Return the decoder that an argument names."""
        with _usage():
            decoder: Decoder = self.plugins.by_name("decoder", name).load()()
        return decoder


def waiting_text(event: Waiting) -> str:
    """Return a sentence on what a command waits for, why, for how long, and until when."""
    cause = re.sub(r"^\w+://\S*: ", "", str(event.error))  # the store was named already
    return (
        f"waiting for {event.url} for {event.waited_seconds:.0f} s of at most "
        f"{event.patience_seconds:.0f} s: {cause}"
    )


def _pair(option: str, of: str = "--option") -> tuple[str, str]:
    name, equals, value = option.partition("=")
    if not name or not equals:
        raise Misuse(f"{of} takes NAME=VALUE, not {name!r}")
    return name, value


def position_of(text: str) -> Position:
    """Return the position that a SPEC names."""
    with _usage():
        return parse_position(text, now_ms=Env().now_ms())


def run_async(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run the asynchronous part of a command.

    Ctrl-C cancels it cleanly and is raised afterwards. A second Ctrl-C is raised at once.
    """
    by_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    # In this case, and no other, asyncio sets a handler of its own.
    if by_default and threading.current_thread() is threading.main_thread():
        return asyncio.run(_interrupted_between_turns(_then_closed(main())))
    return asyncio.run(_then_closed(main()))


async def _then_closed(work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, and close the sessions of the command, whose connections end with the event loop."""
    try:
        return await work
    finally:
        while _contexts:
            session: Session = _contexts.pop().__dict__.pop("session")  # a later use opens a new one
            await session.aclose()


async def _interrupted_between_turns(work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, and delay the first Ctrl-C until the running callback of the loop ends.

    asyncio's handler cancels at any instruction, even in a callback that is about to
    set the result of a future. The future is cancelled then, and the loop prints a traceback for it.
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
