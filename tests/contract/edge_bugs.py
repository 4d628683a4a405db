"""Stores that are wrong only at an edge: of a number, of a name, of a declared limit, or at a second call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final
from urllib.parse import unquote_plus

from contract.bugs import Bug, breaks

from offload.contracts.capabilities import Capabilities
from offload.contracts.object_metadata import NO_METADATA
from offload.contracts.store import Body, Listed, Span, Suffix, Unfinished, Upload, check_key
from offload.ground.errors import Misuse, TryAgain
from offload.store.memory import MemoryStore, _MemoryUpload
from offload.store.wrap import UploadDecorator

EDGE_BUGS: Final[list[Bug]] = []

bug = partial(breaks, room=EDGE_BUGS)

LIMIT: Final = 100_000


@bug("ranges_are_exact")
class OffsetsHaveASign(MemoryStore):
    """Fails for a span that begins or ends at 2**63 or later.

    A number is packed into an `int64`, or given to a database or a system call.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        match span:
            case Span(start, length):
                start.to_bytes(8, "big", signed=True), length.to_bytes(8, "big", signed=True)
        return await super().get(key, span)


@bug("hints_change_no_byte")
class ReadsAheadByPosition(MemoryStore):
    """Keeps what it read ahead by its position alone, and returns it for another key.

    A buffer of one reader, kept by a client that many readers share.
    """

    ahead: tuple[int, bytes] = 0, b""

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if isinstance(span, Span) and span.length and self.ahead[0] == span.start:
            _, kept = self.ahead
            if len(kept) >= span.length:
                return kept[: span.length]
        read = await super().get(key, span)
        if isinstance(span, Span) and span.follows:
            end = span.start + span.length
            self.ahead = end, await super().get(key, Span(end, span.follows))
        return read


@bug("a_body_of_another_size_is_refused")
class TakesAnySize(MemoryStore):
    """Declares the largest object that a put takes, and takes larger ones.

    The limit is that of one request, and large objects are sent in another way.
    """

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, put_size_bytes_max=LIMIT)


@bug("uploads_are_as_declared")
class TakesLargerParts(MemoryStore):
    """Declares the largest size of a part, and takes larger ones.

    The limit is that of the service, and an emulator or a proxy does not know it.
    """

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, part_size_bytes_max=LIMIT)


@bug("contents_are_kept_as_they_are")
class ReadsMetadataPlusAsSpace(MemoryStore):
    """Returns metadata with a space for each `+`.

    Values are decoded as a form is, though they were sent as a header.
    """

    async def metadata_of(self, key: str) -> dict[str, str]:
        return {name: unquote_plus(value) for name, value in (await super().metadata_of(key)).items()}


@bug("uploads_replace_whole")
class DescribesAtTheBeginning(MemoryStore):
    """Gives the metadata of an upload to the present object when the upload begins.

    Metadata is in a table of its own, by key, and only the bytes wait for the end.
    """

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        if metadata and key in self.objects:
            await self.put(key, Body.of(bytes(self.objects[key]), metadata=metadata))
        return await super().start_upload(key, metadata=metadata)


class _Numbered(UploadDecorator):
    """An upload that keeps `bits` of each number."""

    def __init__(self, inner: Upload, bits: int) -> None:
        super().__init__(inner)
        self._bits = bits

    async def put_part(self, number: int, data: bytes) -> None:
        await super().put_part(number % 2**self._bits, data)


@bug("parts_are_numbered_from_one")
class NumbersHave32Bits(MemoryStore):
    """Takes part 2**32 + 1 for part 1.

    The number is cut by a mask, or by a language with integers of a fixed size.
    """

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        return _Numbered(await super().start_upload(key, metadata=metadata), 32)


@bug("parts_are_numbered_from_one")
class TakesNegativeParts(MemoryStore):
    """Accepts parts with negative numbers, before the first.

    Only 0 is refused, because somebody counted from there once.
    """

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        upload = await super().start_upload(key, metadata=metadata)
        return self._Negative(upload)

    class _Negative(UploadDecorator):
        async def put_part(self, number: int, data: bytes) -> None:
            if number == 0:
                raise Misuse("part 0")
            if number > 0 or not isinstance(self.inner, _MemoryUpload):
                await super().put_part(number, data)
            else:
                self.inner._parts.setdefault(1, data)


@bug("unfinished_uploads_tell_when_they_began")
class TellsLocalTime(MemoryStore):
    """Reports the beginning of an upload in local time.

    A time without a zone is read by a function that takes it for local time.
    """

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        off_ms = time.localtime().tm_gmtoff * 1000
        found = await super().unfinished_uploads(prefix)
        return [replace(each, started_ms=each.started_ms + off_ms) for each in found]


@bug("listing_goes_on_while_keys_change")
class DropsTheFirstRowOfAPage(MemoryStore):
    """Begins each page at the last key of the one before, and drops its first row as known.

    The marker is inclusive, and the row that it names was deleted meanwhile, so another row is dropped.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        rows = [row async for row in super().list(prefix, after=after)]
        while page := rows[:30]:
            for row in page:
                yield row
            marker = page[-1].key
            following = [row async for row in super(type(self), self).list(prefix)]
            rows = [row for row in following if row.key >= marker][1:]


@bug("a_cancelled_part_may_be_put_again")
class TakesACancellationForATimeout(MemoryStore):
    """Turns the cancellation of a call into `TryAgain`.

    `except BaseException` around a request, or a library that raises its own error when it is cancelled.
    """

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        return self._Sturdy(await super().start_upload(key, metadata=metadata))

    class _Sturdy(UploadDecorator):
        async def put_part(self, number: int, data: bytes) -> None:
            try:
                await asyncio.sleep(0)
                await super().put_part(number, data)
                await asyncio.sleep(0)
            except asyncio.CancelledError as error:
                raise TryAgain("the request was interrupted") from error


@bug("keys_are_taken_as_they_are")
class PartsHave200Bytes(MemoryStore):
    """Refuses a key that has a part of more than 200 bytes, and does not declare it.

    A part is a file name with an end of the store's own, or a column of a table.
    """

    async def put(self, key: str, body: Body) -> None:
        if any(len(part.encode()) > 200 for part in check_key(key).split("/")):
            raise Misuse(f"{key[:40]!r}… is too long")
        await super().put(key, body)


@bug("keys_are_taken_as_they_are")
class ReadsMarkersAsForms(MemoryStore):
    """Reads a `+` in the marker of a listing as a space.

    The marker travels in a URL, and is decoded as a form is.
    """

    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        return super().list(prefix, after=after.replace("+", " "))
