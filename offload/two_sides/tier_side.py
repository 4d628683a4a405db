"""The tier of a reader that also has a disk: what each part has, and whether a source continues the newest.

Invariants: the history of a part never changes, it only grows and is trimmed, so one comparison with its last
chunk is one with all of it; that chunk is fetched once for each end of the part.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager

from offload.cache.block_cache import BlockCache
from offload.contracts.catalogue import Catalogue
from offload.contracts.chunks import StoredChunk
from offload.contracts.events import Event, Skipped
from offload.contracts.source import Snapshot
from offload.copy.history import check_chunk, last_chunk, reaches
from offload.copy.next_part import check_empty
from offload.formats.chunk import CHUNK_HEADER, ChunkHeader
from offload.formats.entries import messages
from offload.ground.errors import Absent, Corrupt, Diverged, Divergence, NotOffloaded, StreamDeleted, TryAgain
from offload.model.chunk_table import ChunkType
from offload.model.manifest import CommittedStream, Manifest
from offload.parts.whole_stream import WholeStream
from offload.read.batches import messages_in
from offload.read.joined import part_numbered
from offload.read.reader import StreamReader
from offload.two_sides.choice import NOTHING, Extent, Failure


class TierSide:
    """The parts of a stream on a tier, or none while the tier does not have the stream."""

    def __init__(
        self,
        catalogue: Catalogue,
        stream: str,
        *,
        in_flight: int,
        emit: Callable[[Event], None],
        cache: BlockCache | None = None,
    ) -> None:
        self.stream, self.catalogue, self._in_flight, self._emit = stream, catalogue, in_flight, emit
        self._cache = cache
        self.reader: StreamReader | None = None
        """The reader of all parts. None if the tier does not have the stream yet."""
        self.absent: NotOffloaded | None = None
        """The reason why there is no reader."""
        self._failure: tuple[int, Failure] | None = None
        self._last: tuple[tuple[str, int], bytes] | None = None
        """The name and the end of a part, and its last chunk."""

    async def open(self) -> bool:
        """Look whether the tier has the stream by now. Raises `StreamDeleted` if it was deleted."""
        try:
            self.reader = await StreamReader.open(
                self.catalogue, self.stream, in_flight=self._in_flight, emit=self._tell, cache=self._cache
            )
        except StreamDeleted:
            raise
        except NotOffloaded as error:
            self.absent = error
        return self.reader is not None

    async def refresh(self) -> bool:
        """Take the newest state, as `StreamReader.refresh` does. Return True if it is newer."""
        return await self.open() if self.reader is None else await self.reader.refresh()

    @property
    def parts(self) -> Sequence[StreamReader]:
        """The readers of the parts, in order."""
        return () if self.reader is None else self.reader.parts

    @property
    def newest(self) -> int:
        """The number of the newest part."""
        return self.parts[-1].part if self.parts else 1

    @property
    def manifest(self) -> CommittedStream | None:
        """The state of the newest part that is known."""
        return self.parts[-1].manifest if self.parts else None

    @property
    def since(self) -> Manifest | None:
        """The facts about the tier that a source gets when it takes a snapshot."""
        return self.manifest if isinstance(self.manifest, Manifest) else None

    def extent(self, part: int) -> Extent:
        """Return the offsets that a part has. Raises `NotOffloaded` if there is no such part."""
        if not self.parts:
            return NOTHING
        committed = part_numbered(self.parts, part).manifest
        failure = self._failure
        failed = failure[1] if failure is not None and failure[0] == part else None
        return Extent(committed.first_offset, committed.next_offset, failed)

    def fail(self, part: int, offset: int, error: Corrupt | TryAgain) -> None:
        """Leave out what a part has from `offset` on. Records that it gets later are read again."""
        self._failure = part, Failure(offset, self.extent(part).end, error)

    def forgive(self) -> None:
        """Try again what could not be read."""
        self._failure = None

    async def chunks(self, part: int, offset: int, until: int) -> AsyncGenerator[StoredChunk, None]:
        """Yield the chunks of a part, from the one that holds `offset` on. Close it.

        Ends before a chunk that does not continue the one before: the stream was trimmed meanwhile, and the
        extent is another now.
        """
        async with aclosing(part_numbered(self.parts, part).chunks_here(offset, until=until)) as found:
            handed = list[StoredChunk]()  # as in `StreamReader.messages_here`
            async for chunk in found:
                if chunk.offset > offset:
                    return
                offset = chunk.next_offset
                handed.append(chunk)
                del chunk
                yield handed.pop()

    async def compare(self, snapshot: Snapshot) -> bool:
        """Raise `Diverged` unless the source and the newest part are one history.

        Returns False if nothing shows whether they are, because no chunk is on both. A source that ends
        before the tier raises, too: the kind is `BEHIND`. Raises `FilesGone` if the snapshot lost its files.
        """
        committed = self.manifest
        if committed is None:
            return False
        if not committed.fragments:
            part = await WholeStream(self.catalogue, self.stream).part(self.newest)
            with reading_source():
                return await check_empty(part, committed, snapshot)
        try:
            if not reaches(committed.stream, committed.next_offset, snapshot):
                return False
        except Diverged as error:
            if error.kind is Divergence.GAP:
                return False  # what lies between is lost, or the tier gets it later
            raise
        try:
            raw = await self._last_chunk(committed)
        except Absent as absent:  # it was trimmed and swept meanwhile, or it is damage
            await self.parts[-1].newer_view(self.catalogue.view_of(committed), absent)
            return await self.compare(snapshot)
        with reading_source():
            await check_chunk(committed.stream, raw, snapshot)
        return True

    async def holds(self, part: int, chunk: bytes) -> bool | None:
        """Return whether a part has this chunk: its header, or all of it to compare its messages.

        Returns None if nothing shows it, because the part does not reach so far back, or not so far yet.
        """
        header = ChunkHeader.decode(chunk, where=f"a chunk of {self.stream!r} in the source")
        extent = self.extent(part)
        if extent.end < header.next_offset or extent.first >= header.next_offset:
            return None
        is_held = None
        stored = self.chunks(part, max(header.offset, extent.first), header.next_offset)
        async with aclosing(stored):
            async for each in stored:
                if _is_same(ChunkHeader.decode(bytes(each.header), where=each.where), header):
                    return True
                is_held = len(chunk) > CHUNK_HEADER.size_bytes and _agrees(each, chunk, header)
                if not is_held:
                    break
        return is_held

    async def check_holds(self, part: int, chunk: bytes) -> bool:
        """Raise `Diverged` if a part has another chunk than this one, which was delivered.

        Returns False if nothing shows it.
        """
        is_held = await self.holds(part, chunk)
        if is_held is False:
            header = ChunkHeader.decode(chunk, where="the last chunk that was read")
            raise Diverged(
                f"stream {self.stream!r}: the source and the tier part at or before offset {header.offset}: "
                f"records up to offset {header.next_offset} were read from the source, which has lost them "
                "since, and the tier has others; read again from an earlier offset",
                kind=Divergence.FORK,
            )
        return is_held is True

    async def _last_chunk(self, committed: CommittedStream) -> bytes:
        """Return the last chunk of a part that has fragments."""
        end = committed.stream, committed.next_offset
        if self._last is None or self._last[0] != end:
            self._last = end, await last_chunk(self.catalogue, committed)
        return self._last[1]

    def _tell(self, event: Event) -> None:
        # Whoever reads both sides knows better what is skipped.
        if not isinstance(event, Skipped):
            self._emit(event)


class FilesGone(Exception):
    """The files of a snapshot were deleted while it was compared. It is no error of a user."""

    def __init__(self, error: TryAgain) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def reading_source() -> Iterator[None]:
    """Distinguish a source whose files go away from a store that does not answer. Both raise `TryAgain`."""
    try:
        yield
    except TryAgain as error:
        raise FilesGone(error) from error


def _is_same(found: ChunkHeader, expected: ChunkHeader) -> bool:
    return all(
        getattr(found, name) == getattr(expected, name) for name in ("offset", "epoch", "timestamp_ms", "crc")
    )


def _agrees(stored: StoredChunk, chunk: bytes, header: ChunkHeader) -> bool:
    """Return whether the messages of a stored chunk are those of `chunk`, for the offsets that both have."""
    if header.type is not ChunkType.USER:
        return False
    if (found := messages_in(stored)) is None:
        return True
    expected = messages(chunk, where="the last chunk that was read")
    for offset, body in enumerate(found.bodies, start=found.offset):
        if header.offset <= offset < header.next_offset and expected[offset - header.offset] != body:
            return False
    return True
