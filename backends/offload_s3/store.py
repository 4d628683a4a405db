"""A bucket of S3, or of a server that speaks its protocol, as an object store.

Requests go out through the client that s3fs sets up (aiobotocore), one request for each call. The caches and
retries of s3fs are not used, and the client's retries are off: the decorators of `offload.store` cache and
retry in one place. Invariants:

- A create is always one PUT with `If-None-Match: *`.
- An object becomes visible whole: by a PUT, or by the completion of a multipart upload. A failed upload is
  aborted.
- Every object is encrypted as the options ask, commits too.
- A read returns the span that was asked for, whole and as it was stored.
- The code of a refusal decides what it means, in `failures`. A success is proved by what the reply contains
  (`proofs`). One without its proof is tried again, as if it had not arrived.

If the reply to a create is lost, this store raises `OutcomeUnknown` and asks nothing: the object may still
appear. The commit protocol lists, and reads the object if there is one (`offload.commit.log`).

Sources: the API reference of Amazon S3. Differences of other servers are noted in comments.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from datetime import UTC
from functools import cached_property, partial
from typing import Any, Final, NoReturn, TypeVar
from urllib.parse import urlencode

import s3fs
from botocore.exceptions import ClientError
from offload_cloud.bodies import WindowsBody
from offload_cloud.long_reads import LongReads, RangeReply, range_reply
from offload_cloud.metadata import beside, left_for_metadata
from offload_cloud.prefixes import begins_a_key
from offload_cloud.ranges import exactly, range_of
from offload_cloud.sums import check_sum

from offload.contracts.capabilities import Capabilities
from offload.contracts.object_metadata import NO_METADATA, check_metadata, read_metadata
from offload.contracts.signing import SignedReads, SignsReads
from offload.contracts.store import (
    Body,
    Buffer,
    Listed,
    ObjectStore,
    Span,
    Suffix,
    Unfinished,
    Upload,
    check_key,
)
from offload.formats.checksums import crc32c
from offload.ground.env import REAL_ENV, Env
from offload.ground.errors import Denied, NotFound, OffloadError, TryAgain
from offload.store.buffers import BufferPool
from offload.store.multipart import check_create, check_put, put_in_parts, windows_in_memory
from offload_s3.client import file_system, opened
from offload_s3.failures import FAILURES, code_of, explained, not_from_s3, status_of
from offload_s3.options import METADATA_SIZE_BYTES_MAX, S3Options
from offload_s3.proofs import (
    S3Proof,
    has_no_content,
    is_page,
    is_page_of_uploads,
    is_tagged,
    is_upload,
    results_for,
)
from offload_s3.session import reply_of, safely_parsed
from offload_s3.signing import refuse_to_sign, signed_by
from offload_s3.upload import S3Upload

T = TypeVar("T")

PUT_SIZE_BYTES_MAX: Final = 128 * 2**20
"""The largest object that goes up as one PUT: atomic, and at 64 MiB faster than parts. S3 takes 5 GiB."""

DELETE_BATCH_MAX: Final = 1000
NO_XML: Final = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
"""Characters that no document in XML can hold, in any way."""

PARTS_MAX: Final = 10_000
PARTS_AT_ONCE: Final = 4
BEYOND_THE_END: Final = {"InvalidRange", "416"}
NOT_FOUND: Final = 404


class S3Store(ObjectStore, SignsReads):
    """The bucket `bucket`. The client is made at the first request, on the event loop that asks."""

    def __init__(self, *, bucket: str, options: S3Options | None = None, env: Env = REAL_ENV) -> None:
        self.bucket: Final = bucket
        self._env = env
        self.options: Final = options or S3Options()
        self._files: s3fs.S3FileSystem | None = None
        self._data_files: s3fs.S3FileSystem | None = None
        self._opening = asyncio.Lock()
        self._long_reads = LongReads(
            self._range_reply, BufferPool(), connections_max=self.options.connections_max
        )

    def __repr__(self) -> str:
        return f"S3Store({self.url!r})"

    def __reduce__(self) -> NoReturn:
        """Raise `TypeError`: a store belongs to one event loop, and its pickle would hold credentials."""
        raise TypeError("a store cannot be pickled: send its URL and options, and open it there")

    @property
    def url(self) -> str:
        """`s3://` and the bucket."""
        return f"s3://{self.bucket}"

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of S3. A probe must find out if a compatible server honours `If-None-Match`."""
        return Capabilities(
            atomic_create=True,
            create_is_probed=True,
            strong_listing=True,
            multipart=True,
            unsized_put=True,
            part_size_bytes_min=5 * 2**20,
            part_size_bytes_max=5 * 2**30,
            parts_max=PARTS_MAX,
            put_size_bytes_max=5 * 2**40,  # in parts, as `put` sends large objects
            create_size_bytes_max=PUT_SIZE_BYTES_MAX,
            delete_batch_max=DELETE_BATCH_MAX,
            server_checksum="crc32c",
            metadata_size_bytes_max=left_for_metadata(METADATA_SIZE_BYTES_MAX, self.options.metadata),
        )

    async def put(self, key: str, body: Body) -> None:
        """Send one PUT, or parts if the object is large. Holds the object or a few parts of it in memory."""
        check_key(key)
        metadata = check_put(key, body, self.capabilities)
        if body.size_bytes <= PUT_SIZE_BYTES_MAX:
            # Without a condition: `RetryingStore` repeats a put whose outcome is unknown. A condition would
            # refuse the repeat if the first put had arrived.
            windows, checksum = await windows_in_memory(body)
            await self._put(key, windows, checksum, what="store", **self._described(metadata))
        else:
            # S3 takes 10,000 parts at most, so the parts of a very large object are larger.
            size_bytes = max(self.options.part_size_bytes, -(-body.size_bytes // PARTS_MAX))
            await put_in_parts(self, key, body, part_size_bytes=size_bytes, at_once=PARTS_AT_ONCE)

    async def create(self, key: str, data: bytes) -> None:
        """Send one PUT with `If-None-Match: *`."""
        check_create(key, data, self.capabilities)
        # Never in parts: the object must appear by one request, which either finds the key free or fails.
        await self._put(check_key(key), [data], crc32c(data), what="create", creates=True)

    async def get(self, key: str, span: Span | Suffix | None = None) -> Buffer:
        """Send one GET. A range beyond the object's end (416) reads as empty."""
        wanted = range_of(span)
        if isinstance(span, Span) and span.length:
            return await self.explain(self._long_reads.get(check_key(key), span), f"read {key!r}", key=key)
        # The store keeps the checksum of the whole object, and sends none with a part of it.
        ranged = {"ChecksumMode": "ENABLED"} if wanted is None else {"Range": wanted}
        call = self._read(Bucket=self.bucket, Key=check_key(key), **ranged, **self._keyed, **self._payer)
        try:
            data, reply = await self.explain(call, f"read {key!r}", key=key)
        except OffloadError as exc:
            if isinstance(exc.__cause__, ClientError) and code_of(exc.__cause__) in BEYOND_THE_END:
                return b""
            raise
        where = f"{self.url}: {key!r}"
        if span is None:
            await check_sum(partial(make_sure_of_checksum, data, reply, where), len(data))
        status = reply["ResponseMetadata"]["HTTPStatusCode"]
        return exactly(span, data, status=status, content_range=reply.get("ContentRange"), where=where)

    async def stored_crc32c(self, key: str) -> int | None:
        """Send HeadObject. Return None if the store has only a checksum of the parts' checksums."""
        reply = await self._head(key, f"ask for the checksum of {key!r}", ChecksumMode="ENABLED")
        stored = checksum_in(reply)
        return None if stored is None else int.from_bytes(base64.b64decode(stored), "big")

    async def metadata_of(self, key: str) -> Mapping[str, str]:
        """Send HeadObject. Raises `NotFound`."""
        where = f"{self.url}: {key!r}"
        reply = await self._head(key, f"ask for the metadata of {key!r}")
        return read_metadata(reply.get("Metadata", {}).items(), where=where)

    async def _head(self, key: str, what: str, **wanted: str) -> Any:
        client = await self.client()
        call = client.head_object(
            Bucket=self.bucket, Key=check_key(key), **wanted, **self._keyed, **self._payer
        )
        try:
            return await self.ask(call, what, proof=is_tagged, key=key)
        except Denied as exc:
            # The reply to a HEAD has no body, and some servers send no S3 header with a 404. `failures` takes
            # such a reply for that of a web server, because nothing in it shows the difference.
            if isinstance(exc.__cause__, ClientError) and status_of(exc.__cause__) == NOT_FOUND:
                raise NotFound(key, store=self.url) from exc.__cause__
            raise

    async def retained(self, key: str) -> str | None:
        """Send HeadObject. It names the version, if the bucket keeps versions, and the lock on it."""
        reply = await self._head(key, f"ask for the version of {key!r}")
        if reply.get("VersionId") in {None, "null"}:
            return None
        until = reply.get("ObjectLockRetainUntilDate")
        locked = f", locked until {until.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if until else ""
        return f"the bucket keeps deleted objects as versions{locked}"

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """Send ListObjectsV2, page by page. Keys come in the order of their bytes."""
        start = {"StartAfter": after} if after else {}
        async for page in self._pages(prefix, **start):
            for row in page.get("Contents", ()):
                yield Listed(row["Key"], row["Size"])

    async def level(self, prefix: str) -> AsyncIterator[str]:
        """Send ListObjectsV2 with a delimiter. Folders come between the keys, in one order."""
        async for page in self._pages(prefix, Delimiter="/"):
            # A page has its keys and its folders in two lists, and each list is in order.
            names = [row["Key"] for row in page.get("Contents", ())]
            for name in sorted(names + [row["Prefix"] for row in page.get("CommonPrefixes", ())]):
                yield name

    async def _pages(self, prefix: str, **wanted: str) -> AsyncIterator[dict[str, Any]]:
        if not begins_a_key(prefix):
            return
        following: dict[str, str] = {}
        while True:
            client = await self.client()
            asked = wanted | following
            if following:
                # The token says where the next page begins.
                asked.pop("StartAfter", None)
            call = client.list_objects_v2(Bucket=self.bucket, Prefix=prefix, **asked, **self._payer)
            page = await self.ask(call, f"list {prefix!r}", proof=is_page(self.bucket))
            yield page
            if not page["IsTruncated"]:
                return
            following = {"ContinuationToken": page["NextContinuationToken"]}

    async def delete(self, keys: Sequence[str]) -> None:
        """Send DeleteObjects, a thousand keys at a time. Keys that its XML cannot hold go one by one."""
        # No key twice in one request: Ceph's gateway 16.2 may crash then.
        everything = dict.fromkeys(check_key(key) for key in keys)
        for key in filter(NO_XML.search, everything):
            client = await self.client()
            call = client.delete_object(Bucket=self.bucket, Key=key, **self._payer)
            await self.ask(call, f"delete {key!r}", proof=has_no_content, mutation=True)
        names = [key for key in everything if not NO_XML.search(key)]
        for start in range(0, len(names), DELETE_BATCH_MAX):
            batch = names[start : start + DELETE_BATCH_MAX]
            client = await self.client()
            # Not `Quiet`: a quiet reply of success contains nothing, and so does that of a web server.
            objects = {"Objects": [{"Key": key} for key in batch]}
            call = client.delete_objects(Bucket=self.bucket, Delete=objects, **self._payer)
            what = f"delete {len(batch)} objects"
            reply = await self.ask(call, what, proof=results_for(batch), mutation=True)
            # The reply is 200 even if keys were refused. Absent keys are no errors in it.
            for error in reply.get("Errors", ()):
                # One refused key fails the whole call. The caller may repeat the call as it is: keys that
                # are gone by then are no errors.
                refused = ClientError({"Error": error}, "DeleteObjects")
                raise explained(refused, what=f"delete {error.get('Key')!r}", where=self.url, mutation=True)

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        """Send CreateMultipartUpload, which has the metadata of the whole object."""
        described = self._described(check_metadata(metadata, self.capabilities))
        client = await self.client()
        call = client.create_multipart_upload(
            Bucket=self.bucket,
            Key=check_key(key),
            ChecksumAlgorithm="CRC32C",
            **self._encrypted,
            **described,
            **self._keyed,
            **self._payer,
        )
        # Not marked as a mutation, so a lost reply is `TryAgain`: an upload that began without our knowledge
        # makes no object visible, and another one may begin beside it.
        reply = await self.ask(call, f"begin to store {key!r}", proof=is_upload)
        where = {"Bucket": self.bucket, "Key": key, "UploadId": reply["UploadId"], **self._payer}
        return S3Upload(self, key, where, keyed=self._keyed)

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        """Send ListMultipartUploads, page by page."""
        found: list[Unfinished] = []
        following: dict[str, str] = {}
        while begins_a_key(prefix):
            client = await self.client()
            call = client.list_multipart_uploads(
                Bucket=self.bucket, Prefix=prefix, **following, **self._payer
            )
            what = f"list unfinished uploads of {prefix!r}"
            page = await self.ask(call, what, proof=is_page_of_uploads(self.bucket))
            found += [
                Unfinished(row["Key"], row["UploadId"], int(row["Initiated"].timestamp() * 1000))
                for row in page.get("Uploads", ())
            ]
            if not page["IsTruncated"]:
                break
            markers = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page.get("NextUploadIdMarker")}
            following = given(**markers)
        # If a server matched the prefix loosely, a sweep of one stream would abort the uploads of another.
        return [upload for upload in found if upload.key.startswith(prefix)]

    async def abort_upload(self, upload: Unfinished) -> None:
        """Send AbortMultipartUpload."""
        where = {"Bucket": self.bucket, "Key": upload.key, "UploadId": upload.upload_id, **self._payer}
        await S3Upload(self, upload.key, where, keyed=self._keyed).abort()

    async def signed_reads(self, keys: Sequence[str], *, seconds: int) -> SignedReads:
        """Sign a GetObject for each key (SigV4). Raises `Misuse` for options that need more than a URL."""
        refuse_to_sign(self)
        client = await self.client()
        assert self._files is not None, "the client was opened"
        call = signed_by(
            client,
            None if self.options.key else self._files.session,
            [{"Bucket": self.bucket, "Key": check_key(key)} for key in keys],
            seconds=seconds,
            stall_seconds=self.options.read_timeout_seconds,
            now_ms=self._env.now_ms,
        )
        return await self.explain(call, "sign reads")

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        self._long_reads.close()
        # Forgotten before the first await, so that a second call at the same time closes nothing twice.
        opened_before = (self._data_files, self._files)
        self._data_files = self._files = None
        for files in opened_before:
            if files is not None:
                await (await files.set_session()).close()

    async def client(self) -> Any:
        """Return the client, made on first use."""
        async with self._opening:
            try:
                # One at a time: requests that arrive meanwhile wait for the same client.
                files = self._files or file_system(self.options)
                client = await opened(files)
            except OffloadError:
                raise  # already the port's; `Misuse` is a ValueError too, which `FAILURES` contains
            except FAILURES as exc:
                raise explained(exc, what="open a client", where=self.url, mutation=False) from exc
            # Kept only now. If opening failed, the next request opens another client.
            self._files = files
            return client

    async def data_client(self) -> Any:
        """Return the client that puts bytes of fragments and does not sign these. Reads use the other one."""
        client = await self.client()
        async with self._opening:
            if self._files is None:
                return client  # closed meanwhile, so the request fails as those of a closed client do
            files = self._data_files or file_system(
                self.options, session=self._files.session, signs_bodies=False
            )
            client = await self.explain(opened(files), "open a client")
            self._data_files = files
            return client

    async def ask(
        self, call: Awaitable[Any], what: str, *, proof: S3Proof, key: str = "", mutation: bool = False
    ) -> Any:
        """Await one request. Raises the port's errors, also for a success that `proof` does not prove."""
        reply = await self.explain(call, what, key=key, mutation=mutation)
        if not proof(reply):
            raise not_from_s3(what, where=self.url, mutation=mutation)
        return reply

    async def explain(self, call: Awaitable[T], what: str, *, key: str = "", mutation: bool = False) -> T:
        """Await a call of the client, and raise the port's errors for the client's."""
        try:
            return await call
        except OffloadError:
            raise  # already the port's; `Misuse` is a ValueError too, which `FAILURES` contains
        except FAILURES as exc:
            raise explained(
                exc, what=what, where=self.url, key=key, mutation=mutation, now_ms=self._env.now_ms
            ) from exc

    async def _put(
        self,
        key: str,
        windows: Sequence[Buffer],
        checksum: int,
        *,
        what: str,
        creates: bool = False,
        **described: Any,
    ) -> None:
        client = await (self.client() if creates else self.data_client())
        call = client.put_object(
            Bucket=self.bucket,
            Key=key,
            Body=WindowsBody(windows),
            ChecksumAlgorithm="CRC32C",  # a bucket with an object lock may look for this header alone
            ChecksumCRC32C=written(checksum),
            **({"IfNoneMatch": "*"} if creates else {}),
            **self._encrypted,
            **described,
            **self._keyed,
            **self._payer,
        )
        await self.ask(call, f"{what} {key!r}", proof=is_tagged, key=key, mutation=True)

    async def _range_reply(self, key: str, span: Span) -> RangeReply | None:
        """Send one GET for a span, and return its reply while the body is on its way."""
        client, where = await self.client(), f"{self.url}: {key!r}"
        try:
            with safely_parsed(where):
                reply = await client.get_object(
                    Bucket=self.bucket, Key=key, Range=range_of(span), **self._keyed, **self._payer
                )
        except ClientError as exc:
            if code_of(exc) in BEYOND_THE_END:
                return None
            raise
        body = reply_of(reply["Body"])
        if not is_tagged(reply):
            body.close()
            raise not_from_s3(f"read {key!r}", where=self.url, mutation=False)
        return range_reply(
            body,
            span,
            status=reply["ResponseMetadata"]["HTTPStatusCode"],
            content_range=reply.get("ContentRange"),
            size_bytes=reply.get("ContentLength"),
            where=where,
        )

    async def _read(self, **request: Any) -> tuple[bytes, Any]:
        client = await self.client()
        with safely_parsed(f"{self.url}: {request['Key']!r}"):
            reply = await client.get_object(**request)
        # `explain` awaits this method, the body included. So a connection that breaks in the middle of the
        # body raises an error of the port too.
        async with reply["Body"] as stream:
            data = await stream.read()
        if not is_tagged(reply):
            raise not_from_s3(f"read {request['Key']!r}", where=self.url, mutation=False)
        return data, reply

    @cached_property
    def _payer(self) -> dict[str, str]:
        return {"RequestPayer": "requester"} if self.options.requester_pays else {}

    @cached_property
    def _keyed(self) -> dict[str, Any]:
        """The parameters of every request about an object's bytes if the key is the caller's own (SSE-C)."""
        key = self.options.sse_c_key
        if key is None:
            return {}
        return {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": base64.b64decode(key.get_secret_value())}

    @cached_property
    def _encrypted(self) -> dict[str, Any]:
        """The parameters that encrypt every object at rest. A bucket's policy may refuse other objects."""
        options = self.options
        return given(
            ServerSideEncryption=options.sse,
            SSEKMSKeyId=options.sse_kms_key_id,
            BucketKeyEnabled=options.sse_bucket_key,
        )

    def _described(self, metadata: Mapping[str, str]) -> dict[str, Any]:
        """Return the parameters of an object with this metadata. It precedes that of the options."""
        if not metadata:
            return self._kept
        return {**self._kept, "Metadata": beside(metadata, self.options.metadata)}

    @cached_property
    def _kept(self) -> dict[str, Any]:
        """The storage class, tags and metadata of fragments, as parameters of a request."""
        options = self.options
        return given(
            StorageClass=options.storage_class,
            Tagging=urlencode(options.tags) or None,
            Metadata=options.metadata or None,
        )


def given(**wanted: Any) -> dict[str, Any]:
    """Return the parameters of a request that have a value."""
    return {name: value for name, value in wanted.items() if value is not None}


def written(checksum: int) -> str:
    """Return a CRC-32C as S3 writes it: base64 of four bytes. Servers that know it refuse other bytes."""
    return base64.b64encode(checksum.to_bytes(4, "big")).decode()


def checksum_in(reply: Any) -> str | None:
    """Return the store's CRC-32C of the whole object, as S3 writes it; None if the reply has none.

    For an object in parts, some servers send the checksum of the parts' checksums without saying so. The
    ETag of such an object contains a dash.
    """
    stored: str = reply.get("ChecksumCRC32C") or ""
    kind = reply.get("ChecksumType") or ("COMPOSITE" if "-" in reply.get("ETag", "") else "FULL_OBJECT")
    return None if not stored or "-" in stored or kind == "COMPOSITE" else stored


def make_sure_of_checksum(data: bytes, reply: Any, where: str) -> None:
    """Raise `TryAgain` if the store's CRC-32C of the whole object is not that of the bytes that arrived.

    For an object in parts the store may have only a checksum of checksums (`-N`), which is not compared.
    """
    stored = checksum_in(reply)
    found = None if stored is None else written(crc32c(data))
    if found != stored:
        raise TryAgain(f"{where} was damaged on the way: its CRC-32C is {stored}, the reply has {found}")
