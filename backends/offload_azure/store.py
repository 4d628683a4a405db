"""A container of Azure Blob Storage as an object store.

Requests go out through the clients of Azure's SDK, one request for each call (`client`, `transport`). Their
caches, retries and splitting are off: the decorators of `offload.store` do that in one place. Invariants:

- A create is decided by one request with `If-None-Match: *`.
- An object becomes visible whole, by a Put Blob or a Put Block List.
- Every object is encrypted as the options ask, commits too.
- A read returns the span that was asked for, of one version of the object.
- The code of a reply decides what it means, in `failures`.

If the reply to a create is lost, this store raises `OutcomeUnknown` and asks nothing: the object may still
appear. The commit protocol lists, and reads the object if there is one (`offload.commit.log`).

Sources: the REST reference of Azure Blob Storage. Differences of emulators are noted in comments.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import aclosing
from functools import cached_property
from typing import Any, Final, NoReturn, TypeVar

from azure.core import MatchConditions
from azure.storage.blob import BlobProperties, CustomerProvidedEncryptionKey, StandardBlobTier
from azure.storage.blob.aio import BlobClient
from offload_cloud.long_reads import LongReads, RangeReply, range_reply
from offload_cloud.metadata import beside, left_for_metadata
from offload_cloud.ranges import asked_for, exactly
from offload_cloud.transport import TransportReply

from offload.contracts.capabilities import Capabilities
from offload.contracts.object_metadata import NO_METADATA, check_metadata, read_metadata
from offload.contracts.signing import SignedReads, SignsReads
from offload.contracts.store import Body, Buffer, Listed, ObjectStore, Span, Suffix, Upload, check_key
from offload.ground.env import REAL_ENV, Env
from offload.ground.errors import AlreadyExists, Misuse, NotFound, OffloadError, TryAgain
from offload.store.buffers import BufferPool
from offload.store.multipart import check_create, check_put, put_in_parts, windows_in_memory
from offload.store.spans import clip
from offload_azure.client import PUT_SIZE_BYTES_MAX, AzureClient, open_client
from offload_azure.failures import FAILURES, code_of, explained, not_from_azure
from offload_azure.listing import FOLDER, Listing
from offload_azure.options import METADATA_SIZE_BYTES_MAX, PART_SIZE_BYTES_MAX, AzureOptions
from offload_azure.signing import read_urls
from offload_azure.sums import md5_of
from offload_azure.upload import AzureUpload, create_of_a_block

T = TypeVar("T")

PARTS_MAX: Final = 50_000
PARTS_AT_ONCE: Final = 4
DELETES_AT_ONCE: Final = 16
"""Each deletion is a request. Blob Batch takes 256 in one request for the same price, and no emulator accepts
the batches of the SDK's client."""

KEYS_REFUSED: Final = r"\\|\.(?:/|\Z)|[\x00-\x08\x0b\x0c\x0e-\x1f\ue000-\uffff]"
"""A pattern that no key may contain: see `check`."""

BEYOND_THE_END: Final = {"InvalidRange", "416"}
ABSENT: Final = {"BlobNotFound", "ResourceNotFound"}


class AzureStore(ObjectStore, SignsReads):
    """The container `container`. The client is made at the first request, on the event loop that asks.

    `place` is the container as a URL named it, perhaps with its account, for the `url` of this store.
    """

    def __init__(
        self,
        *,
        container: str,
        options: AzureOptions | None = None,
        place: str = "",
        env: Env = REAL_ENV,
    ) -> None:
        self.container: Final = container
        self.env: Final = env
        self._place = place or container
        self.options: Final = options or AzureOptions()
        self._client: AzureClient | None = None
        self._opening = asyncio.Lock()
        self._long_reads = LongReads(
            self._range_reply, BufferPool(), connections_max=self.options.connections_max
        )

    def __repr__(self) -> str:
        return f"AzureStore({self.url!r})"

    def __reduce__(self) -> NoReturn:
        """Raise `TypeError`: a store belongs to one event loop, and its pickle would hold credentials."""
        raise TypeError("a store cannot be pickled: send its URL and options, and open it there")

    @property
    def url(self) -> str:
        """`az://` and the container."""
        return f"az://{self._place}"

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of Azure. A probe must find out if an emulator honours `If-None-Match`."""
        return Capabilities(
            atomic_create=True,
            create_is_probed=True,
            strong_listing=True,
            multipart=True,
            unsized_put=True,
            part_size_bytes_max=PART_SIZE_BYTES_MAX,
            parts_max=PARTS_MAX,
            put_size_bytes_max=PARTS_MAX * PART_SIZE_BYTES_MAX,  # in blocks, as `put` sends large objects
            create_size_bytes_max=PUT_SIZE_BYTES_MAX,
            delete_batch_max=1,
            server_checksum="md5",
            keys_refused=KEYS_REFUSED,
            metadata_size_bytes_max=left_for_metadata(METADATA_SIZE_BYTES_MAX, self.options.metadata),
        )

    async def put(self, key: str, body: Body) -> None:
        """Send one Put Blob, or blocks if the object is large. Holds it, or a few parts, in memory."""
        check(key)
        metadata = check_put(key, body, self.capabilities)
        if body.size_bytes <= PUT_SIZE_BYTES_MAX:
            # `overwrite=True` sends no condition, so that a repeated put replaces the first one.
            windows, _ = await windows_in_memory(body)
            blob = await self.blob(key)
            await self._put(blob, key, windows, what="store", overwrite=True, **self.described(metadata))
        else:
            # Azure takes 50,000 blocks at most, so the blocks of a very large object are larger.
            size_bytes = max(self.options.part_size_bytes, -(-body.size_bytes // PARTS_MAX))
            await put_in_parts(self, key, body, part_size_bytes=size_bytes, at_once=PARTS_AT_ONCE)

    async def create(self, key: str, data: bytes) -> None:
        """Send one Put Blob with `If-None-Match: *`.

        Azurite refuses that for an absent object if an unfinished upload left blocks under its key. So after
        a refusal the store asks for the object. If it is absent, a list of one block is put on the same
        condition, so it can still lose against another create.
        """
        check_create(key, data, self.capabilities)
        try:
            # `overwrite=False` sends `If-None-Match: *`.
            await self._put(await self.blob(check(key)), key, [data], what="create", overwrite=False)
        except AlreadyExists as exc:
            # With another code, or an object that exists or cannot be asked for, the create has lost.
            if code_of(exc.__cause__) != "BlobAlreadyExists" or not await self._is_absent(key):
                raise
            await create_of_a_block(self, key, data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> Buffer:
        """Send one GET; for a suffix a HEAD before it, because Azure has no ranges from the end.

        A range beyond the object's end (416) reads as empty.
        """
        wanted = asked_for(span)
        data: Buffer
        match wanted:
            case Span():
                data = await self.ask(self._long_reads.get(check(key), wanted), f"read {key!r}", key=key)
            case Suffix():
                data = await self._read_end(check(key), wanted)
            case _:
                data = await self._read(check(key), 0, None)
        # An empty span was requested as one byte, which proves that the object exists (`asked_for`).
        return data if span is None or span.length else b""

    async def stored_crc32c(self, key: str) -> int | None:
        """Return None: the service keeps an MD5 of some objects, and a CRC-32C of none."""
        check(key)
        return None

    async def metadata_of(self, key: str) -> Mapping[str, str]:
        """Send one HEAD. Raises `NotFound`."""
        seen = await self._properties(check(key))
        return read_metadata((seen.metadata or {}).items(), where=f"{self.url}: {key!r}")

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """Send List Blobs, page by page. If `after` is no object, the pages before it are read as well."""
        if not _begins_a_key(prefix):
            return
        listing = await self._listing(prefix)
        async with aclosing(listing.rows(prefix, after)) as rows:
            async for row in rows:
                yield row

    async def level(self, prefix: str) -> AsyncIterator[str]:
        """Send List Blobs with a delimiter, page by page."""
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
        """Send Delete Blob for each key, several at a time. It deletes the snapshots of an object too."""
        # All keys are checked before the first request. The workers share the iterator.
        names = iter([check(key) for key in keys])

        async def work() -> None:
            for name in names:
                await self._delete(name)

        try:
            # The first failure cancels the other workers. The caller may repeat the whole call: keys that
            # are gone by then are absent, which is no error.
            async with asyncio.TaskGroup() as group:
                for _ in range(min(DELETES_AT_ONCE, len(keys))):
                    group.create_task(work())
        except BaseExceptionGroup as errors:
            # The port raises one error, not a group.
            raise errors.exceptions[0] from None

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        """Begin an upload, without a request: the service knows it from its first block on.

        The metadata is sent with the list of blocks, which makes the object.
        """
        described = self.described(check_metadata(metadata, self.capabilities))
        return AzureUpload(self, check(key), described)

    async def signed_reads(self, keys: Sequence[str], *, seconds: int) -> SignedReads:
        """Sign a read of each key by a SAS token. Raises `Misuse` unless the account's key is known."""
        container = (await self.client()).container
        names = [check(key) for key in keys]
        return read_urls(
            container, self.options, names, seconds=seconds, where=self.url, now_ms=self.env.now_ms
        )

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        self._long_reads.close()
        # Forgotten before the first await, so that a second call at the same time closes nothing twice.
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def client(self) -> AzureClient:
        """Return the clients, made on first use."""
        async with self._opening:
            # One at a time: requests that arrive meanwhile wait for the same client.
            if self._client is None:
                self._client = await open_client(self.options, self.container)
            return self._client

    async def blob(self, key: str) -> BlobClient:
        """Return the client of one blob."""
        return (await self.client()).container.get_blob_client(key)

    async def ask(self, call: Awaitable[T], what: str, *, key: str = "", mutation: bool = False) -> T:
        """Await one request, and raise the port's errors for those of the client."""
        try:
            return await call
        except OffloadError:
            raise  # already the port's; `Misuse` is a ValueError too, which `FAILURES` contains
        except FAILURES as exc:
            raise explained(
                exc, what=what, where=self.url, key=key, mutation=mutation, now_ms=self.env.now_ms
            ) from exc

    @cached_property
    def encrypted(self) -> dict[str, Any]:
        """The settings that encrypt every object at rest."""
        scope = self.options.encryption_scope
        return self._keyed | ({"encryption_scope": scope} if scope else {})

    def described(self, metadata: Mapping[str, str]) -> dict[str, Any]:
        """Return the settings of an object with this metadata. It precedes that of the options."""
        if not metadata:
            return self._kept
        return {**self._kept, "metadata": beside(metadata, self.options.metadata)}

    @cached_property
    def _kept(self) -> dict[str, Any]:
        """The access tier, tags and metadata of fragments, as settings of a request."""
        options = self.options
        wanted = {
            "standard_blob_tier": StandardBlobTier(options.access_tier) if options.access_tier else None,
            "tags": options.tags,
            "metadata": options.metadata,
        }
        return {name: value for name, value in wanted.items() if value}

    @cached_property
    def _keyed(self) -> dict[str, Any]:
        """The settings of every request about an object's bytes if the key is the caller's own."""
        if self.options.cpk_key is None:
            return {}
        key = self.options.cpk_key.get_secret_value()
        digest = hashlib.sha256(base64.b64decode(key)).digest()
        return {"cpk": CustomerProvidedEncryptionKey(key, base64.b64encode(digest).decode())}

    async def _put(
        self, blob: BlobClient, key: str, windows: Sequence[Buffer], *, what: str, **settings: Any
    ) -> None:
        # The service refuses bytes that do not match the MD5, and keeps it: a read of the whole object is
        # compared with it.
        md5 = await md5_of(windows)
        # The client would join the windows. So it signs their size, and the transport sends them.
        size_bytes = sum(map(len, windows))
        call = blob.upload_blob(
            b"",
            length=size_bytes,
            windows=windows,
            headers={"Content-MD5": md5},
            **settings,
            **self.encrypted,
        )
        await self.ask(call, f"{what} {key!r}", key=key, mutation=True)

    async def _range_reply(self, key: str, span: Span) -> RangeReply | None:
        """Send one GET for a span, and return its reply while the body is on its way."""
        opened: list[TransportReply] = []
        try:
            head = await self._ask_for(key, span.start, span.length, opened=opened.append)
            if head is None:
                return None
            [body] = opened
            return range_reply(
                body,
                span,
                status=body.status,
                content_range=body.headers.get("content-range"),
                size_bytes=body.check_body(),
                where=f"{self.url}: {key!r}",
            )
        except BaseException:
            for body in opened:
                body.close()
            raise

    async def _read(self, key: str, start: int, length: int | None, **conditions: Any) -> bytes:
        """Send one GET, and return its body. Compares the MD5 of a whole object (`length` is None)."""
        reply = await self._ask_for(key, start, length, **conditions)
        if reply is None:
            return b""
        # No object is as long: this span means everything from `start` on.
        asked, where = Span(start, 2**62 if length is None else length), f"{self.url}: {key!r}"
        content_range = reply.headers.get("Content-Range")
        data = exactly(
            asked, reply.body(), status=reply.status_code, content_range=content_range, where=where
        )
        # The MD5 is that of the whole object, so it says nothing about a part.
        if length is None:
            await make_sure_of_sum(data, reply.headers.get("x-ms-blob-content-md5"), where)
        return data

    async def _ask_for(self, key: str, start: int, length: int | None, **settings: Any) -> Any:
        """Send one GET, and return its reply in the form of the SDK; None if the object ends before."""
        blob, what = await self.blob(key), f"read {key!r}"
        # The client returns bytes alone, and sends another request if they are too few. The hook keeps the
        # reply, whose headers say which part it is.
        replies: list[Any] = []
        call = blob.download_blob(
            offset=start, length=length, raw_response_hook=replies.append, **settings, **self._keyed
        )
        try:
            await self.ask(call, what, key=key)
        except Misuse as exc:  # the client cannot read a reply without `Content-Range`
            # Without a reply the client refused to send, such as the caller's key over plain HTTP. That
            # stays `Misuse`.
            if not replies:
                raise
            raise not_from_azure(what, where=self.url) from exc
        except OffloadError as exc:
            if code_of(exc.__cause__) not in BEYOND_THE_END:
                raise
            if self.options.hierarchical_namespace:
                await self._properties(key)  # it may be a folder, which reads as empty too
            return None
        reply = replies[-1].http_response
        # The service stores a folder as a blob without bytes, which would read as an empty object.
        if reply.headers.get(f"x-ms-meta-{FOLDER}") == "true":
            raise NotFound(key, store=self.url)
        return reply

    async def _properties(self, key: str) -> BlobProperties:
        """Send one HEAD. Raises `NotFound` for a folder as well."""
        blob = await self.blob(key)
        seen = await self.ask(blob.get_blob_properties(**self._keyed), f"read {key!r}", key=key)
        if not seen.etag:  # every object has one, and the client reads its absence as an object of no bytes
            raise not_from_azure(f"read {key!r}", where=self.url)
        if (seen.metadata or {}).get(FOLDER) == "true":
            raise NotFound(key, store=self.url)
        return seen

    async def _is_absent(self, key: str) -> bool:
        """Return True if the service says that the object is absent; False otherwise, also on any error."""
        try:
            await self._properties(key)
        except NotFound:
            return True
        # Any doubt counts as an object that exists. Then the create has lost, and its caller reads back.
        except OffloadError:
            return False
        return False

    async def _read_end(self, key: str, wanted: Suffix) -> bytes:
        """Return the end of the version whose size was read. Raises `TryAgain` if another replaces it."""
        seen = await self._properties(key)
        start, end = clip(wanted, seen.size)
        if start == end:
            return b""
        # Without the condition, a new version of another size would return bytes that are not its end.
        same = {"etag": seen.etag, "match_condition": MatchConditions.IfNotModified}
        return await self._read(key, start, end - start, **same)

    async def _delete(self, key: str) -> None:
        blob = await self.blob(key)
        try:
            call = blob.delete_blob(delete_snapshots="include")
            await self.ask(call, f"delete {key!r}", key=key, mutation=True)
        except OffloadError as exc:
            # Absent is what the caller wants; perhaps an earlier try deleted it, and its reply was lost.
            if code_of(exc.__cause__) not in ABSENT:
                raise


def check(key: str) -> str:
    """Return `key`. Raises `Misuse` if it is no key, or if Azure would take it for another one.

    The service reads a backslash as a slash, and drops dots at the end of a part. It sorts by UTF-16, which
    puts U+E000 to U+FFFF behind all characters beyond them. Without those, its order is that of the bytes.
    Its listings are XML, which cannot hold most control characters.
    """
    check_key(key)
    if re.search(KEYS_REFUSED, key):
        raise Misuse(
            f"{key!r} is no key in Azure, which reads \\ as /, drops dots at the end of a part, sorts "
            "U+E000 to U+FFFF behind all other characters, and lists no control characters"
        )
    return key


def _begins_a_key(prefix: str) -> bool:
    """Return True if a key can begin with `prefix`. The service answers 500 to some other prefixes."""
    try:
        check(prefix + "x")
    except Misuse:
        return False
    return True


async def make_sure_of_sum(data: bytes, stored: str | None, where: str) -> None:
    """Raise `TryAgain` if the service keeps another MD5 of the object than the bytes that arrived have.

    The service keeps none of an object that was stored in blocks.
    """
    if stored and (found := await md5_of([data])) != stored:
        raise TryAgain(f"{where} was damaged on the way: its MD5 is {stored}, the reply has {found}")
