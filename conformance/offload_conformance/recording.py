"""What the black box knows of the place: it notes what is written, and asks for it key by key.

Invariants: a key is noted before the request that may write it. Since listings are under test, looking and
cleaning up ask for each noted key, and a listing may only add keys to what is found. A `Folder` adds nothing
to the store's own checks and errors, so that what a store gets wrong comes through.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from offload.contracts.store import Body, Listed, ObjectStore, Span, Suffix, Unfinished, Upload
from offload.env import Env
from offload.errors import AlreadyExists, Misuse, NotFound, OffloadError, TryAgain
from offload.store.prefix import PrefixStore
from offload.store.stack import stacked_store
from offload.store.wrap import StoreDecorator, UploadDecorator

K = TypeVar("K")
T = TypeVar("T")
ANSWER_SECONDS_MAX: Final = 120.0
"""For thousands of keys at once, on a store that is far away."""

AT_ONCE: Final = 16
BATCH: Final = 100


def told(error: Exception) -> str:
    """What an error of a backend says; of one that is none of the framework's, its type too."""
    return str(error) if isinstance(error, OffloadError) else f"{type(error).__name__}: {error}"


class FolderAccount:
    """What was written in one folder, and how many requests were made. Used by several threads."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.keys: dict[str, None] = {}
        self.requests = self.retries = 0
        self._lock = threading.Lock()

    def note(self, *keys: str) -> None:
        """One request, which may write these keys."""
        with self._lock:
            self.requests += 1
            self.keys |= dict.fromkeys(keys)

    def note_retry(self) -> None:
        """A call is repeated, because the backend refused it for now."""
        with self._lock:
            self.retries += 1


class RecordingStore(StoreDecorator):
    """Notes every request to `inner` on an account. A listing is one request, however many its pages."""

    __slots__ = ("_account",)

    def __init__(self, inner: ObjectStore, account: FolderAccount) -> None:
        super().__init__(inner)
        self._account = account

    async def put(self, key: str, body: Body) -> None:
        """Note, and pass on."""
        self._account.note(key)
        await self.inner.put(key, body)

    async def create(self, key: str, data: bytes) -> None:
        """Note, and pass on."""
        self._account.note(key)
        await self.inner.create(key, data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        """Count, and pass on."""
        self._account.note()
        return await self.inner.get(key, span)

    async def stored_crc32c(self, key: str) -> int | None:
        """Count, and pass on."""
        self._account.note()
        return await self.inner.stored_crc32c(key)

    async def retained(self, key: str) -> str | None:
        """Count, and pass on."""
        self._account.note()
        return await self.inner.retained(key)

    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """Count, and pass on."""
        self._account.note()
        return self.inner.list(prefix, after=after)

    def level(self, prefix: str) -> AsyncIterator[str]:
        """Count, and pass on."""
        self._account.note()
        return self.inner.level(prefix)

    async def delete(self, keys: Sequence[str]) -> None:
        """Count, and pass on."""
        self._account.note()
        await self.inner.delete(keys)

    async def start_upload(self, key: str) -> Upload:
        """Note, and pass on."""
        self._account.note(key)
        return RecordingUpload(await self.inner.start_upload(key), self._account)

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        """Count, and pass on."""
        self._account.note()
        return await self.inner.unfinished_uploads(prefix)

    async def abort_upload(self, upload: Unfinished) -> None:
        """Count, and pass on."""
        self._account.note()
        await self.inner.abort_upload(upload)


class RecordingUpload(UploadDecorator):
    """Counts the requests of an upload."""

    __slots__ = ("_account",)

    def __init__(self, inner: Upload, account: FolderAccount) -> None:
        super().__init__(inner)
        self._account = account

    async def put_part(self, number: int, data: bytes) -> None:
        """Count, and pass on."""
        self._account.note()
        await self.inner.put_part(number, data)

    async def complete(self) -> None:
        """Count, and pass on."""
        self._account.note()
        await self.inner.complete()

    async def abort(self) -> None:
        """Count, and pass on."""
        self._account.note()
        await self.inner.abort()


class Folder(PrefixStore):
    """A part of a store that hides nothing of it: bad keys stay bad behind the prefix and are passed on."""

    __slots__ = ()

    def _full(self, key: str) -> str:
        return self._below + key

    @contextmanager
    def _naming(self, key: str) -> Iterator[None]:
        try:
            yield
        except (NotFound, AlreadyExists) as error:
            if error.key == self._full(key):  # another key is the store's mistake, which a clause must see
                error.key = key
                error.args = tuple(str(each).replace(self._full(key), key) for each in error.args)
            raise


class Looker:
    """A client of the store's on a thread and event loop of its own, for looking and cleaning up.

    A call that takes longer than `ANSWER_SECONDS_MAX` raises `TryAgain`. The client is then not asked again,
    because it would mostly wait as long each time.
    """

    def __init__(self, open_store: Callable[[], ObjectStore]) -> None:
        self._is_lost = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="looker", daemon=True)
        self._thread.start()

        async def opened() -> ObjectStore:
            return stacked_store(open_store(), Env())

        try:
            self.store = self._run(opened())
        except BaseException:
            self._end()
            raise

    def close(self) -> None:
        """Close the client, and end the thread. A client that did not answer is left as it is."""
        try:
            if not self._is_lost:
                self._run(self.store.aclose())
        finally:
            self._end()

    def there(self, keys: Iterable[str]) -> set[str]:
        """Which of these keys a read finds. Raises what a read raises that finds out neither."""
        found = self._run(self._each(self._is_there, keys))
        return {key for key, there in found.items() if there}

    def listed(self, prefix: str) -> set[str]:
        """Return the keys with this prefix that a listing names and a read finds."""
        return self.there(self._run(self._listed(prefix)))

    def top(self) -> set[str]:
        """Return the keys and folders at the top of the place."""
        return set(self._run(self._level("")))

    def remove(self, keys: Iterable[str]) -> dict[str, str]:
        """Delete these keys. What is there afterwards, with the reason where one was given.

        Many at once is quicker, and whether it worked is not taken for granted: each key is asked for, and
        what is there still is deleted by itself.
        """
        return self._run(self._removed([*keys]))

    def abort_uploads(self, prefix: str) -> int:
        """Abort the unfinished uploads below a prefix, where the store tells of them. How many there were."""

        async def abort() -> int:
            uploads = await self.store.unfinished_uploads(prefix)
            for upload in uploads:
                await self.store.abort_upload(upload)
            return len(uploads)

        return self._run(abort())

    async def _listed(self, prefix: str) -> list[str]:
        return [row.key async for row in self.store.list(prefix)]

    async def _level(self, prefix: str) -> list[str]:
        return [name async for name in self.store.level(prefix)]

    async def _is_there(self, key: str) -> bool:
        try:
            await self.store.get(key)
        except (NotFound, Misuse):  # what is no key holds nothing
            return False
        return True

    async def _removed(self, keys: list[str]) -> dict[str, str]:
        await self._each(self._delete, [tuple(keys[n : n + BATCH]) for n in range(0, len(keys), BATCH)])
        there = [key for key, why in (await self._each(self._seems_there, keys)).items() if why]
        reasons = await self._each(self._delete, [(key,) for key in there])
        left = await self._each(self._seems_there, there)
        return {key: reasons[(key,)] or why for key, why in left.items() if why}

    async def _seems_there(self, key: str) -> str:
        """Why the key is taken to be there; empty where it is not."""
        try:
            return "it is there after `delete`" if await self._is_there(key) else ""
        except Exception as error:  # noqa: BLE001 - whatever a backend under test raises, the others are removed
            return f"whether it is there is not known: {told(error)}"

    async def _delete(self, keys: tuple[str, ...]) -> str:
        try:
            await self.store.delete(keys)
        except Exception as error:  # noqa: BLE001 - as above
            return told(error)
        return ""

    async def _each(self, ask: Callable[[K], Coroutine[Any, Any, T]], about: Iterable[K]) -> dict[K, T]:
        turns = asyncio.Semaphore(AT_ONCE)

        async def one(each: K) -> tuple[K, T]:
            async with turns:
                return each, await ask(each)

        return dict(await asyncio.gather(*map(one, about)))

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._is_lost:
            coroutine.close()
            raise TryAgain(
                "the store did not answer the client that looks and cleans up, and is not asked again"
            )
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        done, _ = wait([future], timeout=ANSWER_SECONDS_MAX)
        if not done:
            self._is_lost = True
            future.cancel()
            raise TryAgain(f"the store did not answer within {ANSWER_SECONDS_MAX:g} s")
        return future.result()

    def _end(self) -> None:
        """End the thread; a loop that is blocked is left behind, on its daemon thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(0 if self._is_lost else None)
        if not self._thread.is_alive():
            self._loop.close()
