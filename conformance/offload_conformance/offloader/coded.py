"""Offloaders that compress or encrypt: what they store differs, and what they return does not.

An offloader declares its codings by `codings` and `open_coded`. One without any leaves both as they are, and
these clauses are not run.
"""

from __future__ import annotations

import random
from contextlib import aclosing
from typing import Final

import pytest

from offload.contracts.offloader import LedgerOffloader
from offload.formats.chunk_writer import build_chunk
from offload.ground.errors import Corrupt
from offload.read.reader import StreamReader
from offload.write.writer import StreamWriter
from offload_conformance.asynchronous import Run
from offload_conformance.ledgers import EPOCH, MemoryLedger, drawn_ledger
from offload_conformance.offloader.base import OffloaderClauses, chunks_of, committed, stored
from offload_conformance.opened import KIB

EXTRA_SIZE_BYTES_MAX: Final = 512 * KIB
"""The most bytes that a read of one chunk may fetch beside it: its neighbours in a block, and an index."""


class CodedClauses(OffloaderClauses):
    """The clauses on data that is stored in a coding."""

    @pytest.fixture
    def declared(self) -> None:
        """Skip the clause if the offloader declares no coding."""
        if not self.codings:
            pytest.skip("the offloader declares no codings, so it compresses and encrypts nothing")

    @pytest.mark.usefixtures("declared")
    def test_coded_reads_are_verbatim(self, run: Run, other: LedgerOffloader) -> None:
        """Every chunk, and every run of chunks, reads back as it was offloaded, in each coding."""
        for coding in self.codings:
            ledger = drawn_ledger(random.randint(30, 60), size_bytes_max=40 * KIB)
            run(self._reads_verbatim(coding, other, ledger))

    async def _reads_verbatim(self, coding: str, other: LedgerOffloader, ledger: MemoryLedger) -> None:
        async with self.open_coded(coding) as coded:
            attempt = await committed(await StreamWriter.claim(coded, f"in {coding}"), ledger)
            count = len(ledger.chunks)
            for reader in (coded, other):
                async with await reader.read_offloaded(attempt) as handle:
                    table = await handle.table()
                    assert len(table) == count
                    for first in (0, count - 1, *random.sample(range(count), 10)):
                        stop = random.randint(first + 1, count)
                        assert await handle.read(table[first:stop]) == b"".join(ledger.chunks[first:stop])
                    whole = [await handle.read(rows) for rows in handle.windows(table, size_bytes=9 * KIB)]
                    assert b"".join(whole) == b"".join(ledger.chunks)

    @pytest.mark.usefixtures("declared")
    def test_codings_mix_in_a_stream(self, run: Run, other: LedgerOffloader) -> None:
        """Ledgers of one stream may be stored in different codings, and are counted by their plain sizes."""
        chunks: list[bytes] = []
        for coding in (*self.codings, *self.codings):
            next_offset = run(self._end(other)) if chunks else 0
            ledger = drawn_ledger(random.randint(3, 9), first_offset=next_offset)
            run(self._append(coding, ledger))
            chunks += ledger.chunks

        async def scenario() -> None:
            reader = await StreamReader.open(other, "orders")
            async with aclosing(reader.windows(0)) as windows:
                assert b"".join([window.data async for window in windows]) == b"".join(chunks)
            assert reader.manifest.data_size_bytes == sum(map(len, chunks))

        run(scenario())

    async def _end(self, offloader: LedgerOffloader) -> int:
        return (await offloader.load_manifest("orders")).next_offset

    async def _append(self, coding: str, ledger: MemoryLedger) -> None:
        async with self.open_coded(coding) as coded:
            await committed(await StreamWriter.claim(coded, "orders"), ledger)

    @pytest.mark.usefixtures("declared")
    def test_coded_damage_is_an_error(self, run: Run, other: LedgerOffloader) -> None:
        """Damage of a coded object raises `Corrupt`, with the object and a position within it."""
        for number, coding in enumerate(self.codings):
            run(self._damage_is_found(coding, number, other))

    async def _damage_is_found(self, coding: str, number: int, other: LedgerOffloader) -> None:
        first, sizes = drawn_ledger(3), list[int]()
        ledger = drawn_ledger(20, first_offset=first.next_offset, size_bytes_max=4 * KIB)

        def flipped(raw: bytes) -> bytes:
            sizes.append(len(raw))
            at = len(raw) // 2
            return raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1 :]

        async with self.open_coded(coding) as coded:
            writer = await StreamWriter.claim(coded, f"damaged {number}")
            await committed(writer, first)  # whatever a stream needs once, such as a key, is stored with it
            [attempt] = await writer.prepare([ledger.ledger_id])
            before = self.keys_in_store()
            receipt = await stored(writer, ledger, attempt)
            of_attempt = sorted(self.keys_in_store() - before)
            await writer.append([receipt])
            await self.replace(coded, of_attempt[len(of_attempt) // 2], flipped)
        with pytest.raises(Corrupt) as caught:
            await chunks_of(other, attempt)
        assert caught.value.where, "expected that the error names the damaged object"
        assert 0 <= caught.value.position <= sizes[-1], "expected a position within the object"

    @pytest.mark.usefixtures("declared")
    def test_coded_reads_are_bounded(self, run: Run) -> None:
        """A read of one chunk fetches few bytes beside it, however large the coded object is."""
        chunks = [
            build_chunk(
                [random.randbytes(8 * KIB).hex().encode()], offset=offset, timestamp_ms=0, epoch=EPOCH
            )
            for offset in range(160)
        ]
        for coding in self.codings:
            run(self._fetches_little(coding, MemoryLedger(chunks)))

    async def _fetches_little(self, coding: str, ledger: MemoryLedger) -> None:
        async with self.open_coded(coding) as coded:
            attempt = await committed(await StreamWriter.claim(coded, f"large {coding}"), ledger)
        async with self.open_coded(coding) as coded, await coded.read_offloaded(attempt) as handle:
            rows = (await handle.table())[80:81]
            before = self.fetched_size_bytes(coded)
            if before is None:
                pytest.skip("the suite cannot see how much is fetched: override `fetched_size_bytes`")
            assert await handle.read(rows) == ledger.chunks[80]
            fetched = (self.fetched_size_bytes(coded) or 0) - before
            assert fetched <= EXTRA_SIZE_BYTES_MAX, "expected few bytes beside the chunk"
