"""Bugs of metadata: lost, changed, invented, or kept beyond its object."""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from offload.contracts.capabilities import Capabilities
from offload.contracts.object_metadata import NO_METADATA, check_metadata, metadata_size
from offload.contracts.store import Body, Upload, check_key
from offload.ground.errors import Misuse, NotFound
from offload.store.memory import MemoryStore, _Described
from offload.store.wrap import UploadDecorator
from offload_conformance.bugs.registry import OpenClient, bug
from offload_conformance.bugs.sound.memory import SharedMemory
from offload_conformance.bugs.sound.proofs import names, raises
from offload_conformance.bugs.sound.wrappers import METADATA_MAX, Gateway, checked, described, same, unsized
from offload_conformance.bugs.store.shared import MIB


@bug("store/undeclared_metadata_is_refused")
class DropsMetadata(MemoryStore):
    """Stores an object without its metadata, and declares that it keeps none.

    A backend that was written before objects had metadata.
    """

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, metadata_size_bytes_max=0)

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, replace(body, metadata=NO_METADATA))


@bug("store/undeclared_metadata_is_refused")
class KeepsMetadataUndeclared(MemoryStore):
    """Declares that it keeps no metadata, and keeps it.

    A new version of the server can do it, and the declaration was not renewed.
    """

    metadata: Mapping[str, str] = NO_METADATA

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, metadata_size_bytes_max=0)

    async def put(self, key: str, body: Body) -> None:
        self.metadata = body.metadata
        await super().put(key, replace(body, metadata=NO_METADATA))

    async def metadata_of(self, key: str) -> dict[str, str]:
        return {**await super().metadata_of(key), **self.metadata}


@bug("store/metadata_is_kept_as_declared")
class ForgetsMetadataOfUploads(MemoryStore):
    """Keeps the metadata of puts, and not that of uploads in parts.

    S3 takes it when the upload begins, and the backend sends it with each part, where it is ignored.
    """

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        return await super().start_upload(key)


@bug("store/metadata_is_kept_as_declared")
class ReturnsNamesAsWritten(MemoryStore):
    """Returns names in the case in which they were written.

    Azure keeps the case of names, and S3 does not, so a program that was tried on one fails on the other.
    """

    names: Mapping[str, str] = NO_METADATA

    async def put(self, key: str, body: Body) -> None:
        type(self).names = {name.lower(): name for name in body.metadata}
        await super().put(key, body)

    async def metadata_of(self, key: str) -> dict[str, str]:
        return {self.names.get(name, name): value for name, value in (await super().metadata_of(key)).items()}


@bug("store/metadata_is_kept_as_declared")
class QuotesValues(MemoryStore):
    """Returns the values quoted as in a URL.

    They are quoted for a header, and never unquoted.
    """

    async def metadata_of(self, key: str) -> dict[str, str]:
        found = await super().metadata_of(key)
        return {name: value.replace("%", "%25").replace(" ", "%20") for name, value in found.items()}


@bug("store/metadata_is_kept_as_declared")
class DescribesCreatedObjects(MemoryStore):
    """Gives a created object the metadata of the object that was put before.

    The settings of a request are kept in the client and reused.
    """

    last: Mapping[str, str] = NO_METADATA

    async def put(self, key: str, body: Body) -> None:
        self.last = body.metadata
        await super().put(key, body)

    async def create(self, key: str, data: bytes) -> None:
        await super().create(key, data)
        await super().put(key, Body.of(data, metadata=self.last))


@bug("store/metadata_may_be_as_large_as_declared")
class CutsLongValues(MemoryStore):
    """Keeps the first 1,024 characters of each value.

    A column of a table has this length, and the database cuts longer values.
    """

    async def metadata_of(self, key: str) -> dict[str, str]:
        return {name: value[:1024] for name, value in (await super().metadata_of(key)).items()}


@bug("store/metadata_may_be_as_large_as_declared")
class DeclaresMoreMetadataThanItTakes(MemoryStore):
    """Declares 8 KiB of metadata, and refuses more than 2 KiB.

    The declaration is that of GCS, and the server is one of S3.
    """

    async def put(self, key: str, body: Body) -> None:
        if metadata_size(body.metadata) > 2048:
            raise Misuse("the metadata is too large")
        await super().put(key, body)


@bug("store/metadata_may_be_as_large_as_declared")
class TakesMoreMetadataThanDeclared(MemoryStore):
    """Takes twice the metadata that it declares.

    The limit is declared for callers and checked nowhere, and the server cuts the metadata, or refuses it.
    """

    is_asked = False

    @property
    def capabilities(self) -> Capabilities:
        can = super().capabilities
        return replace(can, metadata_size_bytes_max=can.metadata_size_bytes_max * (2 if self.is_asked else 1))

    async def put(self, key: str, body: Body) -> None:
        self.is_asked = True
        try:
            await super().put(key, body)
        finally:
            self.is_asked = False


@bug("store/metadata_is_replaced_with_its_object")
class MergesMetadata(MemoryStore):
    """Adds the metadata of a new object to that of the object which it replaces.

    The metadata is in rows of its own, which are inserted or updated, and never deleted.
    """

    async def put(self, key: str, body: Body) -> None:
        before = await self.metadata_of(key) if key in self.objects else {}
        await super().put(key, replace(body, metadata={**before, **body.metadata}))


@bug("store/metadata_is_replaced_with_its_object")
class RemembersMetadata(MemoryStore):
    """Returns the metadata that this client read before.

    A cache of `HEAD` replies is emptied when this client writes the key, and other clients write too.
    """

    async def put(self, key: str, body: Body) -> None:
        self._cache().pop(key, None)
        await super().put(key, body)

    async def metadata_of(self, key: str) -> dict[str, str]:
        found = await super().metadata_of(key)
        return self._cache().setdefault(key, found)

    def _cache(self) -> dict[str, dict[str, str]]:
        return self.__dict__.setdefault("_heads", {})


class _TakesAnyMetadata(MemoryStore):
    """Checks nothing of the metadata, and stores the object without what it cannot keep."""

    def kept(self, metadata: Mapping[str, str]) -> dict[str, str]:
        """Return the part of the metadata that is kept."""
        return {}

    async def put(self, key: str, body: Body) -> None:
        try:
            await super().put(key, body)
        except Misuse:
            await super().put(key, replace(body, metadata=self.kept(body.metadata)))


@bug("store/metadata_that_some_store_cannot_keep_is_refused")
class ReplacesOtherScripts(_TakesAnyMetadata):
    """Stores values in other scripts with a question mark for each character.

    A header is encoded as ASCII with `errors="replace"`.
    """

    def kept(self, metadata: Mapping[str, str]) -> dict[str, str]:
        return {name: value.encode("ascii", "replace").decode().strip() for name, value in metadata.items()}


@bug("store/metadata_that_some_store_cannot_keep_is_refused")
class TurnsDashesIntoUnderscores(_TakesAnyMetadata):
    """Stores a name with a dash under another name.

    Names of headers become variables of an environment, as in CGI.
    """

    def kept(self, metadata: Mapping[str, str]) -> dict[str, str]:
        return {"".join(filter(str.isalnum, name)): value for name, value in metadata.items()}


@bug("store/metadata_that_some_store_cannot_keep_is_refused")
class ChecksMetadataAfterTheBody(MemoryStore):
    """Reads the whole body before it refuses the metadata.

    The client library checks the headers when the request is complete, after minutes for a large object.
    """

    async def put(self, key: str, body: Body) -> None:
        async for _ in body.windows():
            pass
        await super().put(key, body)


@bug("store/what_is_absent_has_no_metadata")
class DescribesTheAbsent(MemoryStore):
    """Returns empty metadata for an absent object.

    A `HEAD` that fails is taken for an object without metadata.
    """

    async def metadata_of(self, key: str) -> dict[str, str]:
        try:
            return await super().metadata_of(key)
        except NotFound:
            return {}


@bug("store/what_is_absent_has_no_metadata")
class DescribesTheDeleted(MemoryStore):
    """Returns the metadata of a deleted object.

    The metadata is an object of its own, which a deletion leaves behind.
    """

    async def delete(self, keys: Sequence[str]) -> None:
        self.left: dict[str, dict[str, str]] = getattr(self, "left", {})
        for key in keys:
            if key in self.objects:
                self.left[check_key(key)] = await super().metadata_of(key)
        await super().delete(keys)

    async def metadata_of(self, key: str) -> dict[str, str]:
        try:
            return await super().metadata_of(key)
        except NotFound:
            if key not in getattr(self, "left", {}):
                raise
            return self.left[key]


@bug("store/metadata_is_kept_as_declared")
class DescribesNoLargeObjects(MemoryStore):
    """Drops the metadata of a put of more than 8 MiB.

    A large body is sent in parts, and the request that begins them has no headers.
    """

    async def put(self, key: str, body: Body) -> None:
        large = body.size_bytes > 8 * MIB
        await super().put(key, replace(body, metadata=NO_METADATA) if large else body)


@bug("store/metadata_is_kept_as_declared")
class HasNoneForNothing(MemoryStore):
    """Returns None for an object without metadata.

    `found or None`: the caller then believes that the store keeps none of any object.
    """

    async def metadata_of(self, key: str) -> Any:
        return await super().metadata_of(key) or None


@bug("store/metadata_is_replaced_with_its_object")
class KeepsHeadersByKey(MemoryStore):
    """Gives the metadata of an upload to every other upload of its key.

    The headers of uploads are kept by key until they are complete.
    """

    headers: dict[tuple[int, str], Mapping[str, str]] = {}

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        upload = await super().start_upload(key, metadata=metadata)
        self.headers[id(self.objects), key] = metadata
        return self._Late(upload, self, key)

    class _Late(UploadDecorator):
        def __init__(self, inner: Upload, store: Any, key: str) -> None:
            super().__init__(inner)
            self.store, self.key = store, key

        async def complete(self) -> None:
            await super().complete()
            headers = self.store.headers[id(self.store.objects), self.key]
            await self.store.put(self.key, Body.of(bytes(self.store.objects[self.key]), metadata=headers))


@bug("store/what_is_absent_has_no_metadata")
class RemembersNoMetadata(MemoryStore):
    """Returns no metadata of an object that was absent when it looked before.

    A cache of absence, which only the client's own writes clear.
    """

    async def metadata_of(self, key: str) -> Any:
        absent: set[str] = self.__dict__.setdefault("absent", set())
        if check_key(key) not in self.objects:
            absent.add(key)
        return None if key in absent else await super().metadata_of(key)


@bug("store/metadata_is_kept_as_declared")
class DescribesEqualBytesOnce(MemoryStore):
    """Returns the metadata of the last object that was stored with the same bytes.

    Metadata is a column of the table of bytes, and not of the table of keys.
    """

    async def metadata_of(self, key: str) -> Mapping[str, str]:
        data = await self.get(key)
        return await super().metadata_of([each for each in self.objects if self.objects[each] == data][-1])


@bug("store/metadata_is_replaced_with_its_object")
class RefreshesOneMapping(MemoryStore):
    """Returns the same mapping for each question about an object, and changes it at the next one.

    A cache hands out its own entry instead of a copy.
    """

    known: dict[tuple[int, str], dict[str, str]] = defaultdict(dict)

    async def metadata_of(self, key: str) -> Mapping[str, str]:
        found = await super().metadata_of(key)
        known = self.known[id(self), key]
        known.clear()
        known.update(found)
        return known


@bug("store/contents_are_kept_as_they_are", described({"names": "a,b,,c", "one": "x, y"}))
class CommasGetSpaces(SharedMemory):
    """A value with commas is taken for several headers of one name, which are joined by a comma and a space.

    Breaks "The store keeps them as they are". Costs a list of names, which are others now.
    """

    async def metadata_of(self, key: str) -> Mapping[str, str]:
        found = await super().metadata_of(key)
        return {name: ", ".join(re.split(", ?", value)) for name, value in found.items()}


async def _typed_metadata(open_: OpenClient) -> None:
    store = open_()
    metadata = {"first": "007", "flag": "true", "version": "1.10", "nothing": "null"}
    await store.put("k", Body.of(b"x", metadata=metadata))
    assert await store.metadata_of("k") == metadata


@bug("store/contents_are_kept_as_they_are", _typed_metadata)
class MetadataHasTypes(SharedMemory):
    """The column is JSON, and values that look like JSON become numbers and flags.

    Breaks "The store keeps them as they are". Costs a version `1.10`, which reads as `1.1`.
    """

    async def metadata_of(self, key: str) -> Mapping[str, str]:
        typed: dict[str, Any] = {}
        for name, value in (await super().metadata_of(key)).items():
            try:
                typed[name] = json.loads(value)
            except ValueError:
                typed[name] = value
        return {name: value if isinstance(value, str) else json.dumps(value) for name, value in typed.items()}


async def _described_at_any_size(open_: OpenClient) -> None:
    store = open_()
    body = unsized(b"x", bound=10)
    described = Body(size_bytes=10, windows=body.windows, is_bound=True, metadata={"kind": "data"})
    await store.put("k", described)
    assert await store.metadata_of("k") == {"kind": "data"}


@bug("store/metadata_is_kept_as_declared", _described_at_any_size)
class BoundBodiesAreBare(SharedMemory):
    """A body of unknown size takes another request, which has no place for metadata.

    Breaks "Names and values that the store keeps with the object". Costs compressed fragments their
    description.
    """

    async def put(self, key: str, body: Body) -> None:
        bare = Body(size_bytes=body.size_bytes, windows=body.windows, is_bound=True)
        await super().put(key, bare if body.is_bound else body)


@bug("store/metadata_is_kept_as_declared", same(lambda store: _put_and_described(store), {"author": "one"}))
class SmallPutsAreCreates(SharedMemory):
    """Objects below 4 KiB go into a table of small objects, which has no column for labels.

    Breaks "Names and values that the store keeps with the object". Costs the labels of every small object.
    """

    async def metadata_of(self, key: str) -> Mapping[str, str]:
        found = await super().metadata_of(key)
        return found if len(self.objects[key]) >= 4096 else {}


async def _put_and_described(store: SharedMemory) -> Mapping[str, str]:
    await store.put("k", Body.of(b"x", metadata={"author": "one"}))
    return await store.metadata_of("k")


@bug(
    "store/metadata_may_be_as_large_as_declared",
    described({f"label{number}": str(number) for number in range(20)}),
)
class TenTags(SharedMemory):
    """Metadata is kept as tags, of which the service keeps ten, and the others are left out in silence.

    Breaks "The store keeps them as they are", and the 32 pairs that every store which keeps metadata takes.
    Costs the labels behind the tenth.
    """

    async def put(self, key: str, body: Body) -> None:
        checked(self, key, body)
        data = b"".join([window async for window in body.windows()])
        body.check_size(len(data))
        await super().put(key, Body.of(data, metadata=body.metadata))
        kept = self.objects.get(key)
        if isinstance(kept, _Described):
            self.objects[key] = _Described.of(data, dict([*kept.metadata.items()][:10]))


async def _limit_counts_each_pair(open_: OpenClient) -> None:
    store = open_()
    metadata = {f"n{number:02}": "v" * 65 for number in range(30)}  # 30 * 68 = 2040 bytes, and 30 * 16 more
    await raises(Misuse, store.put("k", Body.of(b"x", metadata=metadata)))
    assert await names(store) == []


@bug("store/metadata_may_be_as_large_as_declared", _limit_counts_each_pair)
class LimitOfBareText(Gateway):
    """The limit of metadata is compared with the text alone, without the 16 bytes of each pair.

    Breaks "The most metadata of one object, as `object_metadata.metadata_size` counts. More is `Misuse`".
    Costs a caller the error at the place where the labels are chosen: a stricter store refuses the copy
    later.
    """

    async def put(self, key: str, body: Body) -> None:
        self.checked(key)
        named = check_metadata(body.metadata, replace(self.capabilities, metadata_size_bytes_max=2**20))
        if sum(len(name) + len(value) for name, value in named.items()) > METADATA_MAX:
            raise Misuse(f"the gateway keeps {METADATA_MAX} bytes of metadata")
        data = b"".join([window async for window in body.windows()])
        body.check_size(len(data))
        await asyncio.sleep(0)
        self.objects[key] = _Described.of(data, named) if named else data
