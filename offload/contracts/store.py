"""The port to an object store: what a backend must do, and nothing that can be built from it.

This is not a file system. Keys are whole names, objects are put whole and never changed, and the
only conditional write is create-if-absent, because every store we know can do that one
(docs/adr/0003-create-if-absent-only.md). Whatever is convenient on top of it belongs elsewhere, so
that a backend stays small.

Keys are non-empty strings of at most 1,024 bytes in UTF-8, parts separated by `/`; no part is
empty, `.` or `..`, and no part begins with a dot. `check_key` is that rule; backends call it first.
A store that takes only shorter keys declares `Capabilities.key_size_bytes_max`, and refuses longer ones with
`Misuse`.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, cast

from offload.contracts.capabilities import KEY_SIZE_BYTES_MAX, Capabilities
from offload.errors import Misuse

__all__ = ["Body", "Listed", "ObjectStore", "Span", "Suffix", "Unfinished", "Upload", "check_key"]


_LAST: Final = chr(sys.maxunicode)


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """The bytes of an object on their way into a store, window by window.

    `windows` may be called again, for a retry, and then yields the same bytes: what stands behind
    a key is fixed before the first request (commit-protocol, step 4). The windows together are
    exactly `size_bytes` long, or the last one raises. None of them is empty.
    """

    size_bytes: int
    windows: Callable[[], AsyncIterator[bytes]]

    @classmethod
    def of(cls, data: bytes) -> Body:
        """A body that is already in memory."""

        async def once() -> AsyncIterator[bytes]:
            if data:
                yield data

        return cls(size_bytes=len(data), windows=once)


@dataclass(frozen=True, slots=True)
class Span:
    """A run of bytes within an object: from `start`, at most `length` of them."""

    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Suffix:
    """The last `length` bytes of an object, or all of it where it is shorter."""

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
    """Milliseconds since 1970, by the store's clock."""


class Upload(ABC):
    """A multipart upload under way. Nothing is visible under its key until `complete` returns.

    Part numbers begin at 1; parts may be put in any order and at the same time, each number once
    or again with the same bytes. After `complete` or `abort` no further call is allowed.

    If the key is written meanwhile, by a put, a create or another upload, `complete` may raise instead, and
    the key stays as it is: Azure drops the parts of a key when it is written.
    """

    __slots__ = ()

    @abstractmethod
    async def put_part(self, number: int, data: bytes) -> None:
        """Store part `number`. Every part but the last has one common size.

        Raises `Misuse` for a number below 1, at the latest in `complete`.
        """

    @abstractmethod
    async def complete(self) -> None:
        """Make the object visible, whole and durable, its parts in order of their numbers.

        Raises `Misuse` where a number below the highest was never put.
        """

    @abstractmethod
    async def abort(self) -> None:
        """Forget the parts. Idempotent; also right after a failed `complete`."""


class ObjectStore(ABC):
    """What a backend must do. Every clause has a test of the same name in `offload_conformance`.

    docs/contract.md names the clauses that ask for each sentence of this module.

    **Puts are whole.** A reader finds an object entire or not at all, also while it is replaced.
    **Puts are durable.** When `put`, `create` or `complete` returns, a power cut does not undo it.
    **Create is atomic.** Of any number of creates of one absent key, exactly one succeeds.
    **Listing is strong.** A listing that starts after a write or delete returned shows its effect.
    **Listing is ordered.** Keys ascend by their UTF-8 bytes.
    **Listing keeps its end.** A folder's last row is no lower than the folder's greatest key at the start.
    **Levels are whole.** `level` names each key and each folder directly below a prefix once, in order.
    **Ranges are exact.** A span is clipped at the object's end, never padded or shifted.
    **Absence is an error.** Reading a key that is not there raises `NotFound`, never returns empty.
    **Deletion is idempotent.** Deleting what is absent succeeds.
    **Stored checksums are true.** Where `stored_crc32c` returns a number, it is the object's CRC-32C.
    **Keys are checked.** A key that is no key raises `Misuse` and touches nothing.

    `Misuse` is also raised for a span that is negative, a body whose windows are not `size_bytes` long,
    and a key that the store cannot hold beside those it has (a file system has no `a` beside `a/b`;
    no key of this framework is another's folder). A prefix that begins no key lists nothing.

    Not promised: that a failed `put` left the key as it was (its bytes may land later); any order
    among writes; that a request which raised `TryAgain` or `OutcomeUnknown` was not applied.
    Every method may raise `TryAgain`, `OutcomeUnknown` (mutations), `Denied` or `NoSpace`.

    A store belongs to one event loop; methods may be called at the same time.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def url(self) -> str:
        """Where this store is, for messages. Carries no credentials."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What this store can do, as data. The conformance suite asserts it both ways."""

    @abstractmethod
    async def put(self, key: str, body: Body) -> None:
        """Store an object whole, replacing what was there. An error from `body` leaves nothing visible."""

    @abstractmethod
    async def create(self, key: str, data: bytes) -> None:
        """Store a small object if the key is absent, in one request; else raise `AlreadyExists`.

        Raises `Misuse` if `data` is larger than `capabilities.create_size_bytes_max`.

        Raises `AlreadyExists` also where an earlier request of the caller's own, its reply lost,
        did land: read back before concluding anything.
        """

    @abstractmethod
    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        """Read an object, or the part of it that `span` names; what lies beyond its end is left out.

        A span that begins at or beyond the end reads as empty. Raises `NotFound`.
        """

    async def stored_crc32c(self, key: str) -> int | None:
        """The CRC-32C of the whole object, as the store keeps it. Nothing is downloaded.

        Of an absent object it is None, or `NotFound` is raised. Optional: None where the store keeps none of
        this object; it may keep one of the next.
        """
        check_key(key)
        return None

    async def retained(self, key: str) -> str | None:
        """What keeps the bytes of an object after its deletion, such as old versions.

        One line of words for a person, such as "the bucket keeps deleted versions". Of an absent object it is
        None, or `NotFound` is raised. Optional: None if nothing is known.
        """
        check_key(key)
        return None

    @abstractmethod
    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """Every object whose key begins with `prefix` and is greater than `after`, in order of keys.

        Pages are fetched as the caller advances. An object that exists during the whole call is shown. One
        that is put or deleted meanwhile may or may not be, with one exception: of the keys in one folder
        that begin with `prefix`, the last one shown is at least as great as the greatest one of the moment at
        which the call began. So if greater keys are created before lesser ones are deleted, the newest is
        never missed (docs/commit-protocol.md, "What listings show"). This holds if each page shows one
        moment, or if keys are looked up in ascending order.

        What is shown lasts if the store is durable, even if the process that wrote it died meanwhile.
        """

    async def level(self, prefix: str) -> AsyncIterator[str]:
        """What stands directly below `prefix`, which is empty or ends in `/`: keys and folders, in order.

        A folder is the beginning that some keys have in common, and ends in `/`; a store that has folders of
        its own may name one that is empty. Optional: this one, built on `list`, asks once for each name, and
        stores can tell a thousand at once.
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
                after = f"{name}{_LAST}" if slash else row.key
            else:  # its key begins with the last of all characters
                after = row.key
            folder = name

    @abstractmethod
    async def delete(self, keys: Sequence[str]) -> None:
        """Remove these objects, any number of them. Not atomic: after an error some may be left."""

    @abstractmethod
    async def start_upload(self, key: str) -> Upload:
        """Begin a multipart upload. Raises `Misuse` where `capabilities.multipart` is absent."""

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        """The unfinished uploads of keys that begin with `prefix`, where the store can tell; else none.

        Optional. What a crash left keeps its parts, and is paid for, until it is aborted.
        """
        return ()

    async def abort_upload(self, upload: Unfinished) -> None:
        """Forget an unfinished upload, whoever began it. Idempotent. Optional, as `unfinished_uploads`."""

    async def aclose(self) -> None:
        """Release connections and threads. Idempotent. Unfinished calls are the caller's to await."""


def check_key(key: str) -> str:
    """Return `key`, or raise `Misuse` where it breaks the rule at the head of this module."""
    parts = key.split("/")
    if any(not part or part.startswith(".") or "\0" in part for part in parts):
        raise Misuse(f"{key!r} is not an object key: a part of it is empty or begins with a dot")
    try:
        size_bytes = len(key.encode())
    except UnicodeEncodeError as exc:
        raise Misuse(f"{key!r} is not an object key: it is not valid Unicode") from exc
    if size_bytes > KEY_SIZE_BYTES_MAX:
        raise Misuse(f"{key[:40]!r}… is not an object key: longer than {KEY_SIZE_BYTES_MAX} bytes")
    return key
