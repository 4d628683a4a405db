"""What clauses about offloaders stand on: how one is opened, and who writes the stream `orders`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest

from offload.contracts.offloader import LedgerOffloader
from offload.streams.writer import StreamWriter
from offload_conformance.asynchronous import Asynchronous, Run

Open = Callable[[], LedgerOffloader]
KIB = 1024


class OpenedOffloaders(Asynchronous, ABC):
    """What the layers above the store share: the author's two methods, and fixtures made of them."""

    layer: ClassVar[str]
    """The layer of the clauses that a class defines itself."""

    huge_chunk_size_bytes = 3 * KIB * KIB
    """Less for an offloader that cannot take so large a chunk."""

    tiny_chunks = 3000
    """Less for an offloader on which this takes too long."""

    many_streams = 40
    """How many streams are begun in one place. A tenth as many pairs of names are tried out."""

    @abstractmethod
    def open_offloader(self) -> LedgerOffloader:
        """A fresh offloader on the same place, which is empty when a test begins."""

    @abstractmethod
    def keys_in_store(self) -> set[str]:
        """What is really stored, each thing under its own name, found by other means than the offloader."""

    @pytest.fixture
    def opened(self, run: Run) -> Iterator[Open]:
        """Opens offloaders that are closed after the test."""
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
        """The offloader under test."""
        return opened()

    @pytest.fixture
    def other(self, opened: Open) -> LedgerOffloader:
        """A second one on the same place: another process, as far as anyone can tell."""
        return opened()

    @pytest.fixture
    def writer(self, run: Run, offloader: LedgerOffloader) -> StreamWriter:
        """Holds the stream `orders`."""
        return run(StreamWriter.claim(offloader, "orders"))
