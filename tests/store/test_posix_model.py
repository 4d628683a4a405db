"""Any sequence of requests leaves a folder in the same state as a dict."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from campaign import CAMPAIGN
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from offload_posix import PosixStore

from offload.contracts.store import Body, Span, Suffix
from offload.ground.errors import AlreadyExists, NotFound

T = TypeVar("T")

KEYS = ("a-b", "a.b", "a/b", "a/c/d", "a/c.d", "a0", "é", "日本/z")  # no key is a folder of another one
keys = st.sampled_from(KEYS)
datas = st.binary(max_size=12)
numbers = st.integers(0, 14)
spans = st.one_of(st.none(), st.builds(Span, numbers, numbers), st.builds(Suffix, numbers))
borders = st.sampled_from(["", *KEYS, "a", "a/", "a/c", "a/c.", "a/c/", "b", "日"])


def part_of(data: bytes, span: Span | Suffix | None) -> bytes:
    """Return the bytes of a span, computed with Python's slices."""
    match span:
        case Span(start, length):
            return data[start:][:length]
        case Suffix(length):
            return data[len(data) - min(length, len(data)) :]
    return data


class PosixMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp()
        self.runner = asyncio.Runner()
        self.model: dict[str, bytes] = {}
        self.store = self.open()

    def open(self) -> PosixStore:
        return PosixStore(root=f"{self.folder}/root", threads=2)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(coroutine)

    @rule()
    def reopen(self) -> None:
        self.run(self.store.aclose())
        self.store = self.open()

    @rule(key=keys, data=datas)
    def put(self, key: str, data: bytes) -> None:
        self.run(self.store.put(key, Body.of(data)))
        self.model[key] = data

    @rule(key=keys, data=datas)
    def create(self, key: str, data: bytes) -> None:
        if key in self.model:
            with pytest.raises(AlreadyExists):
                self.run(self.store.create(key, data))
        else:
            self.run(self.store.create(key, data))
            self.model[key] = data

    @rule(
        key=keys,
        parts=st.lists(st.binary(min_size=3, max_size=3), max_size=3),
        order=st.randoms(),
        data=datas,
    )
    def upload(self, key: str, parts: list[bytes], order: Any, data: bytes) -> None:
        parts = [*parts, data[:3] or b"x"]
        numbered = [*enumerate(parts, 1)]
        order.shuffle(numbered)

        async def scenario() -> None:
            upload = await self.store.start_upload(key)
            for number, part in numbered:
                await upload.put_part(number, part)
            await upload.complete()

        self.run(scenario())
        self.model[key] = b"".join(parts)

    @rule(doomed=st.lists(keys, max_size=4))
    def delete(self, doomed: list[str]) -> None:
        self.run(self.store.delete(doomed))
        for key in doomed:
            self.model.pop(key, None)

    @rule(key=keys, span=spans)
    def get(self, key: str, span: Span | Suffix | None) -> None:
        if key in self.model:
            assert self.run(self.store.get(key, span)) == part_of(self.model[key], span)
        else:
            with pytest.raises(NotFound):
                self.run(self.store.get(key, span))

    @rule(prefix=borders, after=borders)
    def listing(self, prefix: str, after: str) -> None:
        assert self.listed(prefix, after) == [
            (key, len(self.model[key]))
            for key in sorted(self.model, key=str.encode)
            if key.startswith(prefix) and key.encode() > after.encode()
        ]

    @invariant()
    def all_is_listed(self) -> None:
        assert dict(self.listed("", "")) == {key: len(data) for key, data in self.model.items()}

    def listed(self, prefix: str, after: str) -> list[tuple[str, int]]:
        async def scenario() -> list[tuple[str, int]]:
            return [(row.key, row.size_bytes) async for row in self.store.list(prefix, after=after)]

        return self.run(scenario())

    def teardown(self) -> None:
        self.run(self.store.aclose())
        self.runner.close()
        shutil.rmtree(self.folder)


TestPosixIsADict = PosixMachine.TestCase
TestPosixIsADict.settings = settings(
    max_examples=40 if CAMPAIGN else 6, stateful_step_count=25, deadline=None
)
