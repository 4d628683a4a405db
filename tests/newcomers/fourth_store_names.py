"""Fourth set, stores: names and metadata, mistaken on the way through gateways and databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace

from newcomers.fourth_sound import KEY_MAX, METADATA_MAX, Gateway, checked, described
from newcomers.proofs import apart, names, raises
from newcomers.registry import Open, bug
from newcomers.sound import SharedMemory
from offload.contracts.object_metadata import NO_METADATA, check_metadata
from offload.contracts.store import Body, Span, Suffix, Upload, check_key
from offload.ground.errors import Misuse, NotFound
from offload.store.memory import _Described

# Metadata


async def _upload_twice(open_: Open) -> None:
    store = open_()
    one = await store.start_upload("k", metadata={"author": "one"})
    two = await store.start_upload("k", metadata={"author": "two"})
    await one.put_part(1, b"one")
    await one.complete()
    assert await store.metadata_of("k") == {"author": "one"}
    await two.abort()


@bug(_upload_twice)
class UploadsShareTheirHeaders(SharedMemory):
    """The headers of an upload are kept by key, so a second upload of a key changes those of the first.

    Breaks "The object has this metadata, as one that is put has `Body.metadata`". Costs the origin of an
    object: its metadata names another upload.
    """

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        upload = await super().start_upload(key, metadata=metadata)
        for other in self._unfinished.values():
            if other.key == key:
                other._metadata = {**metadata}
        return upload


async def _bad_metadata_reads_nothing(open_: Open) -> None:
    read = []

    async def windows() -> AsyncIterator[bytes]:
        read.append(1)
        yield b"x"

    body = Body(size_bytes=1, windows=windows, metadata={"author": "zoë"})
    await raises(Misuse, open_().put("k", body))
    assert not read


@bug(_bad_metadata_reads_nothing)
class MetadataIsCheckedAtTheEnd(SharedMemory):
    """The body is gathered first, and its metadata is looked at when the request is built.

    Breaks "It raises `Misuse` before it reads a window or sends anything if it cannot". Costs the reading of
    a whole ledger before the caller learns that the label is wrong.
    """

    async def put(self, key: str, body: Body) -> None:
        check_key(key)
        data = b"".join([window async for window in body.windows()])
        body.check_size(len(data))
        await super().put(key, Body.of(data, metadata=body.metadata))


async def _metadata_goes_with_its_object(open_: Open) -> None:
    store = open_()
    await store.put("k", Body.of(b"x", metadata={"author": "one"}))
    await store.delete(["k"])
    await store.create("k", b"y")
    assert await store.metadata_of("k") == {}


@bug(_metadata_goes_with_its_object)
class LabelsOutliveTheirObject(SharedMemory):
    """Metadata is a row of a second table, which `delete` and `create` leave alone.

    Breaks "An object has only the metadata that it was written with". Costs the origin of an object that was
    created where another one had been deleted.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        self.kept[key] = {name.lower(): value for name, value in body.metadata.items()}

    async def metadata_of(self, key: str) -> Mapping[str, str]:
        found = await super().metadata_of(key)
        return {**self.kept.get(key, found)}


@bug(described({"authors": "ann, bob"}))
class ListsInHeaders(SharedMemory):
    """A value is taken for a list, so a comma loses the space behind it.

    Breaks "The store keeps them as they are, only the names in lower case". Costs the text of each label that
    is a sentence.
    """

    async def metadata_of(self, key: str) -> Mapping[str, str]:
        found = await super().metadata_of(key)
        return {name: ",".join(part.strip() for part in value.split(",")) for name, value in found.items()}


@bug(described({f"label{number}": str(number) for number in range(20)}))
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


async def _limit_counts_each_pair(open_: Open) -> None:
    store = open_()
    metadata = {f"n{number:02}": "v" * 65 for number in range(30)}  # 30 * 68 = 2040 bytes, and 30 * 16 more
    await raises(Misuse, store.put("k", Body.of(b"x", metadata=metadata)))
    assert await names(store) == []


@bug(_limit_counts_each_pair)
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


async def _nothing_has_no_metadata(open_: Open) -> None:
    try:
        found = await open_().metadata_of("absent")
    except NotFound:
        return
    assert found is None, found


@bug(_nothing_has_no_metadata)
class NothingHasEmptyMetadata(SharedMemory):
    """A missing row of labels is an empty set of labels, whether or not there is an object.

    Breaks "For an absent object, returns None or raises `NotFound`". Costs a tool that asks only for metadata
    the difference between an object without labels and none.
    """

    async def metadata_of(self, key: str) -> Mapping[str, str]:
        check_key(key)
        return await super().metadata_of(key) if key in self.objects else {}


async def _heads_are_fresh(open_: Open) -> None:
    one, two = open_(), open_()
    await one.put("k", Body.of(b"x", metadata={"author": "one"}))
    assert await two.metadata_of("k") == {"author": "one"}
    await one.put("k", Body.of(b"y", metadata={"author": "two"}))
    assert await two.metadata_of("k") == {"author": "two"}


@bug(_heads_are_fresh)
class HeadsAreRemembered(SharedMemory):
    """A client remembers the headers of each object, and forgets them only when it writes the object itself.

    Breaks "Return the metadata of an object": another client has replaced the object. Costs a person who
    inspects a bucket the truth.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.heads: dict[str, Mapping[str, str]] = {}

    async def metadata_of(self, key: str) -> Mapping[str, str]:
        if key not in self.heads:
            self.heads[key] = await super().metadata_of(key)
        return {**self.heads[key]}

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        self.heads.pop(key, None)

    async def create(self, key: str, data: bytes) -> None:
        await super().create(key, data)
        self.heads.pop(key, None)

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete(keys)
        for key in keys:
            self.heads.pop(key, None)


# Keys


class Renames(SharedMemory):
    """A base class without a mistake: a store that writes a key under another name."""

    def stored(self, key: str) -> str:
        return check_key(key)

    async def put(self, key: str, body: Body) -> None:
        await super().put(self.stored(key), body)

    async def create(self, key: str, data: bytes) -> None:
        await super().create(self.stored(key), data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await super().get(self.stored(key), span)

    async def metadata_of(self, key: str) -> Mapping[str, str]:
        return await super().metadata_of(self.stored(key))

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete([self.stored(key) for key in keys])

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        return await super().start_upload(self.stored(key), metadata=metadata)


@bug(apart("a/b", "a/b "))
class PaddedComparison(Renames):
    """The database compares names as if both were padded with spaces.

    Breaks "Keys are whole names". Costs the object whose name differs only by spaces at its end.
    """

    def stored(self, key: str) -> str:
        return check_key(key).rstrip(" ") or key


@bug(apart("a;v=1/b", "a/b"))
class PathParameters(Renames):
    """The web server drops what follows a semicolon in a part of a path.

    Breaks "Keys are whole names". Costs the object whose name differs only by that.
    """

    def stored(self, key: str) -> str:
        parts = check_key(key).split("/")
        return "/".join(part[0] + part[1:].partition(";")[0] for part in parts)


@bug(apart(f"{'a' * 150}/{'b' * 150}/1", f"{'a' * 150}/{'b' * 150}/2"))
class ColumnOf255(Renames):
    """The column of names has 255 characters, and the database cuts what is longer without an error.

    Breaks "A key is a non-empty string of at most 1,024 bytes in UTF-8". Costs all but one of the objects
    whose long names begin alike.
    """

    def stored(self, key: str) -> str:
        return check_key(key)[:255].rstrip("/")


async def _limit_is_in_bytes(open_: Open) -> None:
    await raises(Misuse, open_().put("/".join(["ü" * 60] * 5), Body.of(b"x")))


@bug(_limit_is_in_bytes)
class LimitInCharacters(Gateway):
    """The declared limit of 512 bytes is compared with the number of characters.

    Breaks "The longest key in UTF-8. A longer one is `Misuse`". Costs a caller that trusts the limit: the
    gateway behind this one refuses the key.
    """

    def is_too_long(self, key: str) -> bool:
        return len(key) > KEY_MAX


async def _refused_anywhere(open_: Open) -> None:
    await raises(Misuse, open_().put("a/b:c", Body.of(b"x")))


@bug(_refused_anywhere)
class RefusedAtTheStart(Gateway):
    """The declared pattern is compared with the beginning of a key only.

    Breaks "A key in which it matches is `Misuse`". Costs a caller the error: the name means a drive or a
    stream to the file system behind the gateway.
    """

    def is_refused(self, key: str) -> bool:
        return key[0] in ":\\"
