"""Fourth set, stores: puts, mistaken by encodings, clocks, retries and shards."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from newcomers.fourth_sound import checked, pieces_of
from newcomers.proofs import data_of, names
from newcomers.registry import Open, bug
from newcomers.sound import SharedMemory
from offload.contracts.store import Body


async def _gathered(body: Body) -> bytes:
    """Return the bytes of a body."""
    data = b"".join([window async for window in body.windows()])
    body.check_size(len(data))
    return data


# Bytes


async def _windows_of_any_size(open_: Open) -> None:
    store = open_()
    pieces = data_of(100), data_of(101, 1), data_of(99, 2)
    await store.put("k", Body(size_bytes=300, windows=lambda: pieces_of(*pieces)))
    assert await store.get("k") == b"".join(pieces)


@bug(_windows_of_any_size)
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


async def _empty_replaces(open_: Open) -> None:
    store = open_()
    await store.put("k", Body.of(b"before"))
    await store.put("k", Body.of(b""))
    assert await store.get("k") == b""


@bug(_empty_replaces)
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


# Requests that are sent again


async def _every_put_stores_its_bytes(open_: Open) -> None:
    store = open_()
    for number in range(30):
        await store.put(f"k{number}", Body.of(data_of(1000, number)))
        assert await store.get(f"k{number}") == data_of(1000, number), number


@bug(_every_put_stores_its_bytes)
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


async def _cancelled_puts_stay_away(open_: Open) -> None:
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


@bug(_cancelled_puts_stay_away)
class PutsGoOnInTheBackground(SharedMemory):
    """A put runs in a task of its own, which goes on if the caller is cancelled.

    Breaks, of the guide's rules for cancellation, "Nothing of a `put` may become visible, unless its request
    was already sent". Costs an object that appears after the caller gave it up, perhaps over a newer one.
    """

    async def put(self, key: str, body: Body) -> None:
        await asyncio.shield(asyncio.ensure_future(super().put(key, body)))


# Order


async def _gone_and_back(open_: Open) -> None:
    store = open_()
    for number in range(200):
        data = str(number).encode()
        await store.put("k", Body.of(data))
        await store.delete(["k"])
        await store.put("k", Body.of(data))
        assert await store.get("k") == data


@bug(_gone_and_back)
class TombstonesWinTies(SharedMemory):
    """Writes have times in milliseconds, and of two at one time a deletion wins.

    Breaks "When `put` returns, a power cut does not undo it", and "A reader finds a complete object": the put
    is void. Costs an object that was put within a millisecond after its deletion.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        if self.kept.get(key) == time.time_ns() // 1_000_000:
            self.objects.pop(key, None)

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete(keys)
        for key in keys:
            self.kept[key] = time.time_ns() // 1_000_000


async def _last_put_wins(open_: Open) -> None:
    one, two = open_(), open_()
    await one.put("k", Body.of(b"one"))
    await two.put("k", Body.of(b"two"))
    assert await one.get("k") == b"two"


@bug(_last_put_wins)
class ClientsHaveTheirClocks(SharedMemory):
    """A row keeps the value with the greatest time, and times come from the clocks of clients, which differ.

    Breaks "Store a whole object, and replace an existing one". Costs the puts of a client whose clock is
    behind: they succeed, and change nothing.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.kept[""] = self.kept.get("", 0) + 1
        self.behind_seconds = 5 * self.kept[""]

    async def put(self, key: str, body: Body) -> None:
        checked(self, key, body)
        before, stood = self.objects.get(key), self.kept.get(key, 0)
        await super().put(key, body)
        now = time.time() - self.behind_seconds
        if before is not None and stood > now:
            self.objects[key] = before
        else:
            self.kept[key] = now


async def _two_puts_at_once(open_: Open) -> None:
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


@bug(_two_puts_at_once)
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
