"""The base of clauses about offloaders: how to open one, and a writer of the stream `orders`."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar, TypeVar

import pytest

from offload.contracts.offloader import LedgerOffloader
from offload.native.layout_check import native_or_none
from offload.write.writer import StreamWriter
from offload_conformance.asynchronous import Asynchronous, Run

T = TypeVar("T")
Open = Callable[[], LedgerOffloader]
KIB = 1024


class OpenedOffloaders(Asynchronous, ABC):
    """The base of the layers above the store: the author's two methods, and fixtures made of them."""

    layer: ClassVar[str]
    """The layer of the clauses that a class defines."""

    huge_chunk_size_bytes = 3 * KIB * KIB
    """The size of a huge chunk. Lower it for an offloader that cannot take so large a chunk."""

    tiny_chunks = 3000
    """The length of a stream of tiny chunks. Lower it for an offloader that is too slow for so many."""

    every_case = True
    """Ask each question in every case. False for a tier that this project makes of a store.

    Each run then draws some cases: the project's own tests have all of them.
    """

    many_streams = 40
    """The number of streams in one place. A tenth as many pairs of names are tested."""

    many_fragments = 40
    """The number of fragments of a long stream, and of attempts that a crash leaves."""

    codings: Sequence[str] = ()
    """Optional: the codings in which `open_coded` can store new data, by names such as `zstd`.

    Leave it empty for an offloader that neither compresses nor encrypts.
    """

    def some(self, cases: Iterable[T], count: int) -> list[T]:
        """Return the cases to ask about, in order: all, or so many of them if not `every_case`."""
        there = [*cases]
        if self.every_case or len(there) <= count:
            return there
        return [there[at] for at in sorted(random.sample(range(len(there)), count))]

    def open_coded(self, coding: str) -> LedgerOffloader:
        """Return a fresh offloader on the same place, which stores new data in one of `codings`.

        The offloaders of `open_offloader` and of all codings can read it.
        """
        raise NotImplementedError(f"open_coded: how to store in {coding!r}")

    def fetched_size_bytes(self, offloader: LedgerOffloader) -> int | None:
        """Return how many bytes this offloader has fetched so far. None if nobody counts them."""
        ours = native_or_none(offloader)
        return None if ours is None else ours.metrics.bytes_got

    @abstractmethod
    def open_offloader(self) -> LedgerOffloader:
        """Return a fresh offloader on the same place, which is empty when a test begins."""

    @abstractmethod
    def keys_in_store(self) -> set[str]:
        """Return the keys that are really stored, found by other means than the offloader."""

    @pytest.fixture
    def opened(self, run: Run) -> Iterator[Open]:
        """Return a function that opens offloaders. They are closed after the test."""
        opened: list[LedgerOffloader] = []

        async def on_the_loop() -> LedgerOffloader:
            return self.open_offloader()

        def open_another() -> LedgerOffloader:
            opened.append(run(on_the_loop()))
            return opened[-1]

        yield open_another
        for offloader in opened:
            run(offloader.aclose())

    @pytest.fixture
    def offloader(self, opened: Open) -> LedgerOffloader:
        """Return the offloader under test."""
        return opened()

    @pytest.fixture
    def other(self, opened: Open) -> LedgerOffloader:
        """Return a second offloader on the same place, like that of another process."""
        return opened()

    @pytest.fixture
    def writer(self, run: Run, offloader: LedgerOffloader) -> StreamWriter:
        """Return a writer that claimed the stream `orders`."""
        return run(StreamWriter.claim(offloader, "orders"))
