"""The records of the black box: each written key is noted, and later read to see if it is still there.

Invariants: a key is noted before the request that may write it. Listings are under test, so looking and
cleaning up ask for each noted key, and a listing may only add keys to the found ones. A `Folder` adds nothing
to the store's own checks and errors, so that every mistake of the store reaches the clause.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from offload.contracts.object_metadata import NO_METADATA
from offload.contracts.store import (
    Body,
    Buffer,
    Listed,
    ObjectStore,
    Span,
    Suffix,
    Unfinished,
    Upload,
    begin_upload,
)
from offload.ground.env import Env
from offload.ground.errors import AlreadyExists, Misuse, NotFound, OffloadError, TryAgain
from offload.store.prefix import PrefixStore
from offload.store.stack import stacked_store
from offload.store.wrap import StoreDecorator, UploadDecorator

K = TypeVar("K")
T = TypeVar("T")
ANSWER_SECONDS_MAX: Final = 120.0
"""The time limit for thousands of keys at once on a distant store."""

AT_ONCE: Final = 16
BATCH: Final = 100
LOOKS: Final = 12
"""So many keys of a deleted batch are read: the first and the last ones."""


def told(error: Exception) -> str:
    """Return the text of a backend's error, with its type if it is none of the framework's."""
    return str(error) if isinstance(error, OffloadError) else f"{type(error).__name__}: {error}"


class FolderAccount:
    """The keys written in one folder, and the number of requests. Several threads use it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.keys: dict[str, None] = {}
        self.requests = self.retries = 0
        self._lock = threading.Lock()

    def note(self, *keys: str) -> None:
        """Count one request, and note the keys that it may write."""
        # Calls of a test come from its event loop and from contending threads.
        with self._lock:
            self.requests += 1
            self.keys |= dict.fromkeys(keys)

    def note_retry(self) -> None:
        """Count a call that is repeated because the backend refused it for now."""
        with self._lock:
            self.retries += 1


class RecordingStore(StoreDecorator):
    """A store that notes every request to `inner` in an account.

    A listing is one request, however many pages it has.
    """

    __slots__ = ("_account",)

    def __init__(self, inner: ObjectStore, account: FolderAccount) -> None:
        super().__init__(inner)
        self._account = account

    async def put(self, key: str, body: Body) -> None:
        """Note the key, and pass the call on."""
        # Noted first: a put that fails or is cancelled may still have stored the object.
        self._account.note(key)
        await self.inner.put(key, body)

    async def create(self, key: str, data: bytes) -> None:
        """Note the key, and pass the call on."""
        self._account.note(key)
        await self.inner.create(key, data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> Buffer:
        """Count the request, and pass the call on."""
        self._account.note()
        return await self.inner.get(key, span)

    async def stored_crc32c(self, key: str) -> int | None:
        """Count the request, and pass the call on."""
        self._account.note()
        return await self.inner.stored_crc32c(key)

    async def metadata_of(self, key: str) -> Mapping[str, str] | None:
        """Count the request, and pass the call on."""
        self._account.note()
        return await self.inner.metadata_of(key)

    async def retained(self, key: str) -> str | None:
        """Count the request, and pass the call on."""
        self._account.note()
        return await self.inner.retained(key)

    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """Count the request, and pass the call on."""
        self._account.note()
        return self.inner.list(prefix, after=after)

    def level(self, prefix: str) -> AsyncIterator[str]:
        """Count the request, and pass the call on."""
        self._account.note()
        return self.inner.level(prefix)

    async def delete(self, keys: Sequence[str]) -> None:
        """Count the request, and pass the call on."""
        self._account.note()
        await self.inner.delete(keys)

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        """Note the key, and pass the call on."""
        self._account.note(key)
        return RecordingUpload(await begin_upload(self.inner, key, metadata), self._account)

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        """Count the request, and pass the call on."""
        self._account.note()
        return await self.inner.unfinished_uploads(prefix)

    async def abort_upload(self, upload: Unfinished) -> None:
        """Count the request, and pass the call on."""
        self._account.note()
        await self.inner.abort_upload(upload)


class RecordingUpload(UploadDecorator):
    """An upload whose requests are counted."""

    __slots__ = ("_account",)

    def __init__(self, inner: Upload, account: FolderAccount) -> None:
        super().__init__(inner)
        self._account = account

    async def put_part(self, number: int, data: bytes) -> None:
        """Count the request, and pass the call on."""
        self._account.note()
        await self.inner.put_part(number, data)

    async def complete(self) -> None:
        """Count the request, and pass the call on."""
        self._account.note()
        await self.inner.complete()

    async def abort(self) -> None:
        """Count the request, and pass the call on."""
        self._account.note()
        await self.inner.abort()


class Folder(PrefixStore):
    """A part of a store that hides nothing: invalid keys stay invalid behind the prefix and are passed on."""

    __slots__ = ()

    def _full(self, key: str) -> str:
        # Not checked here, unlike in `PrefixStore`: the store under test has to refuse an invalid key itself.
        return self._below + key

    @contextmanager
    def _naming(self, key: str) -> Iterator[None]:
        try:
            yield
        except (NotFound, AlreadyExists) as error:
            if error.key == self._full(key):  # another key is a bug, which a clause must see
                error.key = key
                error.args = tuple(str(each).replace(self._full(key), key) for each in error.args)
            raise


class Looker:
    """A client of the store on a thread and event loop of its own, for looking and cleaning up.

    A call that takes longer than `ANSWER_SECONDS_MAX` raises `TryAgain`. After that the client sends no more
    requests, because each would probably wait as long.
    """

    def __init__(self, open_store: Callable[[], ObjectStore]) -> None:
        self._is_lost = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="looker", daemon=True)
        self._thread.start()

        async def opened() -> ObjectStore:
            # With retries, unlike the store under test: a throttled delete would leave objects behind.
            return stacked_store(open_store(), Env())

        try:
            self.store = self._run(opened())
        except BaseException:
            self._end()
            raise

    def close(self) -> None:
        """Close the client and end the thread. A client that did not answer is left behind."""
        try:
            if not self._is_lost:
                self._run(self.store.aclose())
        finally:
            self._end()

    def there(self, keys: Iterable[str]) -> set[str]:
        """Return those of these keys that a read finds.

        Raises the error of a read that neither finds nor misses one.
        """
        found = self._run(self._each(self._is_there, keys))
        return {key for key, there in found.items() if there}

    def listed(self, prefix: str) -> set[str]:
        """Return the keys with this prefix that a listing names and a read finds."""
        return self.there(self._run(self._listed(prefix)))

    def named(self, prefix: str) -> list[str]:
        """Return the keys with this prefix that a listing names, without reading them."""
        return self._run(self._listed(prefix))

    def top(self) -> set[str]:
        """Return the keys and folders at the top of the place."""
        return set(self._run(self._level("")))

    def remove(self, keys: Iterable[str]) -> dict[str, str]:
        """Delete these keys.

        Return those that are still stored afterwards, each with the reason if one is known.

        Deleting many at once is fast, but the result is not trusted, because the store is under test. So some
        keys of each batch are read. If one of them is still stored, or a batch failed, all keys are read, and
        those that are still stored are deleted one by one.
        """
        return self._run(self._removed([*keys]))

    def abort_uploads(self, prefix: str) -> int:
        """Abort the unfinished uploads below a prefix, if the store lists them. Return their number."""

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
        except (NotFound, Misuse):  # an invalid key has no object
            return False
        return True

    async def _removed(self, keys: list[str]) -> dict[str, str]:
        batches = [tuple(keys[n : n + BATCH]) for n in range(0, len(keys), BATCH)]
        have_failed = any((await self._each(self._delete, batches)).values())
        # A batch may be answered without having deleted everything: only a read shows that.
        looked_at = [key for batch in batches for key in _some(batch)]
        there = [key for key, why in (await self._each(self._seems_there, looked_at)).items() if why]
        if there or have_failed:
            there = [key for key, why in (await self._each(self._seems_there, keys)).items() if why]
        reasons = await self._each(self._delete, [(key,) for key in there])
        left = await self._each(self._seems_there, there)
        return {key: reasons[(key,)] or why for key, why in left.items() if why}

    async def _seems_there(self, key: str) -> str:
        """Return why the key counts as still stored, or "" if it does not."""
        try:
            return "still stored after `delete`" if await self._is_there(key) else ""
        except Exception as error:  # noqa: BLE001 - whatever a backend under test raises, the others are removed
            return f"unknown whether it is still stored: {told(error)}"

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
                "the store did not answer the client that looks and cleans up; no more requests are sent"
            )
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        done, _ = wait([future], timeout=ANSWER_SECONDS_MAX)
        if not done:
            # Set before anything else can ask: every later call would wait for the same client again.
            self._is_lost = True
            future.cancel()
            raise TryAgain(f"the store did not answer within {ANSWER_SECONDS_MAX:g} s")
        return future.result()

    def _end(self) -> None:
        """End the thread. If its loop is blocked, both are left behind; the thread is a daemon."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(0 if self._is_lost else None)
        if not self._thread.is_alive():
            self._loop.close()


def _some(batch: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first and the last keys of a batch, or all of a short one."""
    return batch if len(batch) <= LOOKS else (*batch[: LOOKS // 2], *batch[-LOOKS // 2 :])
