"""Whose objects these are: from the first part of their keys to the name of a stream.

The anchor says it. If it is lost, or does not hold, the part itself says it, unless the name is too long for
a key; then a root or a fragment does. One implementation, for whoever lists, sweeps and verifies a tier.

Invariant: a part without an anchor is a stream only if a root, a fragment or a group is under it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import cast

from offload.commit.log import first_object
from offload.contracts.store import Listed, ObjectStore
from offload.errors import AnchorLost, Corrupt, NotFound, UnsupportedFormat
from offload.formats.anchor import StreamAnchor
from offload.formats.keys import StreamKeys, looks_escaped, unescape
from offload.formats.root import decode_root
from offload.native.anchors import read_anchor
from offload.native.fragment_check import load_own_tail

DecodeAnchor = Callable[[bytes], StreamKeys]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamUnder:
    """What is under one part of keys."""

    stream: str | None
    """None if nothing that is left tells the name: then no command can name the stream."""

    damage: Corrupt | UnsupportedFormat | None = None
    """Why the anchor does not tell it, if that is so."""

    is_lost: bool = False
    """Whether there is no anchor."""


async def stream_under(
    store: ObjectStore, part: str, *, counted: Callable[[DecodeAnchor], DecodeAnchor] = lambda decode: decode
) -> StreamUnder | None:
    """The stream under this part; None if none was begun there. One request for a sound anchor.

    `counted` stands around the decoding of the anchor, for whoever counts what is read.
    """
    where = f"{part}/stream.anchor"
    try:
        keys = await read_anchor(store, where, counted(partial(_keys_in_anchor, where=where)))
    except NotFound:
        if not await _has_stream(store, part):
            return None
        stream = await _name_without_anchor(store, part)
        lost = Corrupt("anchor", where, expected="present", found="absent")
        if stream is not None:
            lost = AnchorLost(where, tier=store.url, stream=stream)
        return StreamUnder(stream=stream, damage=lost, is_lost=True)
    except (Corrupt, UnsupportedFormat) as damage:
        return StreamUnder(stream=await _name_without_anchor(store, part), damage=damage)
    return StreamUnder(stream=keys.stream)


def check_stream_anchor(raw: bytes, keys: StreamKeys) -> None:
    """Raise `Corrupt` unless this anchor names the stream whose prefix it stands in."""
    try:
        found = StreamAnchor.decode(raw, where=keys.anchor).stream
    except Corrupt as exc:
        raise exc.within(keys.anchor, stream=keys.stream) from exc
    if found != keys.stream:
        raise Corrupt("anchor", keys.anchor, stream=keys.stream, expected=keys.stream, found=found)


def _keys_in_anchor(raw: bytes, *, where: str) -> StreamKeys:
    """The keys of the stream that this anchor names. Raises `Corrupt` unless `where` is its own key."""
    keys = StreamKeys(StreamAnchor.decode(raw, where=where).stream)
    if keys.anchor != where:
        raise Corrupt("anchor", where, stream=keys.stream, expected=keys.anchor, found=where)
    return keys


async def _has_stream(store: ObjectStore, part: str) -> bool:
    """Whether there is a root, a fragment or a group under this first part of keys."""
    prefixes = (f"{part}/metadata/root.", f"{part}/data/", f"{part}/groups/")
    return looks_escaped(part) and await first_object(store, *prefixes) is not None


async def _name_without_anchor(store: ObjectStore, part: str) -> str | None:
    """The name of the stream under this part, whose anchor is lost; None if nothing there tells it.

    A long name is cut in keys: then a root or a fragment has to tell it.
    """
    if (stream := unescape(part)) is not None:
        return stream
    for prefix in (f"{part}/metadata/root.", f"{part}/data/"):
        async with aclosing(cast("AsyncGenerator[Listed, None]", store.list(prefix))) as rows:
            async for listed in rows:
                name = await _name_in(store, listed)
                if name is not None and StreamKeys(name).prefix == f"{part}/":
                    return name
    return None


async def _name_in(store: ObjectStore, listed: Listed) -> str | None:
    try:
        if listed.key.endswith(".manifest"):
            return decode_root(await store.get(listed.key), where=listed.key).stream
        return (await load_own_tail(store, listed.key, size_bytes=listed.size_bytes))[0].stream
    except (Corrupt, NotFound, UnsupportedFormat):
        return None
