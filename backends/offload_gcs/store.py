"""A bucket of Google Cloud Storage, or of a server that speaks its JSON API, as an object store.

One request for each call (`client`). Invariants:

- A create is always one upload with `ifGenerationMatch=0`.
- Every upload names its CRC-32C, and the service refuses bytes that do not match it.
- An object becomes visible whole, with its last byte.
- Every object is encrypted as the options ask, commits too.
- A read returns the span that was asked for, whole and as it was stored.
- A success is proved by what the reply contains (`proofs`). One without its proof is tried again, as if it
  had not arrived.

If the reply to a create is lost, this store raises `OutcomeUnknown` and asks nothing: the object may still
appear. The commit protocol lists, and reads the object if there is one (`offload.commit.log`).

Objects are deleted by single requests, several at a time. The service takes up to a hundred deletions in one
batch request and carries them out one by one. Emulators take no batches, and each deletion of a batch can
fail on its own anyway.

Sources: the reference of the JSON API of Google Cloud Storage.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, NoReturn
from urllib.parse import quote, urlencode

from offload_cloud.long_reads import LongReads, RangeReply
from offload_cloud.metadata import beside, left_for_metadata
from offload_cloud.prefixes import begins_a_key
from offload_cloud.ranges import range_of

from offload.contracts.capabilities import Capabilities
from offload.contracts.object_metadata import NO_METADATA, read_metadata
from offload.contracts.signing import SignedReads, SignsReads
from offload.contracts.store import Body, Buffer, Listed, ObjectStore, Span, Suffix, Upload, check_key
from offload.formats.checksums import crc32c
from offload.ground.env import REAL_ENV, Env
from offload.ground.errors import Corrupt, Misuse, NotFound, OffloadError
from offload.store.buffers import BufferPool
from offload.store.multipart import check_create, check_put, windows_in_memory
from offload.store.spans import clip
from offload_gcs.client import GcsClient, GcsReply, is_bytes
from offload_gcs.failures import BEYOND_THE_END, FAILURES, Asked, Refused, explained, not_from_gcs
from offload_gcs.options import METADATA_SIZE_BYTES_MAX, GcsOptions
from offload_gcs.proofs import NO_CONTENT, GcsProof, begins, describes, is_any, is_page
from offload_gcs.reading import bytes_of, read_checksum, written
from offload_gcs.signing import SECONDS_MAX, signed_urls, signs_alone
from offload_gcs.upload import put_resumable

PUT_SIZE_BYTES_MAX: Final = 128 * 2**20
"""The largest object that goes up in one request. The service takes 5 TiB in one request or in several."""

DELETES_AT_ONCE: Final = 16
PAGE_ROWS: Final = 1000
NO_KEY: Final = ("\r", "\n")
"""Characters that the service allows in no name."""

_URL: Final = re.compile(r"[!-~]+")
"""A URL that needs no quoting. An error about any other URL would show it, and a session's is a secret."""


class GcsStore(ObjectStore, SignsReads):
    """The bucket `bucket`. The client is made at the first request, on the event loop that asks."""

    def __init__(self, *, bucket: str, options: GcsOptions | None = None, env: Env = REAL_ENV) -> None:
        self._bucket, self._env = bucket, env
        self._options = options or GcsOptions()
        self._client = GcsClient(self._options)
        self._long_reads = LongReads(
            self._range_reply, BufferPool(), connections_max=self._options.connections_max
        )

    def __repr__(self) -> str:
        return f"GcsStore({self.url!r})"

    def __reduce__(self) -> NoReturn:
        """Raise `TypeError`: a store belongs to one event loop, and its pickle would hold credentials."""
        raise TypeError("a store cannot be pickled: send its URL and options, and open it there")

    @property
    def url(self) -> str:
        """`gs://` and the bucket."""
        return f"gs://{self._bucket}"

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the service. A probe must find out if another server honours conditions."""
        return Capabilities(
            atomic_create=True,
            create_is_probed=not self._options.is_google,
            strong_listing=True,
            multipart=False,
            put_size_bytes_max=5 * 2**40,
            create_size_bytes_max=PUT_SIZE_BYTES_MAX,
            delete_batch_max=1,
            server_checksum="crc32c",
            keys_refused="[\r\n]",
            metadata_size_bytes_max=left_for_metadata(METADATA_SIZE_BYTES_MAX, self._options.metadata),
        )

    async def put(self, key: str, body: Body) -> None:
        """Send one request, or a resumable upload if the object is large. In memory: it, or two chunks."""
        asked = Asked(
            what=f"store {key!r}", permission="storage.objects.create", key=checked(key), mutation=True
        )
        extra = self._described(check_put(key, body, self.capabilities))
        if body.size_bytes <= PUT_SIZE_BYTES_MAX:
            # One request sends the checksum before the first byte, so the whole body must be in memory. It
            # has no condition, so that a repeated put replaces the first one.
            windows, checksum = await windows_in_memory(body)
            await self._upload(asked, windows, checksum, extra=extra)
        else:
            await put_resumable(self, asked, body, extra=extra)

    async def create(self, key: str, data: bytes) -> None:
        """Send one request with `ifGenerationMatch=0`, which means that no object may exist."""
        check_create(key, data, self.capabilities)
        asked = Asked(
            what=f"create {key!r}",
            permission="storage.objects.create",
            key=checked(key),
            mutation=True,
            creates=True,
        )
        # Without the options of fragments: a root or an anchor stays in the bucket's own storage class.
        await self._upload(asked, [data], crc32c(data), ifGenerationMatch="0")

    async def get(self, key: str, span: Span | Suffix | None = None) -> Buffer:
        """Send one GET. A range beyond the object's end (416) reads as empty."""
        asked = Asked(
            what=f"read {key!r}", permission="storage.objects.get", key=checked(key), of_object=True
        )
        clip(span, 0)  # raises `Misuse` for a negative span
        if isinstance(span, Span) and span.length:
            with self._explaining(asked):
                return await self._long_reads.get(key, span)
        wanted = range_of(span)
        # A whole object is asked for without a range, because only then its checksum can be compared.
        headers = {} if wanted is None else {"Range": wanted}
        try:
            reply = await self.ask(
                asked,
                "GET",
                self._content(key),
                proof=lambda reply: is_bytes(reply.headers),
                headers=headers,
            )
        except OffloadError as exc:
            if isinstance(exc.__cause__, Refused) and exc.__cause__.status == BEYOND_THE_END:
                return b""
            raise
        return await bytes_of(reply, span, where=f"{self.url}: {key!r}")

    async def stored_crc32c(self, key: str) -> int | None:
        """Send one request for the object's metadata. The service keeps a CRC-32C of every object."""
        asked = Asked(
            what=f"ask for the checksum of {key!r}",
            permission="storage.objects.get",
            key=checked(key),
            of_object=True,
        )
        stored = (await self._description(asked, "crc32c")).get("crc32c")
        return read_checksum(stored) if stored else None

    async def metadata_of(self, key: str) -> Mapping[str, str]:
        """Send one request for the object's metadata. Raises `NotFound`."""
        asked = Asked(
            what=f"ask for the metadata of {key!r}",
            permission="storage.objects.get",
            key=checked(key),
            of_object=True,
        )
        found = (await self._description(asked, "metadata")).get("metadata") or {}
        where = f"{self.url}: {key!r}"
        if not (isinstance(found, dict) and all(isinstance(value, str) for value in found.values())):
            raise Corrupt("metadata", where, expected="texts by name", found=type(found).__name__)
        return read_metadata(found.items(), where=where)

    async def _description(self, asked: Asked, field: str) -> Mapping[str, Any]:
        """Return the name of an object, and this field if it has one."""
        url = self._object(asked.key, fields=f"name,{field}")
        return (await self.ask(asked, "GET", url, proof=describes(asked.key))).said

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """Send objects.list, page by page."""
        wanted = {"fields": "kind,items(name,size),nextPageToken"} | ({"startOffset": after} if after else {})
        # `startOffset` is inclusive, and an emulator may ignore it, so the rows are compared here too.
        beyond = after.encode()
        async for page in self._pages(prefix, wanted):
            for row in page.get("items", ()):
                if row["name"].encode() > beyond:
                    yield Listed(row["name"], int(row["size"]))

    async def level(self, prefix: str) -> AsyncIterator[str]:
        """Send objects.list with a delimiter. Folders come between the keys, in one order."""
        wanted = {"fields": "kind,items(name),prefixes,nextPageToken", "delimiter": "/"}
        async for page in self._pages(prefix, wanted):
            # A page has its keys and its folders in two lists.
            for name in sorted([row["name"] for row in page.get("items", ())] + page.get("prefixes", [])):
                yield name

    async def _pages(self, prefix: str, wanted: dict[str, str]) -> AsyncIterator[Mapping[str, Any]]:
        # No key has such a prefix, and servers answer it with various errors.
        if not begins_a_key(prefix) or any(character in prefix for character in NO_KEY):
            return
        asked = Asked(what=f"list {prefix!r}", permission="storage.objects.list")
        wanted = {"prefix": prefix, "maxResults": str(PAGE_ROWS)} | wanted
        while True:
            page = (await self.ask(asked, "GET", self._url("storage/v1", **wanted), proof=is_page)).said
            yield page
            if not page.get("nextPageToken"):
                return
            wanted["pageToken"] = page["nextPageToken"]

    async def delete(self, keys: Sequence[str]) -> None:
        """Send one DELETE for each key, several at a time. An absent object counts as deleted."""
        # All keys are checked before the first request. The workers share the iterator.
        names = iter([checked(key) for key in keys])

        async def work() -> None:
            for key in names:
                await self._delete(key)

        try:
            # The first failure cancels the other workers. The caller may repeat the whole call: keys that
            # are gone by then are absent, which is no error.
            async with asyncio.TaskGroup() as group:
                for _ in range(min(DELETES_AT_ONCE, len(keys))):
                    group.create_task(work())
        except BaseExceptionGroup as errors:  # the port raises one error, not a group
            first = errors.exceptions[0]
            raise first from first.__cause__

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        """Raise `Misuse`: an upload of this service takes no parts in any order."""
        checked(key)
        raise Misuse(f"{self.url} takes no uploads in parts: `put` stores an object of any size")

    async def signed_reads(self, keys: Sequence[str], *, seconds: int) -> SignedReads:
        """Sign a read of each key (V4). Raises `Misuse` unless a service account's key is known."""
        options, seconds = self._options, min(seconds, SECONDS_MAX)
        with self._explaining(Asked(what="sign reads", permission="storage.objects.get")):
            credentials = await self._client.credentials()
        reasons = {
            "credentials that are no key of a service account": not (
                credentials is None or signs_alone(credentials)
            ),
            "a proxy": self._client.proxy is not None,
            "option 'verify'": options.verify is not True,
            "option 'user_project'": options.user_project is not None,
        }
        for reason in (name for name, holds in reasons.items() if holds):
            raise Misuse(f"{self.url}: reads are not signed, because of {reason}")
        begun = self._env.now_ms() // 1000  # before the signatures, whose times are in whole seconds
        names = [checked(key) for key in keys]
        if credentials is None:
            urls = [self._content(key) for key in names]
        else:
            urls = signed_urls(
                self._bucket, names, credentials=credentials, endpoint=self._client.endpoint, seconds=seconds
            )
        return SignedReads(
            urls=urls,
            seconds=seconds,
            expires_ms=(begun + seconds) * 1000,
            stall_seconds=options.read_timeout_seconds,
        )

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        self._long_reads.close()
        await self._client.aclose()

    async def ask(
        self,
        asked: Asked,
        method: str,
        url: str,
        *,
        proof: GcsProof,
        headers: Mapping[str, str] | None = None,
        body: Sequence[Buffer] = (),
        may_resume: bool = False,
    ) -> GcsReply:
        """Send one request. Raises the port's errors, also for a success that `proof` does not prove."""
        with self._explaining(asked):
            reply = await self._client.send(method, url, headers=headers, body=body, may_resume=may_resume)
        if not proof(reply):
            raise not_from_gcs(asked, where=self.url)
        return reply

    @contextmanager
    def _explaining(self, asked: Asked) -> Iterator[None]:
        """Raise the port's errors for those of the client."""
        try:
            yield
        except OffloadError:
            raise  # already the port's; `Misuse` is a ValueError too, which `FAILURES` contains
        except FAILURES as exc:
            raise explained(exc, asked, where=self.url, now_ms=self._env.now_ms) from exc

    async def _range_reply(self, key: str, span: Span) -> RangeReply | None:
        return await self._client.read(self._content(key), span, where=f"{self.url}: {key!r}")

    async def begin(
        self, asked: Asked, *, size_bytes: int, checksum: int, extra: Mapping[str, Any] | None = None
    ) -> str:
        """Begin a resumable upload of a fragment. Return the URL of its session, which is a secret."""
        resource = described(asked.key, checksum, extra or self._fragment)
        url = self._url("upload/storage/v1", uploadType="resumable", **self._encryption)
        headers = {"Content-Type": "application/json", "X-Upload-Content-Length": str(size_bytes)}
        reply = await self.ask(asked, "POST", url, proof=begins, headers=headers, body=[resource])
        session = reply.headers.get("location", "")
        # The URL alone lets its holder write the object, so it must not cross a network unencrypted.
        is_safe = session.startswith(("https://", f"{self._client.endpoint}/"))
        if not is_safe or not _URL.fullmatch(session):
            raise OffloadError(f"{self.url}: cannot {asked.what}: the reply names no upload session")
        return session

    async def _upload(
        self,
        asked: Asked,
        windows: Sequence[Buffer],
        checksum: int,
        *,
        extra: Mapping[str, Any] | None = None,
        **conditions: str,
    ) -> None:
        """Send one request with the object's description and its bytes. Its lines end in CR LF."""
        # The description comes first. It has the CRC-32C, so the service knows it before the bytes.
        # A random boundary, because the bytes of the object must not contain it.
        boundary = self._env.uuid().hex.encode()
        resource = described(asked.key, checksum, extra or {})
        head = b"--%b\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n%b\r\n" % (boundary, resource)
        head += b"--%b\r\nContent-Type: application/octet-stream\r\n\r\n" % boundary
        tail = b"\r\n--%b--\r\n" % boundary
        url = self._url("upload/storage/v1", uploadType="multipart", **conditions, **self._encryption)
        headers = {"Content-Type": f"multipart/related; boundary={boundary.decode()}"}
        body = [head, *windows, tail]
        await self.ask(
            asked,
            "POST",
            url,
            proof=describes(asked.key),
            headers=headers,
            body=body,
        )

    async def _delete(self, key: str) -> None:
        asked = Asked(
            what=f"delete {key!r}",
            permission="storage.objects.delete",
            key=key,
            mutation=True,
            of_object=True,
        )
        # Absent is what the caller wants; perhaps an earlier try deleted it, and its reply was lost.
        with suppress(NotFound):
            reply = await self.ask(asked, "DELETE", self._object(key), proof=is_any)
            if reply.status == NO_CONTENT:
                return
            # Emulators answer 200, and so does a portal. Only the absence of the object shows who it was.
            await self._description(replace(asked, permission="storage.objects.get"), "size")
            raise not_from_gcs(asked, where=self.url)

    def _content(self, key: str) -> str:
        return self._object(key, alt="media")

    def _object(self, key: str, **query: str) -> str:
        # A slash of the key is quoted too. Otherwise it would begin another part of the path.
        return self._url("storage/v1", f"/{quote(key, safe='')}", **query)

    def _url(self, service: str, below: str = "", **query: str) -> str:
        """Return the URL of the bucket's objects, or of one of them, completely quoted."""
        asked = urlencode(query | self._payer, quote_via=quote, safe="")
        path = f"{self._client.endpoint}/{service}/b/{quote(self._bucket, safe='')}/o{below}"
        return f"{path}?{asked}" if asked else path

    @cached_property
    def _payer(self) -> dict[str, str]:
        return given(userProject=self._options.user_project)

    @cached_property
    def _encryption(self) -> dict[str, str]:
        """The parameters that encrypt every object at rest. A bucket's policy may refuse other objects."""
        return given(kmsKeyName=self._options.kms_key_name)

    def _described(self, metadata: Mapping[str, str]) -> Mapping[str, Any]:
        """Return the fields of an object with this metadata. It precedes that of the options."""
        if not metadata:
            return self._fragment
        return {**self._fragment, "metadata": beside(metadata, self._options.metadata)}

    @cached_property
    def _fragment(self) -> dict[str, Any]:
        """The storage class and the metadata of fragments."""
        return given(storageClass=self._options.storage_class, metadata=self._options.metadata or None)


def described(key: str, checksum: int, extra: Mapping[str, Any]) -> bytes:
    """Return the object's description, with which an upload begins.

    Without `cacheControl`, caches may keep public objects for an hour.
    """
    return json.dumps(
        {"name": key, "crc32c": written(checksum), "cacheControl": "no-store", **extra}
    ).encode()


def given(**wanted: Any) -> dict[str, Any]:
    """Return the fields of a request that have a value."""
    return {name: value for name, value in wanted.items() if value}


def checked(key: str) -> str:
    """Return `key`. Raises `Misuse` if it breaks the rules of keys or holds a line end, which GCS refuses."""
    check_key(key)
    if any(character in key for character in NO_KEY):
        raise Misuse(f"{key!r} is not an object key here: GCS allows no line ends in names")
    return key
