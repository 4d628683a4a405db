"""Opening what a configuration names: the source, and the tier, once for each way of storing.

Streams that are compressed or encrypted in different ways need different offloaders. They share the store's
client, because one session opens them all.

Memory. `memory` is shared out like this:

    uploads = (memory - 128 MiB) / 96 MiB     fragments in memory at once: 64 MiB, and 32 MiB to read and code
    turns   = min(4, uploads)                 streams that are copied at once
    each offloader uploads up to uploads / min(turns, number of offloaders) fragments at once

The 128 MiB are the program itself, and what it keeps of each stream. A fragment with a chunk above 32 MiB
takes the memory of several uploads, or of all (`native.upload_turns`). If that is too little, the log says so
before it is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from offload.contracts.decoder import Decoder
from offload.contracts.events import Event
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.source import Source
from offload.copy.instance import Instance
from offload.copy.sync import name_notes
from offload.follow.dispatcher import Dispatcher
from offload.follow.pauses import PausedBefore
from offload.follow.rules import FollowRules, FollowState
from offload.follow.vouched import VouchedSource
from offload.ground.errors import OffloadError
from offload.index.terms import Spec
from offload.model.compression import Compression
from offload.model.own_names import matches_glob, may_match_glob, own_name
from offload.native.layout_check import native
from offload.native.offloader import TierOptions
from offload.native.place import TierPlan
from offload.opening.session import Session
from offload.service.config import (
    BASE_SIZE_BYTES,
    DEFAULT_GLOB,
    UPLOAD_SIZE_BYTES,
    RunConfig,
    StreamConfig,
)
from offload.service.place import look_at_place
from offload.service.upkeep import Upkeep

__all__ = ["OpenedService", "open_service", "start_notes"]


TURNS_MAX: Final = 4

Storing: TypeAlias = tuple[str | None, str | None]
"""How new fragments are stored: `compress` and `encrypt` of a configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedService:
    """The source, the tiers and the rules of a configuration, opened. The session closes them."""

    config: RunConfig
    session: Session
    source: Source
    tiers: Mapping[Storing, LedgerOffloader]
    turns_max: int

    @property
    def tier(self) -> LedgerOffloader:
        """The tier, for work that stores no fragments."""
        return next(iter(self.tiers.values()))

    @property
    def asked(self) -> VouchedSource | None:
        """The source, if its broker is asked."""
        return self.source if isinstance(self.source, VouchedSource) else None

    def tier_for(self, stream: str) -> LedgerOffloader:
        """Return the tier as the fragments of this stream are to be stored."""
        return self.tiers[_storing(self.config.of(stream))]

    def plan_of(self, stream: str) -> tuple[LedgerOffloader, FollowRules] | None:
        """Return the offloader and the rules for a stream, or None if it is left out."""
        found = self.config.of(stream)
        return (self.tiers[_storing(found)], found.rules) if found.follow else None

    def dispatcher(
        self,
        emit: Callable[[Event], None],
        instance: Instance | None = None,
        paused_before: Callable[[str], PausedBefore | None] = lambda stream: None,
    ) -> Dispatcher:
        """Return the dispatcher of the source's streams."""
        return Dispatcher(
            source=self.source,
            plan_of=self.plan_of,
            env=self.session.env,
            emit=emit,
            instance=instance,
            turns_max=self.turns_max,
            discover_seconds=self.config.discover_seconds,
            stop_seconds=self.config.stop_seconds,
            place=look_at_place(self.config.tier),
            paused_before=paused_before,
        )

    def decoder(self, name: str) -> Decoder:
        """Return a decoder that a plugin declares. Raises `Misuse` if there is none of this name."""
        made: Decoder = self.session.plugins.by_name("decoder", name).load()()
        return made

    def upkeep(self, dispatcher: Dispatcher, emit: Callable[[Event], None]) -> Upkeep:
        """Return the jobs that keep the tier in order, for the streams that the dispatcher leads."""
        return Upkeep(
            config=self.config,
            tier=self.tier,
            tier_for=self.tier_for,
            decoder=self.decoder,
            ends=lambda: {
                each.stream: (each.part, each.committed_offset)
                for each in dispatcher.statuses
                if each.committed_offset is not None
            },
            led=lambda: [each.stream for each in dispatcher.statuses if each.state is FollowState.LEADING],
            identity=None if dispatcher.instance is None else dispatcher.instance.tag.hex(),
            env=self.session.env,
            emit=emit,
        )


def open_service(session: Session, config: RunConfig, emit: Callable[[Event], None]) -> OpenedService:
    """Open the source and the tier. Sends no request. Raises `Misuse` as the session does."""
    ways = list(dict.fromkeys(_storing(each) for each in config.streams.values()))
    turns, uploads = shares(config.memory_size_bytes, len(ways))
    default = config.streams[DEFAULT_GLOB]
    plan = TierPlan(compression=_compression(default.compress))
    tiers = {}
    for compress, encrypt in ways:
        how = TierOptions(uploads_max=uploads, compression=_compression(compress), encrypt=encrypt)
        tiers[compress, encrypt] = session.tier(
            config.tier, storage_options=config.options, options=how, plan=plan, emit=emit
        )
    source = session.source(config.source, source_options=config.source_options)
    if config.broker is not None:
        broker = session.broker(config.broker, user=config.broker_user, password=config.broker_password)
        source = VouchedSource(source, broker, env=session.env)
    opened = OpenedService(config=config, session=session, source=source, tiers=tiers, turns_max=turns)
    for text in {text for each in config.streams.values() for text in each.index}:
        native(opened.tier, to="index")
        spec = Spec.parse(text)
        spec.check(opened.decoder(spec.decoder))
    return opened


async def start_notes(opened: OpenedService) -> list[str]:
    """Return what an operator should know at the start: globs without streams, and what the source skips."""
    try:
        names = [stream.name for stream in await opened.source.streams()]
        alike = await name_notes(opened.source, opened.tier)
    except OffloadError as error:
        return [f"no streams yet: {error}"]
    notes, problems = unmatched(opened.config, names)
    return [*problems, *alike, *notes, *opened.source.notes]


def unmatched(config: RunConfig, streams: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return notes on globs that count for no stream of the source, and problems.

    It is a problem if the table asks for something that nobody would miss until it is too late, or if it may
    mean a stream whose virtual host nobody knows.
    """
    counts = {config.glob_of(stream) for stream in streams}
    notes, problems = list[str](), list[str]()
    for glob, rules in config.streams.items():
        table = f"[streams.{json.dumps(glob)}]"
        if glob not in counts | {DEFAULT_GLOB}:
            is_hidden = any(matches_glob(stream, glob) for stream in streams)
            found = f"{table} counts for no stream of the source"
            found += ": an earlier glob matches them all" if is_hidden else ""
            if rules.must_match:
                problems.append(f"{found}, and asks for {' and '.join(rules.must_match)}")
            else:
                notes.append(found)
        for stream in streams:
            if rules.must_match and config.glob_of(stream) == DEFAULT_GLOB and may_match_glob(stream, glob):
                problems.append(
                    f"{table} asks for {' and '.join(rules.must_match)}, and does not match "
                    f"{own_name(stream)!r}: if that begins with a virtual host, add a table with this name"
                )
    return notes, problems


def shares(memory_size_bytes: int, offloaders: int) -> tuple[int, int]:
    """Return the turns of a process, and the uploads of each offloader."""
    uploads = (memory_size_bytes - BASE_SIZE_BYTES) // UPLOAD_SIZE_BYTES
    turns = min(TURNS_MAX, uploads)
    return turns, uploads // min(turns, offloaders)


def _storing(config: StreamConfig) -> Storing:
    return config.compress, config.encrypt


def _compression(compress: str | None) -> Compression | None:
    return None if compress is None else Compression.parse(compress)
