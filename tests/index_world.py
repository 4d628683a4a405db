"""The world of the index tests: a tier in memory, records with keys, and small sizes, so that little is much.

A record is a JSON object, and its field `k` is a list of keys. `records` of a world is what a reader reads
without any index, so it is the truth with which a find is compared.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from uuid import UUID

import pytest
from kit.world import STREAM, TierWorld

from offload import MemoryHandle, StreamWriter, build_chunk
from offload.contracts.decoder import Decoded, Decoder
from offload.formats import index_object
from offload.formats.keys import IndexName, StreamKeys
from offload.ground.env import Env
from offload.index import build, objects, rules
from offload.index.find import FindReport, find
from offload.index.job import IndexReport, index
from offload.index.terms import Spec

BY: Final = Spec.parse("keyed:body.k")
KEYS: Final = StreamKeys(STREAM)
T = TypeVar("T")


class Keyed(Decoder):
    """A decoder of records that are their own bodies."""

    def bodies(self, records: Sequence[bytes]) -> list[bytes]:
        return [*records]

    def decode(self, records: Sequence[bytes]) -> list[Decoded]:
        return [Decoded(record, {}) for record in records]


def body(keys: Sequence[str], number: int = 0) -> bytes:
    """Return a record with these keys."""
    return json.dumps({"k": [*keys], "n": number}).encode()


def keys_of(record: bytes) -> list[str]:
    """Return the keys of a record."""
    found: list[str] = json.loads(record)["k"]
    return found


def make_small(patch: pytest.MonkeyPatch) -> None:
    """Make objects, buckets and pieces small: three objects are merged, and a bucket has about two rows."""
    patch.setattr(index_object, "BUCKET_ROWS", 2)
    patch.setattr(objects, "PIECE_ROWS", 3)
    patch.setattr(objects, "BUCKETS_AT_ONCE", 2)
    patch.setattr(build, "BUILT_ROWS_MAX", 16)
    patch.setattr(rules, "MERGED_AT_ONCE", 3)
    patch.setattr(rules, "_SMALLEST_CLASS_BITS", 3)
    patch.setattr(rules, "_CLASS_BITS", 1)


@dataclass
class IndexWorld(TierWorld):
    """A tier with one stream, which is indexed and searched."""

    numbers: int = 0
    """How many records and UUIDs were made."""
    chunk_records: int = 3
    reports: list[IndexReport] = field(default_factory=list)

    def env(self) -> Env:
        """Return an environment whose UUIDs ascend in their last byte, and not in order."""
        return Env(uuid=self.uuid, sleep=lambda seconds: asyncio.sleep(0), monotonic=lambda: self.clock.now)

    def uuid(self) -> UUID:
        """Return a UUID that was never returned before."""
        self.numbers += 1
        return UUID(int=(self.numbers * 0x9E3779B97F4A7C15F39CC0605CEDC835) % 2**128)

    async def append(self, records: Sequence[Sequence[str]], *, stream: str = STREAM) -> None:
        """Commit records with these keys, as one fragment."""
        tier = self.others()
        await tier.open(create=True)
        writer = await StreamWriter.claim(tier, stream)
        begin, chunks = writer.manifest.next_offset, list[bytes]()
        for at in range(0, len(records), self.chunk_records):
            bodies = list[bytes]()
            for keys in records[at : at + self.chunk_records]:
                self.numbers += 1
                bodies.append(body(keys, self.numbers))
            chunks.append(build_chunk(bodies, offset=begin + at, timestamp_ms=1000 + begin + at, epoch=1))
        await writer.offload([MemoryHandle(chunks)])

    async def index(self, *, stream: str = STREAM, by: Spec = BY) -> list[IndexReport]:
        """Index the stream, as another process does."""
        async with aclosing(index(self.tier(), stream, by, Keyed(), env=self.env())) as reports:
            self.reports = [each async for each in reports]
        return self.reports

    async def find(
        self, *terms: str, stream: str = STREAM, report: FindReport | None = None, **how: Any
    ) -> list[tuple[int, bytes]]:
        """Return offset and bytes of each record that is found, as another process finds it."""
        found = find(
            self.tier(),
            stream,
            [term.encode() for term in terms],
            by=BY,
            decoder=Keyed(),
            report=report,
            emit=self.events.append,
            **how,
        )
        async with aclosing(found) as runs:
            return [
                (int(offset), bytes(each.run.data[start : start + size]))
                async for each in runs
                for offset, start, size in zip(
                    each.run.offsets.tolist(),
                    each.run.starts.tolist(),
                    each.run.sizes.tolist(),
                    strict=True,
                )
            ]

    async def having(self, *terms: str, stream: str = STREAM) -> list[tuple[int, bytes]]:
        """Return what a find has to return, by a reader that knows no index."""
        return [(at, raw) for at, raw in await self.records(stream) if {*terms} & {*keys_of(raw)}]

    @property
    def indexes(self) -> list[str]:
        """The keys of the index objects, in order."""
        return sorted(key for key in self.objects if "/index/" in key)

    @property
    def names(self) -> list[IndexName]:
        """The names of the index objects."""
        return [name for key in self.indexes if (name := KEYS.parse_index(key)) is not None]


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine."""
    return asyncio.run(work)
