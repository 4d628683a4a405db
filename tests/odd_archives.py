"""Archives for restores: streams of odd shapes on a tier in memory, and the messages that they hold."""

from __future__ import annotations

from collections.abc import Sequence

from offload import MemoryHandle, ObjectStoreOffloader, StreamReader, StreamWriter
from offload.formats.chunk_writer import build_chunk, build_tracking_chunk
from offload.formats.codecs import Codec
from offload.formats.entries import SubBatch
from offload.formats.tracking import ConsumerOffset
from offload.model.chunk_table import ChunkType
from offload.read.salvage import Archive
from offload.store.memory import MemoryStore

STREAM = "orders"


def odd_chunks(kinds: Sequence[str], *, first_offset: int = 0) -> tuple[list[bytes], list[tuple[int, bytes]]]:
    """Return a chunk of each kind, back to back, and the offset and the body of each message.

    The kinds are `plain` (3 messages), `batch` (a sub-batch of 3 between two messages) and `tracking`.
    """
    chunks, messages, at = [], [], first_offset
    for kind in kinds:
        if kind == "tracking":
            stored = [ConsumerOffset(name=b"app", offset=max(at - 2, 0))]
            chunks.append(
                build_tracking_chunk(
                    stored, chunk_type=ChunkType.TRACKING_DELTA, offset=at, timestamp_ms=at, epoch=1
                )
            )
            at += 1
            continue
        # Equal bodies on purpose: only their order tells some messages apart.
        bodies = [b"message %d" % ((at + k) // 2) for k in range(5 if kind == "batch" else 3)]
        entries: list[bytes | SubBatch] = list(bodies)
        if kind == "batch":
            entries = [bodies[0], SubBatch.of(bodies[1:4], Codec.GZIP), bodies[4]]
        chunks.append(build_chunk(entries, offset=at, timestamp_ms=at, epoch=1))
        messages += [(at + k, body) for k, body in enumerate(bodies)]
        at += len(bodies)
    return chunks, messages


async def archived(
    *ledgers: list[bytes], skip_damage: bool = False, objects: dict[str, bytes] | None = None
) -> Archive:
    """Return the archive of a stream whose ledgers have these chunks. Its objects are put into `objects`."""
    offloader = ObjectStoreOffloader(MemoryStore(objects={} if objects is None else objects))
    writer = await StreamWriter.claim(offloader, STREAM)
    for chunks in ledgers:
        await writer.offload([MemoryHandle(chunks)])
    reader = await StreamReader.open(offloader, STREAM)
    return Archive(catalogue=offloader, reader=reader, skip_damage=skip_damage)


def damage(objects: dict[str, bytes], body: bytes) -> None:
    """Flip a bit of the first message with this body."""
    (key,) = [key for key, raw in objects.items() if key.endswith(".fragment") and body in raw]
    raw = bytearray(objects[key])
    raw[raw.index(body)] ^= 1
    objects[key] = bytes(raw)
