"""Tests of uploads in parts, on which the backends of remote stores build their large puts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload.contracts.store import Body, Upload
from offload.ground.errors import Misuse
from offload.store.memory import MemoryStore
from offload.store.multipart import put_in_parts
from offload.store.wrap import StoreDecorator, UploadDecorator


class Parts(StoreDecorator):
    """A store that records the sizes of the parts of its uploads."""

    __slots__ = ("sizes",)

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.sizes: dict[int, int] = {}

    async def start_upload(self, key: str) -> Upload:
        sizes = self.sizes

        class Recording(UploadDecorator):
            async def put_part(self, number: int, data: bytes) -> None:
                sizes[number] = len(data)
                await asyncio.sleep(0)  # other parts get their turn
                await self.inner.put_part(number, data)

        return Recording(await self.inner.start_upload(key))


@given(
    st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=8),
    st.integers(1, 50),
    st.integers(0, 100),
    st.integers(1, 3),
)
def test_all_parts_but_the_last_have_one_size(
    windows: list[bytes], part_size_bytes: int, slack: int, at_once: int
) -> None:
    """S3 and R2 refuse other sizes. The size of a compressed body is known only when its last part is cut."""
    store, data = Parts(), b"".join(windows)

    async def each() -> AsyncIterator[bytes]:
        for window in windows:
            yield window

    async def main() -> bytes:
        body = Body(size_bytes=len(data) + slack, windows=each, is_bound=True)
        await put_in_parts(store, "key", body, part_size_bytes=part_size_bytes, at_once=at_once)
        return await store.get("key")

    assert asyncio.run(main()) == data
    *full, last = (store.sizes[number] for number in sorted(store.sizes))
    assert set(full) <= {part_size_bytes}
    assert 0 < last <= part_size_bytes


@pytest.mark.parametrize("is_bound", [False, True])
def test_a_body_that_never_ends_is_refused_at_its_bound(is_bound: bool) -> None:
    store = Parts()

    async def endless() -> AsyncIterator[bytes]:
        for window in repeat(b"x" * 7, 1000):
            yield window

    async def main() -> None:
        body = Body(size_bytes=100, windows=endless, is_bound=is_bound)
        with pytest.raises(Misuse, match="100 bytes yielded 110"):
            await put_in_parts(store, "key", body, part_size_bytes=10, at_once=2)
        assert not await store.unfinished_uploads("")

    asyncio.run(main())

    assert sum(store.sizes.values()) <= 100
