"""Mistakes with a real client of S3, at a server on this machine."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Sequence
from hashlib import md5
from typing import ClassVar
from urllib.parse import quote, unquote_plus

from offload_s3.options import S3Options
from offload_s3.store import S3Store
from offload_s3.upload import S3Upload
from servers.places import ACCESS_KEY, SECRET_KEY

from newcomers import proofs
from newcomers.registry import Open, bug
from offload.contracts.store import Listed, Span, Suffix, Upload, check_key
from offload.ground.errors import AlreadyExists, Conflict, Misuse, NotFound, OffloadError, TryAgain


class Bucket(S3Store):
    """A sound client of `newcomer://HOST:PORT/BUCKET`."""

    KIND: ClassVar = "store"

    def __init__(self, url: str) -> None:
        host, _, bucket = url.partition("://")[2].partition("/")
        access = {"key": ACCESS_KEY, "secret": SECRET_KEY, "region": "us-east-1"}
        super().__init__(bucket=bucket, options=S3Options(endpoint_url=f"http://{host}", **access))


async def _create_other_bytes(open_: Open) -> None:
    store = open_()
    await store.delete(["k"])
    await store.create("k", b"one")
    await proofs.raises(AlreadyExists, store.create("k", b"two"))
    await proofs.raises(AlreadyExists, store.create("k", b"one"))
    assert await store.get("k") == b"one"
    await store.delete(["k"])


@bug(_create_other_bytes)
class CreateSendsAnETag(Bucket):
    """`If-None-Match` carries the ETag of the new bytes instead of `*`: only the same bytes are refused.

    Breaks "Of any number of creates of one absent key, exactly one succeeds": a rival's root is overwritten.
    """

    async def create(self, key: str, data: bytes) -> None:
        await self._put(check_key(key), [data], what="create", IfNoneMatch=f'"{md5(data).hexdigest()}"')


@bug(proofs.one_creates(lambda number: b"%d" % number, clients=4, rounds=20))
class CreateAsksForTheHeadFirst(Bucket):
    """A create asks for the head, and then puts without a condition, because an older server knows none.

    Breaks "Of any number of creates of one absent key, exactly one succeeds".
    """

    async def create(self, key: str, data: bytes) -> None:
        try:
            await self.get(key, Span(0, 1))
        except NotFound:
            await self._put(key, [data], what="create")
        else:
            raise AlreadyExists(key)


@bug(_create_other_bytes)
class LostCreatesAreConflicts(Bucket):
    """The 412 of a create is raised as `Conflict`, by its name.

    Breaks "else raise `AlreadyExists`": the commit takes a lost race for a failure, and stops.
    """

    async def create(self, key: str, data: bytes) -> None:
        try:
            await super().create(key, data)
        except AlreadyExists as exc:
            raise Conflict(f"{self.url}: {key!r}: 412 PreconditionFailed") from exc


@bug(proofs.lists([f"t/{number:04}" for number in range(1010)], prefix="t/"))
class OnlyTheFirstThousandKeys(Bucket):
    """One request lists a thousand keys, and the client ignores `IsTruncated`.

    Breaks "Every object whose key begins with `prefix`".
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        count = 0
        async for row in super().list(prefix, after=after):
            if (count := count + 1) > 1000:
                return
            yield row


@bug(proofs.reads(10, Span(10, 5)))
class RangeBeyondTheEndIsNotFound(Bucket):
    """The reply 416 is raised as `NotFound`, like any 4xx of a read.

    Breaks "A span that begins at or beyond the end reads as empty": an object is called lost.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data = await super().get(key, span)
        if isinstance(span, Span) and span.length and not data:
            raise NotFound(key)
        return data


async def _delete_many(open_: Open) -> None:
    store = open_()
    await proofs.fill(store, ["d/1", "d/2"])
    await store.delete([f"d/{number}" for number in range(1001)])
    assert await proofs.names(store, "d/") == []


@bug(_delete_many)
class AllKeysInOneDelete(Bucket):
    """Any number of keys goes into one request, and the server takes a thousand.

    Breaks "Remove these objects, any number of them".
    """

    async def delete(self, keys: Sequence[str]) -> None:
        names = list(dict.fromkeys(check_key(key) for key in keys))
        if names:
            client = await self.client()
            call = client.delete_objects(
                Bucket=self.bucket, Delete={"Objects": [{"Key": key} for key in names]}
            )
            await self.explain(call, "delete", mutation=True)


@bug(proofs.uploads([5 * 2**20, 5 * 2**20, 3], order=[3, 1, 2]))
class PartsAreListedAsTheyCame(Bucket):
    """`complete` names the parts in the order in which they came, which the server refuses.

    Breaks "parts may be put in any order".
    """

    async def start_upload(self, key: str) -> Upload:
        upload = await super().start_upload(key)
        assert isinstance(upload, S3Upload)
        return _AsTheyCame(self, key, upload._where, keyed={})


class _AsTheyCame(S3Upload):
    async def complete(self) -> None:
        if not self._parts or sorted(self._parts) != [*range(1, len(self._parts) + 1)]:
            raise Misuse("a part is missing")
        client = await self._store.client()
        parts = {"Parts": list(self._parts.values())}
        call = client.complete_multipart_upload(MultipartUpload=parts, **self._where)
        await self._store.explain(call, "complete", key=self._key, mutation=True)


@bug(proofs.uploads([5 * 2**20, 3]))
class SumOfSumsIsTaken(Bucket):
    """The checksum of an object in parts is one of its parts' checksums, and is returned as that of the
    object.

    Breaks "Where `stored_crc32c` returns a number, it is the object's CRC-32C": `verify` calls sound
    fragments damaged.
    """

    async def stored_crc32c(self, key: str) -> int | None:
        client = await self.client()
        call = client.head_object(Bucket=self.bucket, Key=check_key(key), ChecksumMode="ENABLED")
        try:
            reply = await self.explain(call, "ask", key=key)
        except TryAgain:
            raise
        except OffloadError as exc:
            raise NotFound(key) from exc
        stored = reply.get("ChecksumCRC32C", "").partition("-")[0]
        return int.from_bytes(base64.b64decode(stored), "big") if stored else None


@bug(proofs.key_round("a b+c%2Fd"))
class KeysAreDecodedAsForms(Bucket):
    """The listing is asked for with `encoding-type=url`, and its keys are decoded with `unquote_plus`.

    Breaks "Every object whose key begins with `prefix`": a key with a `+` is listed with a blank.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        async for row in super().list(prefix, after=after):
            yield Listed(unquote_plus(quote(row.key, safe="/+")), row.size_bytes)
