"""The port to an object store: the duties of a backend, and nothing that can be built from them.

This is not a file system. Keys are whole names. Objects are put whole and never changed. The only conditional
write is create-if-absent, because every store we know supports it (docs/adr/0003-create-if-absent-only.md).
Conveniences on top of it belong elsewhere, so that a backend stays small.

A key is a non-empty string of at most 1,024 bytes in UTF-8. Its parts are separated by `/`. No part is empty,
`.` or `..`, and no part begins with a dot. A part has at most 255 bytes, because file systems, and servers on
them, hold no longer names. `check_key` checks these rules, and backends call it first. A store that takes
only shorter keys declares `Capabilities.key_size_bytes_max`, and refuses longer ones with `Misuse`.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, TypeAlias, cast

from offload.contracts.capabilities import KEY_PART_SIZE_BYTES_MAX, KEY_SIZE_BYTES_MAX, Capabilities
from offload.contracts.object_metadata import NO_METADATA
from offload.ground.errors import Misuse

__all__ = [
    "Body",
    "Buffer",
    "Listed",
    "ObjectStore",
    "Span",
    "Suffix",
    "Unfinished",
    "Upload",
    "begin_upload",
    "check_key",
]


Buffer: TypeAlias = bytes | memoryview
"""Bytes that were read. They never change, for as long as anything refers to them.

So a store may keep the memory for a later read only when nothing refers to it any more. A view, a slice of it
and an array made of it are valid for as long as the consumer holds them, and nobody releases them. Each of
them keeps the memory of the whole read. Copy a part that is kept for long: `bytes(view)`.
"""

_LAST: Final = chr(sys.maxunicode)


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """The bytes of an object on their way into a store, window by window.

    `windows` may be called again, for a retry, and then yields the same bytes: the bytes of a key are fixed
    before the first request (commit-protocol, step 4). The windows together are exactly `size_bytes` long, or
    the last one raises. None of them is empty. Each is `bytes` or a
    read-only view.

    With `is_bound`, `size_bytes` is only an upper bound of their length, because they are compressed on their
    way. Only a store that declares `Capabilities.unsized_put` is given such a body. The store stores exactly
    the bytes of the windows, also if there are none, and raises `Misuse` if they exceed the bound.
    """

    size_bytes: int
    windows: Callable[[], AsyncIterator[Buffer]]
    is_bound: bool = False
    crc32c: Callable[[], int | None] = lambda: None
    """Returns the CRC-32C of all windows together once they have passed; None if it is not known.

    A store that sends a checksum with the bytes uses it instead of its own. It was computed when the bytes
    were checked, so a server that compares it also finds damage in our memory since then.
    """

    metadata: Mapping[str, str] = field(default_factory=lambda: NO_METADATA, hash=False)
    """Names and values that the store keeps with the object, by the rules of `object_metadata`.

    The store keeps them as they are, only the names in lower case. It raises `Misuse` before it reads a
    window or sends anything if it cannot.
    """

    @classmethod
    def of(cls, data: bytes, *, metadata: Mapping[str, str] = NO_METADATA) -> Body:
        """Return a body of bytes in memory."""

        async def once() -> AsyncIterator[bytes]:
            if data:
                yield data

        return cls(size_bytes=len(data), windows=once, metadata=metadata)

    def check_size(self, found: int, *, is_end: bool = True) -> None:
        """Raise `Misuse` if windows of `found` bytes are too long, or at their end too short."""
        if found > self.size_bytes or (is_end and not self.is_bound and found < self.size_bytes):
            most = "at most " if self.is_bound else ""
            raise Misuse(f"a body of {most}{self.size_bytes} bytes yielded {found}")


@dataclass(frozen=True, slots=True)
class Span:
    """A run of bytes within an object: from `start`, at most `length` of them."""

    start: int
    length: int
    follows: int = 0
    """A hint: the caller is likely to read so many bytes behind this span next, span by span, in order.

    A store may send one request for all of them, and answer the later calls from the same reply. Each call
    returns the bytes of its own span alone, with the hint and without it.
    """


@dataclass(frozen=True, slots=True)
class Suffix:
    """The last `length` bytes of an object, or the whole object if it is shorter."""

    length: int


@dataclass(frozen=True, slots=True)
class Listed:
    """One row of a listing."""

    key: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A multipart upload that was begun, and neither completed nor aborted."""

    key: str
    upload_id: str
    started_ms: int
    """Milliseconds since 1970 in UTC, by the store's clock. It is right within a quarter of an hour."""


class Upload(ABC):
    """A multipart upload under way. Nothing is visible under its key until `complete` returns.

    Part numbers begin at 1. Parts may be put in any order and at the same time. A number may be put again
    with the same bytes. After `complete` or `abort` no further call is allowed.

    If the key is written meanwhile, by a put, a create or another upload, `complete` may raise instead. The
    key then stays as it is. Azure drops the parts of a key when it is written.
    """

    __slots__ = ()

    @abstractmethod
    async def put_part(self, number: int, data: bytes) -> None:
        """Store part `number`. All parts except the last have the same size.

        Raises `Misuse`, at the latest in `complete`, for a number below 1 or above
        `capabilities.parts_max`, and for more bytes than `capabilities.part_size_bytes_max`.
        """

    @abstractmethod
    async def complete(self) -> None:
        """Make the object visible, whole and durable, with its parts in the order of their numbers.

        Raises `Misuse` if a number below the highest was never put.
        """

    @abstractmethod
    async def abort(self) -> None:
        """Discard the parts. Idempotent; also allowed after a failed `complete`."""


class ObjectStore(ABC):
    """The port that a backend implements. Every clause has a test of the same name in `offload_conformance`.

    docs/contract.md names the clauses that test each sentence of this module.

    **Puts are whole.** A reader finds a complete object or none, even while the object is replaced.
    **Puts are durable.** When `put`, `create` or `complete` returns, a power cut does not undo it.
    **Create is atomic.** Of any number of creates of one absent key, exactly one succeeds.
    **Listing is strong.** A listing that starts after a write or delete returned shows its effect.
    **Listing is ordered.** Keys ascend by their UTF-8 bytes.
    **Listing keeps its end.** A folder's last row is no lower than the folder's greatest key at the start.
    **Levels are whole.** `level` names each key and each folder directly below a prefix once, in order.
    **Ranges are exact.** A span is clipped at the object's end, never padded or shifted.
    **Absence is an error.** Reading an absent key raises `NotFound` and never returns empty bytes.
    **Deletion is idempotent.** Deleting an absent object succeeds.
    **Stored checksums are true.** If `stored_crc32c` returns a number, it is the object's CRC-32C.
    **Keys are checked.** A malformed key raises `Misuse` and changes nothing.
    **Metadata is replaced with its object.** An object has only the metadata that it was written with.

    A reply counts as a success only if it has what the store's own must have. A portal or a proxy may answer
    200 to any request. Its page raises `TryAgain`, or `OutcomeUnknown` for a mutation, as if there were no
    reply.

    `Misuse` is also raised for a negative span, for a body whose windows are not `size_bytes` long, and for a
    key that the store cannot hold beside its other keys. A file system, for example, has no `a` beside `a/b`;
    no key of this framework is another's folder. A prefix with which no key begins lists nothing.

    Not promised: that a failed `put` left the key as it was (its bytes may land later); any order
    among writes; that a request which raised `TryAgain` or `OutcomeUnknown` was not applied.
    Every method may raise `TryAgain`, `OutcomeUnknown` (mutations), `Denied` or `NoSpace`.

    A store belongs to one event loop; methods may be called at the same time. A call that is cancelled raises
    `CancelledError`, or returns because it was done. It takes its cancellation for no error of the store.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL of this store, for messages. Carries no credentials."""

    def __repr__(self) -> str:
        """Return the class and the URL."""
        return f"<{type(self).__name__} {self.url}>"

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """The capabilities of this store, as data. The conformance suite tests them both ways."""

    @abstractmethod
    async def put(self, key: str, body: Body) -> None:
        """Store a whole object, and replace an existing one. An error from `body` leaves nothing visible.

        Raises `Misuse` if `body.size_bytes` is larger than `capabilities.put_size_bytes_max`, before it reads
        a window.
        """

    @abstractmethod
    async def create(self, key: str, data: bytes) -> None:
        """Store a small object if the key is absent, in one request; else raise `AlreadyExists`.

        Raises `Misuse` if `data` is larger than `capabilities.create_size_bytes_max`.

        Raises `AlreadyExists` also if an earlier request of the caller itself landed and its reply was lost:
        read back before concluding anything.
        """

    @abstractmethod
    async def get(self, key: str, span: Span | Suffix | None = None) -> Buffer:
        """Read an object, or the bytes of `span` that exist in it.

        A span that begins at or beyond the end of the object reads as empty. Raises `NotFound`.
        """

    async def stored_crc32c(self, key: str) -> int | None:
        """Return the CRC-32C of the whole object, as the store keeps it. Nothing is downloaded.

        For an absent object, returns None or raises `NotFound`. Optional: None if the store keeps no such
        checksum of this object. It may keep one of another object.
        """
        check_key(key)
        return None

    async def metadata_of(self, key: str) -> Mapping[str, str] | None:
        """Return the metadata of an object, with names in lower case. Nothing is downloaded.

        It is empty if the object has none. A backend may add constants to each object, and other programs
        write other names. If such names differ in case alone, their values are joined by commas. Raises
        `Corrupt` if a reply has more than any store keeps.

        For an absent object, returns None or raises `NotFound`. Optional: None if the store keeps none.
        """
        check_key(key)
        return None

    async def retained(self, key: str) -> str | None:
        """Return the reason why an object's bytes outlast its deletion, such as old versions.

        It is one line for a person, such as "the bucket keeps deleted versions". For an absent object,
        returns None or raises `NotFound`. Optional: None if nothing is known.
        """
        check_key(key)
        return None

    @abstractmethod
    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """Yield every object whose key begins with `prefix` and is greater than `after`, in order of keys.

        Pages are fetched as the caller advances. An object that exists during the whole call is shown. One
        that is put or deleted meanwhile may or may not be shown, with one exception: of the keys in one
        folder that begin with `prefix`, the last one shown is at least as great as the greatest one that
        existed when the call began. So if greater keys are created before lesser ones are deleted, the newest
        is never missed (docs/commit-protocol.md, "What listings show"). This holds if each page shows one
        moment, or if keys are looked up in ascending order.

        If the store is durable, a shown object lasts, even if the process that wrote it died meanwhile.
        """

    async def level(self, prefix: str) -> AsyncIterator[str]:
        """Yield the keys and folders directly below `prefix`, in order. `prefix` is empty or ends in `/`.

        A folder is a common beginning of keys, and ends in `/`. A store that has folders of its own may name
        an empty one. Optional: this method, which is built on `list`, sends one request for each name, and
        many stores can return a thousand names at once.
        """
        after = folder = ""
        while True:
            rows = cast("AsyncGenerator[Listed, None]", self.list(prefix, after=after))
            async with aclosing(rows):
                row = await anext(rows, None)
            if row is None:
                return
            part, slash, _ = row.key[len(prefix) :].partition("/")
            name = prefix + part + slash
            if not slash or name != folder:
                yield name
                # For a folder, continue after all of its keys, instead of listing each of them.
                after = f"{name}{_LAST}" if slash else row.key
            else:  # a key of the same folder, in which the greatest of all characters follows the slash
                after = row.key
            folder = name

    @abstractmethod
    async def delete(self, keys: Sequence[str]) -> None:
        """Delete these objects, any number of them. Not atomic: after an error some may be left."""

    @abstractmethod
    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        """Begin a multipart upload. Raises `Misuse` if `capabilities.multipart` is False.

        The object has this metadata, as one that is put has `Body.metadata`. Until `complete` returns, an
        existing object keeps its own.
        """

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        """Return the unfinished uploads of keys that begin with `prefix`.

        Empty if the store cannot list them. Optional. The parts of an upload that a crash left are stored,
        and paid for, until it is aborted. An upload that has no part yet may be missing: Azure stores nothing
        of it.
        """
        return ()

    async def abort_upload(self, upload: Unfinished) -> None:
        """Discard an unfinished upload that any process began.

        Idempotent. Optional, as `unfinished_uploads`.
        """

    async def aclose(self) -> None:
        """Release connections and threads. Idempotent. The caller must await unfinished calls first."""


async def begin_upload(store: ObjectStore, key: str, metadata: Mapping[str, str]) -> Upload:
    """Begin a multipart upload on a store that may be older than metadata.

    Backends for contract 0.2 have a `start_upload` that takes a key alone. So empty metadata is not passed
    on. `LimitedStore` refuses other metadata for them.
    """
    if not metadata:
        return await store.start_upload(key)
    return await store.start_upload(key, metadata=metadata)


def check_key(key: str) -> str:
    """Return `key`. Raises `Misuse` if it breaks the rules at the head of this module."""
    parts = key.split("/")
    if any(not part or part.startswith(".") or "\0" in part for part in parts):
        raise Misuse(f"{key!r} is not an object key: a part of it is empty or begins with a dot")
    try:
        size_bytes = len(key.encode())
    except UnicodeEncodeError as exc:
        raise Misuse(f"{key!r} is not an object key: it is not valid Unicode") from exc
    if size_bytes > KEY_SIZE_BYTES_MAX:
        raise Misuse(f"{key[:40]!r}… is not an object key: longer than {KEY_SIZE_BYTES_MAX} bytes")
    if size_bytes > KEY_PART_SIZE_BYTES_MAX < max(len(part.encode()) for part in parts):
        raise Misuse(
            f"{key[:40]!r}… is not an object key: a part of it is longer than {KEY_PART_SIZE_BYTES_MAX} bytes"
        )
    return key
