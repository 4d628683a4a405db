"""Damage: stored bytes that were changed by nobody's intention are an error at every door.

The suite damages what is stored in one of two ways:

    keys     the author says which keys are stored and how to replace the bytes of one, or the offloader shows
             the store beneath it as `store`
    files    the bytes of a chunk are looked for in the files that the URL names, and changed there

It cannot damage what is on a distant server, in the memory of this process, or encrypted. There, the author's
own tests run these clauses, by `keys_in_store` and `replace`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Final

import pytest

from offload.contracts.ledger import ReadHandle
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.store import Buffer
from offload.ground.errors import Corrupt
from offload.model.attempt import Attempt
from offload.read.reader import StreamReader
from offload.write.writer import StreamWriter
from offload_conformance.asynchronous import Run
from offload_conformance.ledgers import MemoryLedger, noisy_ledger
from offload_conformance.offloader.base import OffloaderClauses, stored
from offload_conformance.offloader.doors import READS, Opening, doors

DAMAGE: Final[dict[str, Callable[[bytes], bytes]]] = {
    "flipped": lambda raw: raw[: len(raw) // 2] + bytes([raw[len(raw) // 2] ^ 4]) + raw[len(raw) // 2 + 1 :],
    "torn": lambda raw: raw[: len(raw) // 2],
    "zeroed": lambda raw: bytes(len(raw)),
    "emptied": lambda raw: b"",
}
"""Ways to damage stored bytes. Most bytes of a fragment are chunks, so the middle lies in one of them."""

RUN_SIZE_BYTES: Final = 48
"""The size of the run of bytes that is looked for in files: a page of a database may begin anywhere."""

UNFOUND: Final = (
    "the suite finds no bytes of this offloader: it shows no store, and no file of its URL has any"
)


class DamageClauses(OffloaderClauses):
    """The clauses on damage of what is stored."""

    def files_in_place(self) -> Sequence[Path] | None:
        """Return the files in which the place may keep its bytes. None: the suite sees keys instead."""
        return None

    @pytest.mark.parametrize("damage", DAMAGE)
    def test_damage_is_an_error(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter, damage: str
    ) -> None:
        """Reading bytes that were damaged in the store raises `Corrupt`, and never returns wrong bytes.

        This holds however the attempt is opened and read.
        """
        ledger = noisy_ledger(10)
        attempt = run(self.damaged(offloader, writer, ledger, damage))

        async def scenario() -> None:
            for door, openings in (await doors(other, attempt)).items():
                for way, read in READS.items():
                    await is_corrupt(openings, read, ledger, f"{door}, read {way}")

        run(scenario())

    @pytest.mark.parametrize("damage", DAMAGE)
    def test_streams_do_not_end_at_damage(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter, damage: str
    ) -> None:
        """A reader that reaches damage raises `Corrupt`: it neither ends there nor skips it."""
        ledger = noisy_ledger(10)
        run(self.damaged(offloader, writer, ledger, damage))

        async def scenario() -> None:
            reader = await StreamReader.open(other, "orders")
            async with aclosing(reader.messages(0)) as messages:
                async for batch in messages:
                    assert bytes(batch.bodies[0]) in ledger.chunks[batch.offset]

        with pytest.raises(Corrupt):
            run(scenario())

    def test_fragments_are_those_of_their_entries(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """A whole and sound fragment in the place of another one is damage: reading raises `Corrupt`."""
        ledger, stranger = noisy_ledger(4), noisy_ledger(4)
        if self.files_in_place() is not None:
            pytest.skip("the suite cannot exchange two fragments in the files of this offloader")

        async def scenario() -> None:
            kept, foreign = await writer.prepare([ledger.ledger_id, stranger.ledger_id])
            before = self.keys_in_store()
            receipt = await stored(writer, ledger, kept)
            of_kept = sorted(self.keys_in_store() - before)
            await stored(writer, stranger, foreign)
            of_foreign = sorted(self.keys_in_store() - before - {*of_kept})
            await writer.append([receipt])
            if len(of_kept) != len(of_foreign):
                pytest.skip("the suite cannot tell which stored objects belong to each other")
            bodies = list[bytes]()

            def noted(raw: bytes) -> bytes:
                bodies.append(raw)
                return raw

            for key in of_foreign:
                await self.replace(offloader, key, noted)
            for key, body in zip(of_kept, bodies, strict=True):
                await self.replace(offloader, key, lambda _, body=body: body)  # type: ignore[misc]
            for door, openings in (await doors(other, kept)).items():
                for way, read in READS.items():
                    await is_corrupt(openings, read, ledger, f"{door}, read {way}")

        run(scenario())

    async def damaged(
        self, offloader: LedgerOffloader, writer: StreamWriter, ledger: MemoryLedger, damage: str
    ) -> Attempt:
        """Commit a ledger, and damage some of what is stored for it."""
        [attempt] = await writer.prepare([ledger.ledger_id])
        in_files = self.files_in_place() is not None
        announced = set() if in_files else self.keys_in_store()
        receipt = await stored(writer, ledger, attempt)
        of_attempt = [] if in_files else sorted(self.keys_in_store() - announced)
        await writer.append([receipt])
        if not in_files:
            await self.replace(offloader, of_attempt[len(of_attempt) // 2], DAMAGE[damage])
            return attempt
        await offloader.aclose()  # a database writes all of its pages then at the latest
        if not spoiled(self.files_in_place() or (), ledger.chunks[5], DAMAGE[damage]):
            pytest.skip(UNFOUND)
        return attempt


async def is_corrupt(
    openings: Sequence[Opening],
    read: Callable[[ReadHandle], Awaitable[list[Buffer]]],
    ledger: MemoryLedger,
    what: str,
) -> None:
    """Assert that a damaged attempt cannot be read to its end, and that whatever is read of it is right."""
    found, damage = b"", None
    try:
        for opening in openings:
            async with await opening() as handle:
                found += b"".join(await read(handle))
    except Corrupt as caught:
        damage = caught
    if damage is None:
        is_right = found == b"".join(ledger.chunks)
        pytest.fail(f"{what}: expected Corrupt; found {'the right bytes' if is_right else 'wrong bytes'}")
    assert damage.where, "expected that the error names the damaged object"


def spoiled(files: Sequence[Path], data: bytes, damage: Callable[[bytes], bytes]) -> int:
    """Damage a run of these bytes wherever a file has it, without moving any other byte. Return how often."""
    for start in range(len(data) // 4, len(data) - RUN_SIZE_BYTES, RUN_SIZE_BYTES):
        run = data[start : start + RUN_SIZE_BYTES]
        holders = {path: raw for path in files if run in (raw := path.read_bytes())}
        for path, raw in holders.items():
            path.write_bytes(raw.replace(run, damage(run).ljust(len(run), b"\0")))
        if holders:
            return len(holders)
    return 0
