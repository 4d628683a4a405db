"""Mistakes in listings that come page by page, and in levels."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from newcomers import proofs
from newcomers.registry import bug
from newcomers.service import ServiceStore
from offload.contracts.store import Listed


@bug(proofs.lists(proofs.THOUSANDS, gone=proofs.THOUSANDS[:1500]))
class EmptyPageEndsListing(ServiceStore):
    """An empty page ends a listing, though it names a next one: all of its keys were deleted.

    Breaks "An object that exists during the whole call is shown": after a long trim the stream seems to be
    gone.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        token: str | None = after
        while token is not None:
            rows, token = await self.ask(self.service.page, prefix, token, self.PAGE_ROWS)
            if not rows:
                return
            for key, size_bytes in rows:
                yield Listed(key, size_bytes)


@bug(proofs.lists(["b/1", "b/2"], prefix="b/", after="c"))
class AfterOfAnotherFolderIsForgotten(ServiceStore):
    """`after` is sent relative to the prefix, and dropped if it does not begin with it.

    Breaks "greater than `after`": a listing that begins behind a folder shows all of the folder again.
    """

    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        return super().list(prefix, after=after if after.startswith(prefix) else "")


@bug(proofs.levels([f"many/{number:04}" for number in range(2500)] + ["z"]))
class FolderAgainOnEachPage(ServiceStore):
    """Each page of a level forgets the folder with which the page before it ended.

    Breaks "Levels are whole: names each folder once": the same stream is listed three times.
    """

    async def level(self, prefix: str) -> AsyncIterator[str]:
        token: str | None = ""
        while token is not None:
            rows, token = await self.ask(self.service.page, prefix, token, self.PAGE_ROWS)
            parted = (key[len(prefix) :].partition("/") for key, _ in rows)
            for name in dict.fromkeys(prefix + part + slash for part, slash, _ in parted):
                yield name


@bug(proofs.levels(["a/1", "a0", "a1"]))
class LevelSkipsTheKeyAfterAFolder(ServiceStore):
    """A level continues at `a0` behind the folder `a/`, as `0` follows the slash, but `after` excludes `a0`
    itself.

    Breaks "Levels are whole": the stream `a0` is not listed beside the stream `a`.
    """

    async def level(self, prefix: str) -> AsyncIterator[str]:
        after = ""
        while True:
            async with aclosing(self.list(prefix, after=after)) as rows:
                row = await anext(rows, None)
            if row is None:
                return
            part, slash, _ = row.key[len(prefix) :].partition("/")
            yield prefix + part + slash
            after = f"{prefix}{part}0" if slash else row.key


@bug(proofs.levels(["a", "a/1", "b"]))
class LevelHasOneNameForKeyAndFolder(ServiceStore):
    """A level collects names without their slash, so a key hides the folder of the same name.

    Breaks "names each key and each folder": what is below the folder seems not to exist.
    """

    async def level(self, prefix: str) -> AsyncIterator[str]:
        found: dict[str, str] = {}
        async for row in self.list(prefix):
            part, slash, _ = row.key[len(prefix) :].partition("/")
            found.setdefault(prefix + part, slash)
        for name in sorted(name + slash for name, slash in found.items()):
            yield name
