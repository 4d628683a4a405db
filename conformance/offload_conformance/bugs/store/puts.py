"""Bugs of puts: objects that are not whole, not durable, visible too early, or not kept as they are."""

from __future__ import annotations

import asyncio
import base64
import gzip
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar, Final
from urllib.parse import unquote_plus

from offload.contracts.capabilities import Capabilities
from offload.contracts.store import Body, Buffer, Listed, Span, Suffix, check_key
from offload.ground.errors import Corrupt, Misuse, TryAgain
from offload.store.memory import MemoryStore, _Described
from offload.store.spans import clip
from offload_conformance.bugs.registry import OpenClient, bug
from offload_conformance.bugs.sound import proofs
from offload_conformance.bugs.sound.memory import SharedMemory
from offload_conformance.bugs.sound.proofs import data_of, names
from offload_conformance.bugs.sound.service import ServiceStore, gathered
from offload_conformance.bugs.sound.wrappers import checked, pieces_of
from offload_conformance.bugs.store.shared import LIMIT, MIB


@bug("store/puts_are_whole")
class KeepsTheLastWindow(MemoryStore):
    """Stores one window after the other, each over the one before it.

    An SDK's upload call is inside the loop over a body's windows instead of after it.
    """

    async def put(self, key: str, body: Body) -> None:
        async for window in body.windows():
            self.objects[key] = window


@bug("store/puts_are_whole")
class LosesTheLastByte(MemoryStore):
    """Stores all bytes but the last one.

    An inclusive end taken for an exclusive one when a body is cut for `Content-Range`.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        self.objects[key] = self.objects[key][:-1]


@bug("store/puts_replace_whole")
class WritesInPlace(MemoryStore):
    """Leaves the end of a longer object behind a shorter one.

    A file opened with `r+b`, and never truncated.
    """

    async def put(self, key: str, body: Body) -> None:
        old = self.objects.get(key, b"")
        await super().put(key, body)
        self.objects[key] += old[len(self.objects[key]) :]


@bug("store/a_put_may_be_repeated")
class Appends(MemoryStore):
    """Puts new bytes behind those that are there.

    A file opened with `ab`, or an append blob.
    """

    async def put(self, key: str, body: Body) -> None:
        old = self.objects.get(key, b"")
        await super().put(key, body)
        self.objects[key] = old + self.objects[key]


@bug("store/puts_are_invisible_until_they_return")
class ShowsPutsUnderWay(MemoryStore):
    """Shows an object while it is being written, window by window.

    A file written under its final name: fsspec's local file system does so by default.
    """

    async def put(self, key: str, body: Body) -> None:
        data = b""
        async for window in body.windows():
            data += window
            self.objects[key] = data
            await asyncio.sleep(0)
        self.objects[key] = data


@bug("store/puts_are_whole_while_replaced")
class ReplacesInTwoSteps(MemoryStore):
    """Deletes the old object before it writes the new one.

    The way to replace where `rename` refuses what exists, as on Windows, in HDFS and over SFTP.
    """

    async def put(self, key: str, body: Body) -> None:
        self.objects.pop(key, None)
        await asyncio.sleep(0)
        await super().put(key, body)


@bug("store/a_cancelled_put_leaves_nothing_visible")
class KeepsWhatACancelLeft(MemoryStore):
    """Stores a partial object when it is cancelled.

    A context manager that closes the file, and so commits it, on every way out.
    """

    async def put(self, key: str, body: Body) -> None:
        data = b""
        try:
            async for window in body.windows():
                data += window
        except asyncio.CancelledError:
            self.objects[key] = data
            raise
        await super().put(key, replace(body, windows=Body.of(data).windows))


@bug("store/a_failing_body_leaves_nothing_visible")
class KeepsWhatAnErrorLeft(MemoryStore):
    """Stores a partial object when the body breaks off.

    A writer is closed in a `finally`; in many SDKs closing completes the object.
    """

    async def put(self, key: str, body: Body) -> None:
        data = b""
        try:
            async for window in body.windows():
                data += window
        except Exception:
            self.objects[key] = data
            raise
        await super().put(key, replace(body, windows=Body.of(data).windows))


@bug("store/a_body_of_another_size_is_refused")
class TrustsTheSize(MemoryStore):
    """Stores all bytes that the body yields, regardless of the announced size.

    A request of unknown length is sent in chunks, so nobody counts the bytes.
    """

    async def put(self, key: str, body: Body) -> None:
        self.objects[check_key(key)] = b"".join([window async for window in body.windows()])


@bug("store/bodies_of_unknown_size_are_whole")
class FillsUpToTheBound(MemoryStore):
    """Fills a body that is shorter than its bound with zeros.

    The file is allocated at the announced size, and never truncated.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        self.objects[key] = self.objects[key].ljust(body.size_bytes, b"\0")


@bug("store/bodies_of_unknown_size_are_whole")
class WantsTheBound(MemoryStore):
    """Refuses a body that is shorter than its bound.

    The capability is declared, and the check of sizes is still the old one.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, replace(body, is_bound=False))


@bug("store/bodies_of_unknown_size_are_whole")
class WaitsForTheLastPart(MemoryStore):
    """Loses the bytes behind the last full part of a body that ends before its bound.

    The last part is sent when the announced size is reached, and it never is.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        size_bytes = len(self.objects[key])
        if body.is_bound and body.size_bytes > 8 * 2**20 and size_bytes < body.size_bytes:
            self.objects[key] = self.objects[key][: size_bytes - size_bytes % (8 * 2**20)]


@bug("store/bodies_of_unknown_size_are_whole")
class SkipsAnEmptyUpload(MemoryStore):
    """Leaves the old object if a body with a large bound turns out to be empty.

    The bound selects an upload in parts, and an upload without parts cannot be completed.
    """

    async def put(self, key: str, body: Body) -> None:
        if body.is_bound and not [window async for window in body.windows()]:
            return
        await super().put(key, body)


@bug("store/a_body_beyond_its_bound_is_refused")
class CutsAtTheBound(MemoryStore):
    """Stores the first bytes of a body that is longer than its bound.

    A reader that is limited to `Content-Length` ends there, without an error.
    """

    async def put(self, key: str, body: Body) -> None:
        data = b"".join([window async for window in body.windows()])
        await super().put(key, Body.of(data[: body.size_bytes]) if body.is_bound else body)


@bug("store/a_body_beyond_its_bound_is_refused")
class TakesTheBoundForAHint(MemoryStore):
    """Stores all bytes of a body that is longer than its bound.

    A body of unknown size is sent in chunks, so nobody counts the bytes.
    """

    async def put(self, key: str, body: Body) -> None:
        if body.is_bound:
            body = Body.of(b"".join([window async for window in body.windows()]))
        await super().put(key, body)


@bug("store/a_body_beyond_its_bound_is_refused")
class CountsTooLate(MemoryStore):
    """Refuses a body that is longer than its bound when the object is stored already.

    The bytes are counted while they are sent, and compared when the request has ended.
    """

    async def put(self, key: str, body: Body) -> None:
        if body.is_bound:
            self.objects[check_key(key)] = b"".join([window async for window in body.windows()])
        await super().put(key, body)


@bug("store/puts_are_durable")
class WritesBehind(MemoryStore):
    """Answers at once, and keeps new objects back until somebody reads them.

    A write-back cache: a FUSE mount, an NFS client.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        self.late = {key: self.objects.pop(key)}

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        self.objects.update(getattr(self, "late", {}))
        return await super().get(key, span)


@bug("store/an_empty_object_is_an_object")
class DropsEmptyObjects(MemoryStore):
    """Does not store an empty object.

    `if data:` before the request, or a multipart upload that has no parts.
    """

    async def put(self, key: str, body: Body) -> None:
        if body.size_bytes:
            await super().put(key, body)


PIECE_SIZE_BYTES: Final = 4 * MIB


@bug("store/puts_are_whole")
class KeepsSixteenMebibytes(MemoryStore):
    """Cuts an object at 16 MiB.

    `MEDIUMBLOB` on a server that cuts values instead of refusing them, or a document of MongoDB.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        self.objects[key] = self.objects[key][: 16 * MIB]


@bug("store/contents_are_kept_as_they_are")
class UnpacksWhatLooksPacked(MemoryStore):
    """Returns a compressed object uncompressed.

    `Content-Encoding: gzip` is guessed from the name, and the HTTP client decompresses the reply.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data = await super().get(key)
        if key.endswith(".gz") and data[:2] == b"\x1f\x8b":
            with suppress(OSError, EOFError):
                data = gzip.decompress(data)
        start, end = clip(span, len(data))
        return data[start:end]


@bug("store/puts_are_whole_while_replaced")
class ReadsInPieces(MemoryStore):
    """Reads a large object with several requests, each of the object at that moment.

    It downloads parallel ranges without `If-Match`; smaller objects need one request.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        start, end = clip(span, len(await super().get(key)))
        spans = (Span(at, min(PIECE_SIZE_BYTES, end - at)) for at in range(start, end, PIECE_SIZE_BYTES))
        return b"".join([await MemoryStore.get(self, key, each) for each in spans])


@bug("store/a_body_of_another_size_is_refused")
class TakesAnySize(MemoryStore):
    """Declares the largest object that a put takes, and takes larger ones.

    The limit is that of one request, and large objects are sent in another way.
    """

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, put_size_bytes_max=LIMIT)


@bug("store/contents_are_kept_as_they_are")
class ReadsMetadataPlusAsSpace(MemoryStore):
    """Returns metadata with a space for each `+`.

    Values are decoded as a form is, though they were sent as a header.
    """

    async def metadata_of(self, key: str) -> dict[str, str]:
        return {name: unquote_plus(value) for name, value in (await super().metadata_of(key)).items()}


@bug("store/contents_are_kept_as_they_are")
class TakesEndingsForText(MemoryStore):
    """Changes line ends in objects whose names end like those of text files.

    A mode of transfer that is chosen by the name: `ascii` of FTP, or `autocrlf` of Git.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        if key.endswith((".csv", ".txt", ".json")):
            self.objects[key] = self.objects[key].replace(b"\r\n", b"\n")


@bug("store/contents_are_kept_as_they_are")
class ListsSizesForPeople(MemoryStore):
    """Lists sizes from 1 MiB on in whole KiB.

    The listing is the text that a command prints for people.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        async for row in super().list(prefix, after=after):
            size = row.size_bytes
            yield Listed(row.key, size if size < MIB else size // 1024 * 1024)


@bug("store/contents_are_kept_as_they_are")
class DropsZerosAtTheEnd(MemoryStore):
    """Drops zero bytes at the end of a created object.

    A column of a fixed width is padded with zeros, and they are stripped when it is read.
    """

    async def create(self, key: str, data: bytes) -> None:
        await super().create(key, data.rstrip(b"\0"))


@bug("store/puts_are_whole")
class GathersNoMoreThanOneCallTakes(MemoryStore):
    """Stores the first 1,024 windows of a body.

    `writev` takes no more buffers, and its result is not compared with what it was given.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        windows = [window async for window in body.windows()]
        self.objects[key] = b"".join(windows[:1024])


@bug("store/a_failing_body_leaves_nothing_visible")
class ShowsLargeBodiesEarly(MemoryStore):
    """Shows the first 8 MiB of a body as soon as they have passed.

    A large body is an append to an object, and only a small one is a single request.
    """

    async def put(self, key: str, body: Body) -> None:
        async def windows() -> AsyncIterator[Buffer]:
            passed = b""
            async for window in body.windows():
                yield window
                passed += window
                if 4 * MIB <= len(passed) < body.size_bytes or (len(passed) > 8 * MIB):
                    self.objects[key] = passed

        await super().put(key, replace(body, windows=windows))


@bug("store/a_body_of_another_size_is_refused")
class StopsAtTheAnnouncedSize(MemoryStore):
    """Reads no window after the announced size is reached, and stores what it has.

    The loop over the body ends when as many bytes have passed as `Content-Length` says.
    """

    async def put(self, key: str, body: Body) -> None:
        async def windows() -> AsyncIterator[Buffer]:
            passed = 0
            async for window in body.windows():
                yield window
                passed += len(window)
                if passed == body.size_bytes:
                    return

        await super().put(key, replace(body, windows=windows))


@bug("store/puts_are_invisible_until_they_return")
class DescribesBeforeTheBody(MemoryStore):
    """Gives the metadata of a put to the present object before the body is read.

    Metadata is in a table of its own, and its row is written first.
    """

    async def put(self, key: str, body: Body) -> None:
        if key in self.objects and body.metadata:
            self.objects[key] = _Described.of(bytes(self.objects[key]), {**body.metadata})
        await super().put(key, body)


@bug("store/puts_are_invisible_until_they_return")
class GivesUpOnSlowBodies(MemoryStore):
    """Raises `TryAgain` if a body needs more than a second for a window.

    A timeout of the server for the rest of a request, which a slow source exceeds at each try.
    """

    async def put(self, key: str, body: Body) -> None:
        async def windows() -> AsyncIterator[Buffer]:
            asked = time.monotonic()
            async for window in body.windows():
                if time.monotonic() - asked > 1:
                    raise TryAgain("408: the request timed out")
                yield window
                asked = time.monotonic()

        await super().put(key, replace(body, windows=windows))


@bug("store/puts_are_invisible_until_they_return")
class DescribesLater(MemoryStore):
    """Stores the bytes of an object first and its metadata afterwards.

    Metadata is in attributes of a file, which are set when the file has its name.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, Body(size_bytes=body.size_bytes, windows=body.windows, is_bound=body.is_bound))
        for _ in range(5):
            await asyncio.sleep(0)
        if body.metadata:
            await super().put(key, Body.of(self.objects[key], metadata=body.metadata))


async def _gathered(body: Body) -> bytes:
    """Return the bytes of a body."""
    data = b"".join([window async for window in body.windows()])
    body.check_size(len(data))
    return data


async def _windows_of_any_size(open_: OpenClient) -> None:
    store = open_()
    pieces = data_of(100), data_of(101, 1), data_of(99, 2)
    await store.put("k", Body(size_bytes=300, windows=lambda: pieces_of(*pieces)))
    assert await store.get("k") == b"".join(pieces)


@bug("store/contents_are_kept_as_they_are", _windows_of_any_size)
class EncodedWindowByWindow(SharedMemory):
    """The gateway takes base64. Each window is encoded on its own, and the whole is decoded at once.

    Breaks "The store stores exactly the bytes of the windows". Costs every object of several windows, unless
    the sizes of all but the last can be divided by three.
    """

    async def put(self, key: str, body: Body) -> None:
        checked(self, key, body)
        text, size = b"", 0
        async for window in body.windows():
            text += base64.b64encode(window)
            size += len(window)
        body.check_size(size)
        await super().put(key, Body.of(base64.b64decode(text), metadata=body.metadata))


async def _empty_replaces(open_: OpenClient) -> None:
    store = open_()
    await store.put("k", Body.of(b"before"))
    await store.put("k", Body.of(b""))
    assert await store.get("k") == b""


@bug("store/bodies_of_unknown_size_are_whole", _empty_replaces)
class EmptyReplacesNothing(SharedMemory):
    """A request without a body changes the date of an existing object, and nothing else.

    Breaks "Store a whole object, and replace an existing one". Costs the replacement: readers find the bytes
    that were to go.
    """

    async def put(self, key: str, body: Body) -> None:
        checked(self, key, body)
        data = await _gathered(body)
        if data or key not in self.objects:
            await super().put(key, Body.of(data, metadata=body.metadata))


async def _every_put_stores_its_bytes(open_: OpenClient) -> None:
    store = open_()
    for number in range(30):
        await store.put(f"k{number}", Body.of(data_of(1000, number)))
        assert await store.get(f"k{number}") == data_of(1000, number), number


@bug("store/contents_are_kept_as_they_are", _every_put_stores_its_bytes)
class RetrySendsWhatIsLeft(SharedMemory):
    """The server closes a connection after ten puts. The put is sent again with the same iterator, which has
    ended.

    Breaks "`windows` may be called again, for a retry": the store goes on with the old windows instead. Costs
    every tenth object, which is stored empty.
    """

    puts = 0

    async def put(self, key: str, body: Body) -> None:
        checked(self, key, body)
        self.puts += 1
        windows, data = body.windows(), b""
        data = b"".join([window async for window in windows])
        body.check_size(len(data))
        if self.puts % 10 == 0:  # the server was gone
            data = b"".join([window async for window in windows])
        await super().put(key, Body.of(data, metadata=body.metadata))


async def _cancelled_puts_stay_away(open_: OpenClient) -> None:
    store, more = open_(), asyncio.Event()

    async def windows() -> AsyncIterator[bytes]:
        yield b"one"
        await more.wait()
        yield b"two"

    task = asyncio.create_task(store.put("k", Body(size_bytes=6, windows=windows)))
    await asyncio.sleep(0.01)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    more.set()
    await asyncio.sleep(0.05)
    assert await names(store) == []


@bug("store/a_cancelled_put_leaves_nothing_visible", _cancelled_puts_stay_away)
class PutsGoOnInTheBackground(SharedMemory):
    """A put runs in a task of its own, which goes on if the caller is cancelled.

    Breaks, of the guide's rules for cancellation, "Nothing of a `put` may become visible, unless its request
    was already sent". Costs an object that appears after the caller gave it up, perhaps over a newer one.
    """

    async def put(self, key: str, body: Body) -> None:
        await asyncio.shield(asyncio.ensure_future(super().put(key, body)))


async def _two_puts_at_once(open_: OpenClient) -> None:
    one, two = open_(), open_()
    pieces = [[bytes([number]) * 50 for _ in range(4)] for number in (1, 2)]

    def body(number: int) -> Body:
        async def windows() -> AsyncIterator[bytes]:
            for piece in pieces[number]:
                await asyncio.sleep(0)
                yield piece

        return Body(size_bytes=200, windows=windows)

    await asyncio.gather(one.put("k", body(0)), two.put("k", body(1)), return_exceptions=True)
    assert await one.get("k") in [b"".join(each) for each in pieces]


@bug("store/puts_are_invisible_until_they_return", _two_puts_at_once)
class StagedUnderTheKey(SharedMemory):
    """A body is gathered in a staging file named by its key, and two writers of one key write into one file.

    Breaks "A reader finds a complete object or none, even while the object is replaced". Costs an object made
    of two.
    """

    async def put(self, key: str, body: Body) -> None:
        checked(self, key, body)
        self.kept[key], size = bytearray(), 0
        async for window in body.windows():
            self.kept[key] += window
            size += len(window)
        body.check_size(size)
        await super().put(
            key, Body.of(bytes(self.kept[key])[-size:] if size else b"", metadata=body.metadata)
        )


@bug("store/contents_are_kept_as_they_are", proofs.keeps(*range(1, 60)))
class RetriesAppendToTheBuffer(ServiceStore):
    """Every twentieth put is refused at first (503), and the retry appends the body to the same buffer again.

    Breaks "Puts are whole": the object is stored twice in a row under one key.
    """

    turn: ClassVar = 0

    async def put(self, key: str, body: Body) -> None:
        check_key(key)
        type(self).turn += 1
        data = bytearray(await gathered(body, key))
        if self.turn % 20 == 0:
            data += await gathered(body, key)
        await self.ask(self.service.put, key, bytes(data))


@bug("store/contents_are_kept_as_they_are", proofs.keeps(*range(1, 60)))
class TimeoutsAreOnlyLogged(ServiceStore):
    """A put that times out is logged and reported as a success. One in thirty does.

    Breaks "When `put` returns, a power cut does not undo it": the object was never stored.
    """

    turn: ClassVar = 0

    async def ask(self, request: Callable[..., Any], *arguments: Any) -> Any:
        if request == self.service.put:
            type(self).turn += 1
            if self.turn % 30 == 0:
                return None
        return await super().ask(request, *arguments)


@bug(
    "store/a_failing_body_leaves_nothing_visible",
    proofs.body_that_fails(Corrupt("chunk", "source", expected=1, found=2)),
)
class BodysErrorIsCalledTryAgain(ServiceStore):
    """Any error in a put becomes `TryAgain`, even an error of the body.

    Breaks "An error from `body`": damage at the source is retried for ever, and nobody notices.
    """

    async def put(self, key: str, body: Body) -> None:
        try:
            await super().put(key, body)
        except Misuse:
            raise
        except Exception as exc:
            raise TryAgain(f"{self.url}: {exc}") from exc


@bug("store/a_body_of_another_size_is_refused", proofs.body_of_another_size(100_001, 100_000))
class ShortBodiesArePadded(ServiceStore):
    """The object is allocated at its announced size, and a body that ends early leaves zeros.

    Breaks "`Misuse` is also raised for a body whose windows are not `size_bytes` long".
    """

    async def put(self, key: str, body: Body) -> None:
        data = b"".join([window async for window in body.windows()])
        if len(data) > body.size_bytes:
            raise Misuse("the body is too long")
        await self.ask(self.service.put, check_key(key), data.ljust(body.size_bytes, b"\0"))


@bug("store/puts_are_whole", proofs.keeps(2**20, 2**20 + 1, 3 * 2**20))
class LastPieceOfAWholeNumberIsAllOfIt(ServiceStore):
    """Objects are cut into pieces of a mebibyte, and the rest is `data[-rest:]`: for a rest of zero that is
    everything.

    Breaks "Store an object whole", at exact multiples of a mebibyte.
    """

    async def put(self, key: str, body: Body) -> None:
        data = await gathered(body, check_key(key))
        size = 2**20
        pieces = [data[at * size : (at + 1) * size] for at in range(len(data) // size)]
        rest = len(data) % size
        await self.ask(self.service.put, key, b"".join([*pieces, data[-rest:] if len(data) else b""]))


@bug("store/puts_are_whole", proofs.keeps(5 * 2**20 + 3, 17 * 2**20))
class PartsOfAPutAreJoinedAsTheyEnd(ServiceStore):
    """A put of more than 5 MiB is sent in four parts at the same time, and joined in the order in which they
    end.

    Breaks "Store an object whole": the smallest part, the last one, comes first.
    """

    async def put(self, key: str, body: Body) -> None:
        data = await gathered(body, check_key(key))
        if len(data) <= 5 * 2**20:
            await self.ask(self.service.put, key, data)
            return
        done: list[bytes] = []

        async def send(part: bytes) -> None:
            for _ in range(len(part) // 2**18):
                await asyncio.sleep(0)
            done.append(part)

        size = -(-len(data) // 4) + 1
        await asyncio.gather(*(send(data[at : at + size]) for at in range(0, len(data), size)))
        await self.ask(self.service.put, key, b"".join(done))
