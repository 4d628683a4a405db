"""A container of Azure Blob Storage as an object store.

Requests go out through the clients of Azure's SDK, one request for one call (`client`, `transport`): what
would cache, retry or cut is off, because the decorators of `offload.store` do that in one place.
Invariants: a create is always one single request with `If-None-Match: *`; an object becomes visible
whole, by a Put Blob or a Put Block List; every object is encrypted as the options ask, commits too; what
is read is the span that was asked for, of one version of the object; what a reply means is decided by
its code, in `failures`.

Sources: the REST reference of Azure Blob Storage. What emulators do differently is noted where it matters.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import aclosing
from functools import cached_property
from typing import Any, Final, NoReturn, TypeVar

from azure.core import MatchConditions
from azure.storage.blob import BlobProperties, CustomerProvidedEncryptionKey, StandardBlobTier
from azure.storage.blob.aio import BlobClient
from offload_cloud.ranges import asked_for, exactly

from offload.contracts.capabilities import Capabilities
from offload.contracts.store import Body, Listed, ObjectStore, Span, Suffix, Upload, check_key
from offload.errors import AlreadyExists, Misuse, NotFound, OffloadError, TryAgain
from offload.store.parts import check_create, put_in_parts, whole
from offload.store.spans import clip
from offload_azure.client import PUT_SIZE_BYTES_MAX, AzureClient, open_client
from offload_azure.failures import FAILURES, code_of, explained
from offload_azure.listing import FOLDER, Listing
from offload_azure.options import PART_SIZE_BYTES_MAX, AzureOptions
from offload_azure.sums import md5_of
from offload_azure.upload import AzureUpload, create_of_a_block

T = TypeVar("T")

PARTS_MAX: Final = 50_000
PARTS_AT_ONCE: Final = 4
DELETES_AT_ONCE: Final = 16
"""Each is a request. Blob Batch would take 256 in one, costs the same, and no emulator takes the client's."""

KEYS_REFUSED: Final = r"\\|\.(?:/|\Z)|[\ue000-\uffff]"
"""What no key may have in it: see `check`."""

BEYOND_THE_END: Final = {"InvalidRange", "416"}
ABSENT: Final = {"BlobNotFound", "ResourceNotFound"}


class AzureStore(ObjectStore):
    """The container `container`. The client is made at the first request, on the event loop that asks.

    `place` is the container as a URL named it, perhaps with its account: where this store can be found again.
    """

    def __init__(self, *, container: str, options: AzureOptions | None = None, place: str = "") -> None:
        self.container: Final = container
        self._place = place or container
        self.options: Final = options or AzureOptions()
        self._client: AzureClient | None = None
        self._opening = asyncio.Lock()

    def __repr__(self) -> str:
        return f"AzureStore({self.url!r})"

    def __reduce__(self) -> NoReturn:
        """A store is one event loop's own, and its pickle would hold credentials."""
        raise TypeError("a store cannot be pickled: send its URL and options, and open it there")

    @property
    def url(self) -> str:
        """`az://` and the container."""
        return f"az://{self._place}"

    @property
    def capabilities(self) -> Capabilities:
        """Those of Azure. Whether an emulator keeps create-if-absent, a probe must find out."""
        return Capabilities(
            atomic_create=True,
            create_is_probed=True,
            strong_listing=True,
            multipart=True,
            part_size_bytes_max=PART_SIZE_BYTES_MAX,
            parts_max=PARTS_MAX,
            put_size_bytes_max=5000 * 2**20,
            create_size_bytes_max=PUT_SIZE_BYTES_MAX,
            delete_batch_max=1,
            server_checksum="md5",
            keys_refused=KEYS_REFUSED,
        )

    async def put(self, key: str, body: Body) -> None:
        """One Put Blob, or blocks where the object is large. Memory: the object, or a few parts of it."""
        check(key)
        if body.size_bytes <= PUT_SIZE_BYTES_MAX:
            await self._put(key, await whole(body), what="store", overwrite=True, **self.kept)
        else:
            size_bytes = max(self.options.part_size_bytes, -(-body.size_bytes // PARTS_MAX))
            await put_in_parts(self, key, body, part_size_bytes=size_bytes, at_once=PARTS_AT_ONCE)

    async def create(self, key: str, data: bytes) -> None:
        """One Put Blob with `If-None-Match: *`.

        Azurite refuses it for an object that is not there, if blocks of an unfinished upload are. So what
        exists is looked at; and where it does not, a list of one block is put, on the same condition.
        """
        check_create(key, data, self.capabilities)
        try:
            await self._put(check(key), data, what="create", overwrite=False)
        except AlreadyExists as exc:
            if code_of(exc.__cause__) != "BlobAlreadyExists" or not await self._is_absent(key):
                raise
            await create_of_a_block(self, key, data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        """One GET; for a suffix a HEAD before it, as Azure knows no range from the end.

        What the service answers to a range that it does not have (416) reads as empty.
        """
        blob = await self.blob(check(key))
        wanted = asked_for(span)
        match wanted:
            case Span(start, length):
                data = await self._read(blob, key, start, length)
            case Suffix():
                data = await self._read_end(blob, key, wanted)
            case _:
                data = await self._read(blob, key, 0, None)
        return data if span is None or span.length else b""

    async def stored_crc32c(self, key: str) -> int | None:
        """None: the service keeps an MD5 of some objects, and a CRC-32C of none."""
        check(key)
        return None

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """List Blobs, page by page. Where `after` is no object, the pages before it are read as well."""
        if not _begins_a_key(prefix):
            return
        listing = await self._listing(prefix)
        async with aclosing(listing.rows(prefix, after)) as rows:
            async for row in rows:
                yield row

    async def level(self, prefix: str) -> AsyncIterator[str]:
        """List Blobs with a delimiter, page by page."""
        if not _begins_a_key(prefix):
            return
        listing = await self._listing(prefix)
        async with aclosing(listing.level(prefix)) as names:
            async for name in names:
                yield name

    async def _listing(self, prefix: str) -> Listing:
        client = await self.client()

        async def ask(call: Awaitable[T]) -> T:
            return await self.ask(call, f"list {prefix!r}")

        return Listing(client.container, ask, where=self.url, sort=self.options.hierarchical_namespace)

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete Blob for each key, some at a time. Snapshots of an object go with it."""
        names = iter([check(key) for key in keys])

        async def work() -> None:
            for name in names:
                await self._delete(name)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(DELETES_AT_ONCE, len(keys))):
                    group.create_task(work())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def start_upload(self, key: str) -> Upload:
        """No request: an upload begins with its first block."""
        return AzureUpload(self, check(key))

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def client(self) -> AzureClient:
        """The client, made on first use."""
        async with self._opening:
            if self._client is None:
                self._client = await open_client(self.options, self.container)
            return self._client

    async def blob(self, key: str) -> BlobClient:
        """The client of one blob."""
        return (await self.client()).container.get_blob_client(key)

    async def ask(self, call: Awaitable[T], what: str, *, key: str = "", mutation: bool = False) -> T:
        """Await one request, and turn what the client raises into the port's errors."""
        try:
            return await call
        except OffloadError:
            raise
        except FAILURES as exc:
            raise explained(exc, what=what, where=self.url, key=key, mutation=mutation) from exc

    @cached_property
    def encrypted(self) -> dict[str, Any]:
        """How every object is encrypted at rest."""
        scope = self.options.encryption_scope
        return self._keyed | ({"encryption_scope": scope} if scope else {})

    @cached_property
    def kept(self) -> dict[str, Any]:
        """How fragments are kept, and what is written on them."""
        options = self.options
        wanted = {
            "standard_blob_tier": StandardBlobTier(options.access_tier) if options.access_tier else None,
            "tags": options.tags,
            "metadata": options.metadata,
        }
        return {name: value for name, value in wanted.items() if value}

    @cached_property
    def _keyed(self) -> dict[str, Any]:
        """What every request about an object's bytes carries where the key is the caller's own."""
        if self.options.cpk_key is None:
            return {}
        key = self.options.cpk_key.get_secret_value()
        digest = hashlib.sha256(base64.b64decode(key)).digest()
        return {"cpk": CustomerProvidedEncryptionKey(key, base64.b64encode(digest).decode())}

    async def _put(self, key: str, data: bytes, *, what: str, **settings: Any) -> None:
        md5 = await md5_of(data)
        blob = await self.blob(key)
        call = blob.upload_blob(
            data, length=len(data), headers={"Content-MD5": md5}, **settings, **self.encrypted
        )
        await self.ask(call, f"{what} {key!r}", key=key, mutation=True)

    async def _read(
        self, blob: BlobClient, key: str, start: int, length: int | None, **conditions: Any
    ) -> bytes:
        replies: list[Any] = []
        where = f"{self.url}: {key!r}"

        async def read() -> bytes:
            call = blob.download_blob(
                offset=start, length=length, raw_response_hook=replies.append, **conditions, **self._keyed
            )
            try:
                data: bytes = await (await call).readall()
            except ValueError as exc:
                if not replies:
                    raise
                raise TryAgain(
                    f"{where}: the reply does not say which part it is; is that a blob service?"
                ) from exc
            return data

        try:
            data = await self.ask(read(), f"read {key!r}", key=key)
        except OffloadError as exc:
            if code_of(exc.__cause__) not in BEYOND_THE_END:
                raise
            if self.options.hierarchical_namespace:
                await self._properties(blob, key)  # it may be a folder, which reads as empty too
            return b""
        reply = replies[-1].http_response
        if reply.headers.get(f"x-ms-meta-{FOLDER}") == "true":
            raise NotFound(key, store=self.url)
        asked = Span(start, 2**62 if length is None else length)
        content_range = reply.headers.get("Content-Range")
        data = exactly(asked, data, status=reply.status_code, content_range=content_range, where=where)
        if length is None:
            await make_sure_of_sum(data, reply.headers.get("x-ms-blob-content-md5"), where)
        return data

    async def _properties(self, blob: BlobClient, key: str) -> BlobProperties:
        """One HEAD. Raises `NotFound` for a folder as well."""
        seen = await self.ask(blob.get_blob_properties(**self._keyed), f"read {key!r}", key=key)
        if (seen.metadata or {}).get(FOLDER) == "true":
            raise NotFound(key, store=self.url)
        return seen

    async def _is_absent(self, key: str) -> bool:
        """Whether the service says so, where it can be asked."""
        try:
            await self._properties(await self.blob(key), key)
        except NotFound:
            return True
        except OffloadError:
            return False
        return False

    async def _read_end(self, blob: BlobClient, key: str, wanted: Suffix) -> bytes:
        """The end of the very version whose size was asked for; if it is replaced in between, `TryAgain`."""
        seen = await self._properties(blob, key)
        if not seen.etag:
            raise TryAgain(f"{self.url}: {key!r}: the reply names no version; is that a blob service?")
        start, end = clip(wanted, seen.size)
        if start == end:
            return b""
        same = {"etag": seen.etag, "match_condition": MatchConditions.IfNotModified}
        return await self._read(blob, key, start, end - start, **same)

    async def _delete(self, key: str) -> None:
        blob = await self.blob(key)
        try:
            call = blob.delete_blob(delete_snapshots="include")
            await self.ask(call, f"delete {key!r}", key=key, mutation=True)
        except OffloadError as exc:
            if code_of(exc.__cause__) not in ABSENT:
                raise


def check(key: str) -> str:
    """Return `key`, or raise `Misuse` where it is none, or where Azure would take it for another.

    The service reads a backslash as a slash, and drops dots at the end of a part. It sorts by UTF-16, which
    puts U+E000 to U+FFFF behind all that lies beyond; without those its order is that of the bytes.
    """
    check_key(key)
    if re.search(KEYS_REFUSED, key):
        raise Misuse(
            f"{key!r} is no key in Azure, which reads \\ as /, drops dots at the end of a part, and sorts "
            "U+E000 to U+FFFF behind all other characters"
        )
    return key


def _begins_a_key(prefix: str) -> bool:
    """Whether any key begins with `prefix`. The service answers 500 to some that do not."""
    try:
        check(prefix + "x")
    except Misuse:
        return False
    return True


async def make_sure_of_sum(data: bytes, stored: str | None, where: str) -> None:
    """Raise `TryAgain` where the MD5 that the service keeps of the object is not that of what arrived.

    Of an object in blocks it keeps none.
    """
    if stored and (found := await md5_of(data)) != stored:
        raise TryAgain(f"{where} was damaged on the way: its MD5 is {stored}, what came has {found}")
