"""The resumable upload of a large object: chunk after chunk in one session.

Invariants: nothing is visible before the last chunk; size and CRC-32C are sent before the first one, and the
service refuses bytes that do not match; a session that does not end in an object is cancelled, after any
error; memory holds two chunks at most. Why not in parallel parts: docs/adr/0011-gcs-uploads.md.

The service may keep less of a chunk than was sent, and says how much. The rest is sent in the next request,
as the protocol demands. This is no retry: no request is sent twice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Final

from offload.contracts.store import Body
from offload.formats.checksums import crc32c
from offload.ground.errors import Misuse, OffloadError, OutcomeUnknown
from offload.store.multipart import parts_of
from offload_gcs.client import RESUME, GcsReply
from offload_gcs.failures import Asked
from offload_gcs.proofs import is_any, takes_a_chunk_of

if TYPE_CHECKING:
    from offload_gcs.store import GcsStore

CHUNK_SIZE_BYTES: Final = 16 * 2**20
"""The service wants a multiple of 256 KiB. Larger chunks are faster, and take more memory."""

_HELD: Final = re.compile(r"bytes=0-([0-9]{1,19})")


async def put_resumable(store: GcsStore, asked: Asked, body: Body, *, extra: Mapping[str, Any]) -> None:
    """Store a body as one resumable upload. Reads its windows twice: the checksum must be sent first.

    `extra` has the fields of the object's description besides its name and checksum.
    """
    checksum = await _checksum_of(body)
    session = await store.begin(asked, size_bytes=body.size_bytes, checksum=checksum, extra=extra)
    try:
        await _send(store, asked, session, body)
    except BaseException:
        # Also for a cancelled task: a session that is left open lasts a week.
        await _cancel(store, asked, session)
        raise


async def _checksum_of(body: Body) -> int:
    checksum = size = 0
    async for window in body.windows():
        checksum, size = crc32c(window, checksum), size + len(window)
    # Found in this first reading, before a session is begun.
    body.check_size(size)
    return checksum


async def _send(store: GcsStore, asked: Asked, session: str, body: Body) -> None:
    held, total, reply = 0, body.size_bytes, None
    async with aclosing(parts_of(body, CHUNK_SIZE_BYTES)) as chunks:
        async for chunk in chunks:
            data = chunk
            while data:
                # The second reading may differ from the first. The service finds other bytes by the checksum.
                if held + len(data) > total:
                    raise Misuse(f"a body of {total} bytes yielded more when it was read again")
                reply = await _put(store, asked, session, data, start=held, total=total)
                # 308 says how much the service has; any success means that it has all.
                kept = (held_by(reply) if reply.status == RESUME else total) - held
                # A server that keeps nothing would be sent the same bytes for ever.
                if not 0 < kept <= len(data):
                    raise OutcomeUnknown(f"{store.url}: cannot {asked.what}: the upload makes no progress")
                held, data = held + kept, data[kept:]
    # All bytes are sent and the service still waits. It may complete the object later.
    if reply is None or reply.status == RESUME:
        raise OutcomeUnknown(f"{store.url}: cannot {asked.what}: the upload did not end with its last byte")


async def _put(
    store: GcsStore, asked: Asked, session: str, data: bytes, *, start: int, total: int
) -> GcsReply:
    headers = {"Content-Range": f"bytes {start}-{start + len(data) - 1}/{total}"}
    return await store.ask(
        asked,
        "PUT",
        session,
        proof=takes_a_chunk_of(asked.key),
        headers=headers,
        body=[data],
        may_resume=True,
    )


def held_by(reply: GcsReply) -> int:
    """Return the number of the object's bytes that the service has so far."""
    found = _HELD.fullmatch(reply.headers.get("range", ""))
    return int(found[1]) + 1 if found else 0


async def _cancel(store: GcsStore, asked: Asked, session: str) -> None:
    """Cancel the upload. Ignores errors: the first one counts, and the session ends after a week anyway."""
    with suppress(OffloadError):
        await store.ask(asked, "DELETE", session, proof=is_any, headers={"Content-Length": "0"})
