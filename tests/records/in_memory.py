"""A metadata service in memory, and the plugins of this checkout with the recipes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points

from offload import Plugins, Record, RecordLimits, RecordService

LIMITS = RecordLimits(value_size_bytes_max=8 * 2**20, delete_batch_max=3, durable=False, one_process=True)


class MemoryRecords(RecordService):
    """Records in a dictionary that tests share and read. `calls` has the name of each call."""

    def __init__(self, rows: dict[bytes, bytes], limits: RecordLimits = LIMITS) -> None:
        self.rows, self._limits = rows, limits
        self.calls: list[str] = []

    @property
    def url(self) -> str:
        return "memory-records://here"

    @property
    def limits(self) -> RecordLimits:
        return self._limits

    async def create(self, key: bytes, value: bytes) -> bool:
        await self._called("create")
        if key in self.rows:
            return False
        self.rows[key] = value
        return True

    async def put(self, key: bytes, value: bytes) -> None:
        await self._called("put")
        self.rows[key] = value

    async def get(self, key: bytes) -> bytes | None:
        await self._called("get")
        return self.rows.get(key)

    async def list(self, first: bytes, end: bytes, *, limit: int) -> Sequence[Record]:
        await self._called("list")
        assert first < end
        return [Record(key, len(self.rows[key])) for key in sorted(self.rows) if first <= key < end][:limit]

    async def delete(self, keys: Sequence[bytes]) -> None:
        await self._called("delete")
        assert len(set(keys)) == len(keys) <= self.limits.delete_batch_max
        for key in keys:
            self.rows.pop(key, None)

    async def _called(self, name: str) -> None:
        self.calls.append(name)
        await asyncio.sleep(0)


def plugins() -> Plugins:
    """Return the installed plugins and the recipes of `examples/metadata`."""
    recipes = EntryPoint(name="metadata", value="offload_metadata.plugin", group="offload")
    return Plugins.find([*entry_points(group="offload"), recipes])
