"""Two stores as one: the objects on which commits depend are on one of them, all others on the other.

It serves a data store that cannot create an object only if it is absent. The data store gets only requests
that every store supports: put, read, list and delete.

Invariant: `decisive` alone decides on which side a key belongs. An object on the other side is never read,
listed or deleted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace

from offload.contracts.capabilities import Capabilities
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
from offload.ground.errors import Misuse
from offload.store.merge import merged
from offload.store.wrap import StoreDecorator


class SplitStore(StoreDecorator):
    """A store of `decisive` keys on `commits` and of all other keys on `inner`. It owns both stores.

    `create` accepts decisive keys only, and raises `Misuse` for others.
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
        """`sides_of` says of a prefix whether decisive keys may begin with it, and whether other keys may."""
        super().__init__(inner)
        self._commits = commits
        self._decisive = decisive
        self._sides_of = sides_of

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the pair. Those for creating are the commit store's."""
        # Creates go to the commit store alone. Listings are merged, and a tier needs the objects of both
        # sides, so these capabilities must hold on both.
        data, commits = self.inner.capabilities, self._commits.capabilities
        return replace(
            data,
            atomic_create=commits.atomic_create,
            create_is_probed=commits.create_is_probed,
            create_size_bytes_max=commits.create_size_bytes_max,
            strong_listing=data.strong_listing and commits.strong_listing,
            # Keys of both sides begin with the stream's name, so the shorter limit holds for all.
            key_size_bytes_max=min(data.key_size_bytes_max, commits.key_size_bytes_max),
            durable=data.durable and commits.durable,
            metadata_size_bytes_max=min(data.metadata_size_bytes_max, commits.metadata_size_bytes_max),
        )

    async def put(self, key: str, body: Body) -> None:
        """Put the object on its side."""
        await self._home(key).put(key, body)

    async def create(self, key: str, data: bytes) -> None:
        """Create the object on the commit store."""
        # The data store may overwrite existing objects: that is the reason for a commit store.
        if not self._decisive(key):
            raise Misuse(f"{key!r} is data: {self.url} cannot create it only if absent")
        await self._commits.create(key, data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> Buffer:
        """Read the object from its side."""
        return await self._home(key).get(key, span)

    async def stored_crc32c(self, key: str) -> int | None:
        """Ask the object's side for the checksum."""
        return await self._home(key).stored_crc32c(key)

    async def metadata_of(self, key: str) -> Mapping[str, str] | None:
        """Ask the object's side for the metadata."""
        return await self._home(key).metadata_of(key)

    async def retained(self, key: str) -> str | None:
        """Ask the object's side."""
        return await self._home(key).retained(key)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """List both sides and merge them, or list only the side that can have such keys."""
        # Most prefixes belong to one side, and the other is then not asked: a commit lists roots, and costs
        # no request to the data store.
        on_commits, on_data = self._sides_of(prefix)
        sides = [self._side(self._commits, prefix, after, decisive=True)] if on_commits else []
        if on_data:
            sides.append(self._side(self.inner, prefix, after, decisive=False))
        async for row in merged(sides):
            yield row

    async def level(self, prefix: str) -> AsyncIterator[str]:
        """List one level of both sides, or of the one side that can have such keys."""
        # A set, because a folder may be on both sides. Keys are filtered by their side, and folders are not.
        found = set()
        on_commits, on_data = self._sides_of(prefix)
        for store, decisive, is_asked in ((self._commits, True, on_commits), (self.inner, False, on_data)):
            if is_asked:
                names = [name async for name in store.level(prefix)]
                found |= {name for name in names if name.endswith("/") or self._decisive(name) is decisive}
        for name in sorted(found):
            yield name

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete each object on its side."""
        for store, decisive in ((self.inner, False), (self._commits, True)):
            mine = [key for key in keys if self._decisive(key) is decisive]
            if mine:
                await store.delete(mine)

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        """Begin an upload on the key's side."""
        return await begin_upload(self._home(key), key, metadata)

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        """Return the unfinished uploads of both sides, each on the side to which its key belongs."""
        # Filtered like a listing: an upload on the wrong side could not be aborted through this store.
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
        """Abort an upload on its key's side."""
        await self._home(upload.key).abort_upload(upload)

    async def aclose(self) -> None:
        """Close both stores. If the first one fails, the second one is still closed."""
        try:
            await self._commits.aclose()
        finally:
            await self.inner.aclose()

    def _home(self, key: str) -> ObjectStore:
        return self._commits if self._decisive(key) else self.inner

    async def _side(
        self, store: ObjectStore, prefix: str, after: str, *, decisive: bool
    ) -> AsyncIterator[Listed]:
        # The data store has a copy of the tier's anchor, which is decisive. Unfiltered, its key would be
        # listed twice, because `merged` drops no duplicates.
        async for row in store.list(prefix, after=after):
            if self._decisive(row.key) is decisive:
                yield row
