"""Spoiled reads: replies cut short or with flipped bits, and listings that are out of date."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial

import pytest

from offload.contracts.capabilities import Capabilities
from offload.contracts.store import Listed, ObjectStore
from offload.ground.errors import Denied, OffloadError
from offload.model.attempt import Attempt
from offload.store.faults import Fault
from offload.store.wrap import StoreDecorator
from offload.upkeep.retention import Retention, delete_stream, trim
from offload.upkeep.sweep.tier import sweep
from offload_conformance.asynchronous import Run
from offload_conformance.ledgers import ledger_of
from offload_conformance.protocol.base import ProtocolClauses
from offload_conformance.protocol.process import END, STREAM, Process
from offload_conformance.protocol.world import KEYS, World, Worlds, held, source


class ProtocolReadClauses(ProtocolClauses):
    """The clauses on readers: they get the right bytes, or an error."""

    def test_damaged_replies_are_errors(self, run: Run, new_world: Worlds) -> None:
        """If a reply is cut or has a flipped bit, a reader gets the right bytes or an error."""

        async def scenario() -> None:
            world = new_world()
            await world.process().copy(trimmed=0)
            sound = world.process()
            assert await everything(sound) == source(0, END)
            # Each request of a sound read is damaged once, so no kind of object is left out.
            for number, call in enumerate(sound.store.calls, 1):
                for fault in (Fault.CUT, Fault.FLIP):
                    if fault.fits(call.operation):
                        await self._read_with(world, number, fault)

        run(scenario())

    async def _read_with(self, world: World, number: int, fault: Fault) -> None:
        reader = world.process()
        reader.spoil(number, fault)
        try:
            found = await everything(reader)
        except OffloadError:
            return
        assert found == source(0, END), f"{fault.name} of {reader.store.calls[number - 1]}"

    def test_late_listings_change_nothing(self, run: Run, new_world: Worlds) -> None:
        """If a store declares late listings, changes are refused, and readers find earlier commits."""

        async def scenario() -> None:
            world = new_world()
            writer, listings = world.process(), LateListings(world.client(1))
            late = world.process(front=lambda _: listings)
            await writer.copy(trimmed=0)
            await listings.freeze()
            [attempt] = await writer.holder.prepare([END])
            # Not committed yet: if a late process deleted it, the append below would name nothing.
            receipt = await writer.offloader.offload(
                ledger_of(END, first_offset=END), attempt, manifest=writer.holder.manifest, extra_metadata={}
            )
            before = await world.commits()

            for change in changes_by(late, attempt):
                with pytest.raises(Denied):
                    await change()

            # Refusing is not enough: no request of a refused change may have taken effect.
            assert await world.commits() == before
            assert await everything(late) == source(0, END)
            await writer.holder.append([receipt])
            await world.check(first=0, end=2 * END)

        run(scenario())


class LateListings(StoreDecorator):
    """A store that lists the roots as they were when frozen, and declares that its listings may be late."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._frozen: list[Listed] = []

    @property
    def capabilities(self) -> Capabilities:
        """Return the store's own capabilities, but without strong listing."""
        return replace(self.inner.capabilities, strong_listing=False)

    async def freeze(self) -> None:
        """Freeze the roots: from now on, listings show the present ones."""
        self._frozen = [row async for row in self.inner.list(KEYS.roots)]

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """Yield the frozen roots, or for other prefixes the existing objects."""
        if prefix != KEYS.roots:
            async for row in super().list(prefix, after=after):
                yield row
            return
        for row in self._frozen:
            if row.key > after:
                yield row


def changes_by(process: Process, attempt: Attempt) -> list[Callable[[], Awaitable[object]]]:
    """Return every call by which a process can change a tier."""
    tier, env = process.offloader, process.env
    return [
        process.claim,
        partial(tier.delete_offloaded, attempt),
        partial(trim, tier, STREAM, Retention(before_offset=END), env=env),
        partial(delete_stream, tier, STREAM, env=env),
        partial(sweep, tier, grace_seconds=0, env=env),
    ]


async def everything(process: Process) -> list[bytes]:
    """Return all chunks of the stream, as a process reads them."""
    return await held(process.offloader, await process.offloader.load_manifest(STREAM))
