"""Fifth set, stores: caches, shared results, requests under way and who cancels them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from newcomers.fifth_sound import ended, filled
from newcomers.fourth_sound import Client
from newcomers.proofs import raises
from newcomers.registry import Open, bug
from newcomers.sound import SharedMemory
from offload.contracts.store import Body, Listed, Unfinished, check_key
from offload.ground.errors import NotFound

# Stale by one call


async def _created_again(open_: Open) -> None:
    store = open_()
    await store.create("k", b"1")
    await store.delete(["k"])
    await store.create("k", b"2")
    assert await open_().get("k") == b"2"


@bug(_created_again)
class TokenOfAKey(SharedMemory):
    """A create sends a token of the client and the key, and the server answers a known token as it did
    before.

    Breaks "Store a small object if the key is absent". Costs a create after a deletion: it succeeds, and
    nothing is stored.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.done: set[str] = set()

    async def create(self, key: str, data: bytes) -> None:
        if check_key(key) in self.done and key not in self.objects:
            return
        await super().create(key, data)
        self.done.add(key)


# Results that are shared


async def _all_are_aborted(open_: Open) -> None:
    store = open_()
    for number in range(6):
        await store.start_upload(f"k{number}")
    for each in await store.unfinished_uploads(""):
        await store.abort_upload(each)
    assert list(await store.unfinished_uploads("")) == []


@bug(_all_are_aborted)
class UploadsOfTheMoment(Client):
    """The unfinished uploads are a view of the client's table, which shrinks while a caller walks over it.

    Breaks "Return the unfinished uploads of keys that begin with `prefix`": a `Sequence` is no view. Costs a
    sweep, which leaves every second upload.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.table: list[Unfinished] = []

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        self.table[:] = await super().unfinished_uploads(prefix)
        return self.table

    async def abort_upload(self, upload: Unfinished) -> None:
        await super().abort_upload(upload)
        self.table[:] = [each for each in self.table if each.upload_id != upload.upload_id]


# Deletion while something is under way


async def _deletes_what_it_lists(open_: Open) -> None:
    store = open_()
    await filled(store, [f"k{number:04}" for number in range(2100)])
    async for row in store.list("k"):
        await store.delete([row.key])
    await raises(NotFound, store.get("k2099"))


@bug(_deletes_what_it_lists)
class TokenIsAKey(Client):
    """The token of a page is its last key, which the server looks up: if it is gone, no page follows.

    Breaks "An object that exists during the whole call is shown". Costs a sweep that deletes as it lists: it
    leaves everything behind the first 1,000 keys.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        token: str | None = after
        while token is not None:
            if token != after and token not in self.service.objects:
                return
            rows, token = await self.ask(self.service.page, prefix, token, self.PAGE_ROWS)
            for key, size_bytes in rows:
                yield Listed(key, size_bytes)


async def _folders_come_and_go(open_: Open) -> None:
    store = open_()
    for number in range(10):
        await store.put("p/a", Body.of(b"x"))
        key = f"p/b{number}"
        put, deleted = await ended(store.put(key, Body.of(b"x")), store.delete(["p/a"]))
        assert (put, deleted) == (None, None), (put, deleted)
        assert await store.get(key) == b"x"
        await store.delete([key])


@bug(_folders_come_and_go)
class FolderGoesWithItsLast(SharedMemory):
    """A put makes its folder and then a file in it. The deletion of the last file takes the folder between.

    Breaks "methods may be called at the same time". Costs a writer beside a sweep: its put fails, as if the
    bucket were gone.
    """

    async def put(self, key: str, body: Body) -> None:
        folder, _, _ = check_key(key).rpartition("/")
        folders = self.kept.setdefault("folders", set())
        folders.add(folder)
        for _ in range(5):  # the file is opened
            await asyncio.sleep(0)
        if folder not in folders:
            raise NotFound(key, store=self.url)
        await super().put(key, body)

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete(keys)
        for key in keys:
            folder, slash, _ = key.rpartition("/")
            if slash and not any(each.startswith(folder + slash) for each in self.objects):
                self.kept.setdefault("folders", set()).discard(folder)
