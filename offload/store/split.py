"""Two stores as one: what commits rest on lies on one of them, everything else on the other.

For a store of data that cannot create only if absent. `decisive` says of a key where its object
belongs; no object is ever on both sides. Of the data store is asked what any store can do: put,
read, list, delete.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

from offload.contracts.capabilities import Capabilities
from offload.contracts.store import Body, Listed, ObjectStore, Span, Suffix, Unfinished, Upload
from offload.errors import Misuse
from offload.store.merge import merged
from offload.store.wrap import StoreDecorator


class SplitStore(StoreDecorator):
    """`inner` holds the data, `commits` what is `decisive`. Owns both.

    `create` is for decisive keys only; another raises `Misuse`.
    """

    __slots__ = ("_commits", "_decisive", "_sides_of")

    def __init__(
        self,
        inner: ObjectStore,
        commits: ObjectStore,
        *,
        decisive: Callable[[str], bool],
        sides_of: Callable[[str], tuple[bool, bool]],
    ) -> None:
        """`sides_of` a prefix: whether decisive keys may begin with it, and whether others may."""
        super().__init__(inner)
        self._commits = commits
        self._decisive = decisive
        self._sides_of = sides_of

    @property
    def capabilities(self) -> Capabilities:
        """Of creating, those of the commit store; of the rest, those of the data store or of both."""
        data, commits = self.inner.capabilities, self._commits.capabilities
        return replace(
            data,
            atomic_create=commits.atomic_create,
            create_is_probed=commits.create_is_probed,
            create_size_bytes_max=commits.create_size_bytes_max,
            strong_listing=data.strong_listing and commits.strong_listing,
            key_size_bytes_max=min(data.key_size_bytes_max, commits.key_size_bytes_max),
            durable=data.durable and commits.durable,
        )

    async def put(self, key: str, body: Body) -> None:
        """Put where the key belongs."""
        await self._home(key).put(key, body)

    async def create(self, key: str, data: bytes) -> None:
        """Create on the commit store."""
        if not self._decisive(key):
            raise Misuse(f"{key!r} is data: {self.url} cannot create it only if absent")
        await self._commits.create(key, data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        """Read where the key belongs."""
        return await self._home(key).get(key, span)

    async def stored_crc32c(self, key: str) -> int | None:
        """Ask where the key belongs."""
        return await self._home(key).stored_crc32c(key)

    async def retained(self, key: str) -> str | None:
        """Ask where the key belongs."""
        return await self._home(key).retained(key)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """List both sides, or only the one that can hold such keys."""
        on_commits, on_data = self._sides_of(prefix)
        sides = [self._side(self._commits, prefix, after, decisive=True)] if on_commits else []
        if on_data:
            sides.append(self._side(self.inner, prefix, after, decisive=False))
        async for row in merged(sides):
            yield row

    async def level(self, prefix: str) -> AsyncIterator[str]:
        """Those of either side, gathered: a folder may be on both."""
        found = set()
        on_commits, on_data = self._sides_of(prefix)
        for store, decisive, is_asked in ((self._commits, True, on_commits), (self.inner, False, on_data)):
            if is_asked:
                names = [name async for name in store.level(prefix)]
                found |= {name for name in names if name.endswith("/") or self._decisive(name) is decisive}
        for name in sorted(found):
            yield name

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete where the keys belong."""
        for store, decisive in ((self.inner, False), (self._commits, True)):
            mine = [key for key in keys if self._decisive(key) is decisive]
            if mine:
                await store.delete(mine)

    async def start_upload(self, key: str) -> Upload:
        """Begin an upload where the key belongs."""
        return await self._home(key).start_upload(key)

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        """Those of either side."""
        sides = (
            (store, decisive, await store.unfinished_uploads(prefix))
            for store, decisive in ((self.inner, False), (self._commits, True))
        )
        return [
            upload
            async for _, decisive, found in sides
            for upload in found
            if self._decisive(upload.key) is decisive
        ]

    async def abort_upload(self, upload: Unfinished) -> None:
        """Abort one where its key belongs."""
        await self._home(upload.key).abort_upload(upload)

    async def aclose(self) -> None:
        """Close both."""
        try:
            await self._commits.aclose()
        finally:
            await self.inner.aclose()

    def _home(self, key: str) -> ObjectStore:
        return self._commits if self._decisive(key) else self.inner

    async def _side(
        self, store: ObjectStore, prefix: str, after: str, *, decisive: bool
    ) -> AsyncIterator[Listed]:
        async for row in store.list(prefix, after=after):
            if self._decisive(row.key) is decisive:
                yield row
