"""Fourth set, offloaders: what an upload checks and refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from newcomers.fourth_sound import Relay, Rows
from newcomers.ledgers import (
    ledger,
    raises,
    uploaded,
)
from newcomers.registry import Open, bug
from offload.contracts.ledger import ReadHandle
from offload.ground.errors import Conflict, Misuse
from offload.model.attempt import Attempt, Receipt
from offload.model.manifest import Manifest
from offload.write.writer import StreamWriter

# Checks


async def _any_text(open_: Open) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    _, receipt = await uploaded(tier, writer, ledger(0), note="", host="a\nb")
    assert receipt.next_offset == 3


@bug(_any_text)
class EmptyNotesAreRefused(Rows):
    """A value for people that is empty is refused, as by a column that takes the empty string for NULL.

    Breaks "`extra_metadata` is for people who inspect the store: any text". Costs a copy that fails because a
    host has no rack.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        if not all(extra_metadata.values()):
            raise Misuse("a value of the metadata is empty")
        return await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)


async def _announced_with_its_ledger(open_: Open) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    [attempt] = await writer.prepare([7])
    other = replace(attempt, ledger_id=8)
    handle = ledger(0, ledger_id=8)
    await raises(Conflict, tier.offload(handle, other, manifest=writer.manifest, extra_metadata={}))


@bug(_announced_with_its_ledger)
class AnnouncedByItsUuid(Rows):
    """An attempt runs if its UUID does, whatever ledger was announced with it.

    Breaks "`offload` refuses an attempt that does not run in its manifest, with `Conflict`". Costs the order
    of a stream: the next writer adopts fragments under a ledger that they are not of.
    """

    def check_attempt(self, handle: ReadHandle, attempt: Attempt, manifest: Manifest) -> bool:
        ledgers = {each.attempt: each.ledger_id for each in manifest.running}
        if attempt.stream == manifest.stream and handle.ledger_id == attempt.ledger_id:
            attempt = replace(attempt, ledger_id=ledgers.get(attempt.uid, attempt.ledger_id))
            handle = Renamed(handle, attempt.ledger_id)
        return super().check_attempt(handle, attempt, manifest)


class Renamed(Relay):
    """A handle under another ledger."""

    def __init__(self, handle: ReadHandle, ledger_id: int) -> None:
        super().__init__(handle)
        self.number = ledger_id

    @property
    def ledger_id(self) -> int:
        return self.number
