"""A sound store with declared limits, a handle and an upload in front of others, and helpers of proofs."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from offload import MemoryHandle
from offload.contracts.capabilities import Capabilities
from offload.contracts.ledger import ReadHandle
from offload.contracts.object_metadata import NO_METADATA, check_metadata
from offload.contracts.store import Body, ObjectStore, Span, Suffix, Upload, check_key
from offload.formats.checksums import crc32c
from offload.ground.errors import Misuse
from offload.model.attempt import Attempt, Receipt
from offload.model.chunk_table import WINDOW_SIZE_BYTES, ChunkTable
from offload.model.entry import Entry
from offload.write.job import Job
from offload_conformance.bugs.registry import OpenClient, Proof
from offload_conformance.bugs.sound.ledgers import chunks_of
from offload_conformance.bugs.sound.memory import SharedMemory

KEY_MAX: Final = 512
CREATE_MAX: Final = 2**20
METADATA_MAX: Final = 2048
REFUSED: Final = r"[:\\]"


class Gateway(SharedMemory):
    """A sound store behind a gateway that has limits, and declares them all."""

    KIND: ClassVar = "store"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            atomic_create=True,
            strong_listing=True,
            multipart=True,
            create_size_bytes_max=CREATE_MAX,
            delete_batch_max=100,
            server_checksum="crc32c",
            durable=False,
            one_process=True,
            key_size_bytes_max=KEY_MAX,
            keys_refused=REFUSED,
            metadata_size_bytes_max=METADATA_MAX,
        )

    def checked(self, key: str) -> str:
        """Return the key. Raise `Misuse` beyond a limit."""
        if self.is_too_long(check_key(key)) or self.is_refused(key):
            raise Misuse(f"{key[:40]!r} is no name that the gateway takes")
        return key

    def is_too_long(self, key: str) -> bool:
        return len(key.encode()) > KEY_MAX

    def is_refused(self, key: str) -> bool:
        return re.search(REFUSED, key) is not None

    async def put(self, key: str, body: Body) -> None:
        await super().put(self.checked(key), body)

    async def create(self, key: str, data: bytes) -> None:
        if len(data) > CREATE_MAX:
            raise Misuse(f"{key!r} of {len(data)} bytes is larger than {CREATE_MAX}")
        await super().create(self.checked(key), data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await super().get(self.checked(key), span)

    async def stored_crc32c(self, key: str) -> int | None:
        return crc32c(await self.get(key))

    async def metadata_of(self, key: str) -> Mapping[str, str]:
        return await super().metadata_of(self.checked(key))

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete([self.checked(key) for key in keys])

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        return await super().start_upload(self.checked(key), metadata=metadata)


class Relay(ReadHandle):
    """A handle without a mistake, in front of another."""

    def __init__(self, handle: ReadHandle) -> None:
        self.handle = handle

    @property
    def ledger_id(self) -> int:
        return self.handle.ledger_id

    @property
    def first_offset(self) -> int:
        return self.handle.first_offset

    @property
    def next_offset(self) -> int:
        return self.handle.next_offset

    @property
    def where(self) -> str:
        return self.handle.where

    async def table(self) -> ChunkTable:
        return await self.handle.table()

    async def read(self, rows: ChunkTable) -> Any:
        return await self.handle.read(rows)

    def windows(self, rows: ChunkTable, *, size_bytes: int = WINDOW_SIZE_BYTES) -> Iterator[ChunkTable]:
        return self.handle.windows(rows, size_bytes=size_bytes)

    def unknown_sections(self) -> Mapping[str, int]:
        return self.handle.unknown_sections()

    async def aclose(self) -> None:
        await self.handle.aclose()


class Wrapped(Upload):
    """An upload without a mistake, in front of another."""

    def __init__(self, upload: Upload) -> None:
        self.upload = upload

    async def put_part(self, number: int, data: bytes) -> None:
        await self.upload.put_part(number, data)

    async def complete(self) -> None:
        await self.upload.complete()

    async def abort(self) -> None:
        await self.upload.abort()


def checked(store: ObjectStore, key: str, body: Body) -> None:
    """Raise as a put does before it reads a window."""
    check_key(key)
    check_metadata(body.metadata, store.capabilities)


def unsized(*pieces: bytes, bound: int) -> Body:
    """Return a body whose size is known only at its end."""
    return Body(size_bytes=bound, windows=lambda: pieces_of(*pieces), is_bound=True)


async def pieces_of(*pieces: bytes) -> AsyncIterator[bytes]:
    """Yield the pieces."""
    for piece in pieces:
        yield piece


def same(
    call: Callable[[Any], Awaitable[Any]], expected: Any, *, before: Mapping[str, bytes] | None = None
) -> Proof:
    """Prove that a call returns this."""

    async def proof(open_: OpenClient) -> None:
        store = open_()
        for key, data in (before or {}).items():
            await store.put(key, Body.of(data))
        found = await call(store)
        assert found == expected, (found, expected)

    return proof


def described(metadata: Mapping[str, str]) -> Proof:
    """Prove that the metadata of an object is kept as it is."""

    async def proof(open_: OpenClient) -> None:
        store = open_()
        await store.put("k", Body.of(b"x", metadata=metadata))
        found = await open_().metadata_of("k")
        assert found == {name.lower(): value for name, value in metadata.items()}, found

    return proof


def again(*firsts: int, ledger_id: int = 1) -> MemoryHandle:
    """Return the chunks of the ledgers that begin at these offsets as one ledger, for a copy."""
    return MemoryHandle([chunk for first in firsts for chunk in chunks_of(first)], ledger_id=ledger_id)


async def copying(tier: Any, stream: str, old: Sequence[Entry]) -> tuple[Job, Attempt, Receipt]:
    """Return a job that has uploaded a copy of these fragments of `ledger`, and not committed it."""
    job = await Job.begin(tier, stream)
    manifest, [attempt] = await job.prepare_copies([old])
    handle = again(*(entry.first_offset for entry in old), ledger_id=old[0].ledger_id)
    return job, attempt, await tier.offload(handle, attempt, manifest=manifest, extra_metadata={})
