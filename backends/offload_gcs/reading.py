"""The reply to a GET, checked: the bytes that were asked for, whole and in the coding of the stored object.

The service keeps a CRC-32C of every object, of composed ones too, and sends it with each reply. It covers
the whole object as stored. So it is compared only if the whole object was asked for, and was not decoded on
the way.
"""

from __future__ import annotations

import base64
from functools import partial
from typing import Final

from offload_cloud.ranges import exactly
from offload_cloud.sums import check_sum

from offload.contracts.store import Span, Suffix
from offload.formats.checksums import crc32c
from offload.ground.errors import TryAgain
from offload_gcs.client import GcsReply

AS_STORED: Final = {"", "identity"}


async def bytes_of(reply: GcsReply, span: Span | Suffix | None, *, where: str) -> bytes:
    """Return the bytes of `span` from a reply. Raises `TryAgain` if it is short, damaged or another's."""
    coding = reply.headers.get("content-encoding", "").lower()
    if coding not in {*AS_STORED, stored_coding(reply)}:  # perhaps by a proxy
        raise TryAgain(f"{where}: the reply is encoded as {coding[:40]}, which nobody asked for")
    if span is None:
        await check_sum(partial(_make_sure_it_is_whole, reply, where), len(reply.data))
    content_range = reply.headers.get("content-range")
    return exactly(span, reply.data, status=reply.status, content_range=content_range, where=where)


def written(checksum: int) -> str:
    """Return a CRC-32C as the service writes it: base64 of four bytes, big-endian."""
    return base64.b64encode(checksum.to_bytes(4, "big")).decode()


def read_checksum(text: str) -> int:
    """Return the CRC-32C in a text of the service."""
    return int.from_bytes(base64.b64decode(text), "big")


def stored_checksum(reply: GcsReply) -> str | None:
    """Return the CRC-32C that the service keeps of the object; None if the reply has none."""
    hashes = reply.headers.get("x-goog-hash", "")
    named = dict(each.strip().partition("=")[::2] for each in hashes.split(","))
    return named.get("crc32c")


def stored_coding(reply: GcsReply) -> str:
    """Return the coding in which the object is stored, as an uploader named it; "" if the reply has none."""
    return reply.headers.get("x-goog-stored-content-encoding", "").lower()


def _make_sure_it_is_whole(reply: GcsReply, where: str) -> None:
    if stored_coding(reply) not in AS_STORED:
        return
    stored = stored_checksum(reply)
    found = written(crc32c(reply.data))
    if stored is not None and stored != found:
        raise TryAgain(f"{where} was damaged on the way: its CRC-32C is {stored}, the reply has {found}")
