"""Finding the name of a stream by the first part of its keys.

The anchor has the name. If it is lost or damaged, the part itself is the escaped name. Only a name that is
too long for a key must be read from a root or a fragment. Listing, sweeping and verifying share this module.

Invariant: a part without an anchor is a stream only if a root, a fragment or a group is under it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

from offload.commit.log import first_object
from offload.contracts.store import Listed, ObjectStore
from offload.formats.anchor import StreamAnchor
from offload.formats.keys import StreamKeys, is_name, looks_escaped, unescape
from offload.formats.root import decode_root
from offload.ground.errors import AnchorLost, Corrupt, NotFound, UnsupportedFormat
from offload.model.part import StreamPart, part_like
from offload.native.anchors import read_anchor
from offload.native.fragment_check import load_own_tail

OTHER_STREAM: Final = "stream in the anchor"
"""The damage of a sound anchor that is in the folder of another stream."""

DecodeAnchor = Callable[[bytes], StreamKeys]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamUnder:
    """The stream under one first part of keys."""

    stream: str | None
    """The name, or None if no object that is left has it. Then no command can name the stream."""

    damage: Corrupt | UnsupportedFormat | None = None
    """The reason why the anchor does not give the name, if it does not."""

    is_lost: bool = False
    """Whether there is no anchor."""


async def stream_under(
    store: ObjectStore, part: str, *, counted: Callable[[DecodeAnchor], DecodeAnchor] = lambda decode: decode
) -> StreamUnder | None:
    """Return the stream under this part, or None if none was begun there. A sound anchor costs one request.

    `counted` wraps the function that decodes the anchor, for callers that count what is read.
    """
    where = f"{part}/stream.anchor"
    try:
        keys = await read_anchor(store, where, counted(partial(_keys_in_anchor, where=where)))
    except NotFound:
        # A tier may be in a folder beside other people's, so a folder without objects of ours is no stream.
        if not await _has_stream(store, part):
            return None
        stream = await _name_without_anchor(store, part)
        lost = Corrupt("anchor", where, expected="present", found="absent")
        if stream is not None:
            lost = AnchorLost(where, tier=store.url, stream=stream)
        return StreamUnder(stream=stream, damage=lost, is_lost=True)
    except (Corrupt, UnsupportedFormat) as damage:
        stream = await _name_without_anchor(store, part)
        # A rebuild replaces an anchor that does not decode. It never touches a sound one of another stream.
        if isinstance(damage, Corrupt) and damage.what != OTHER_STREAM and stream is not None:
            damage = AnchorLost(where, tier=store.url, stream=stream, damage=damage)
        return StreamUnder(stream=stream, damage=damage)
    return StreamUnder(stream=keys.stream)


async def read_stream_anchor(store: ObjectStore, keys: StreamKeys) -> StreamAnchor:
    """Read the anchor of a stream. Raises `NotFound` if there is none.

    Raises `AnchorLost` for a damaged anchor, and `Corrupt` for a sound one of another stream.
    """
    try:
        anchor = await read_anchor(store, keys.anchor, partial(StreamAnchor.decode, where=keys.anchor))
    except Corrupt as damage:
        raise AnchorLost(keys.anchor, tier=store.url, stream=keys.stream, damage=damage) from damage
    if anchor.stream != keys.stream:
        raise Corrupt("anchor", keys.anchor, stream=keys.stream, expected=keys.stream, found=anchor.stream)
    return anchor


async def find_stream_anchor(store: ObjectStore, keys: StreamKeys) -> StreamAnchor | None:
    """Return the anchor of a stream, or None if no stream of this name was ever begun: one listing then.

    Raises `AnchorLost` if the anchor is lost and the stream is there, or if the anchor is damaged.
    """
    # The listing comes first. Without it, a part whose anchor is lost would hide itself and all later parts.
    async with aclosing(cast("AsyncGenerator[Listed, None]", store.list(keys.prefix))) as rows:
        if await anext(rows, None) is None:
            return None
    try:
        return await read_stream_anchor(store, keys)
    except NotFound as exc:
        if not await _has_stream(store, keys.prefix[:-1]):
            return None
        raise AnchorLost(keys.anchor, tier=store.url, stream=keys.stream) from exc


def was_deleted(stream: str, url: str) -> str:
    """Return the text of the error for a deleted stream. A part is not begun again, so it does not say so."""
    again = "; a sync begins it again" if part_like(stream).number == 1 else ""
    return f"stream {stream!r} of {url} was deleted{again}"


async def list_parts(store: ObjectStore, stream: str, *, after: int = 1) -> list[StreamPart]:
    """Return the parts of a stream behind part `after`, in order. See `Catalogue.parts`.

    The search ends at the first name that no stream has. A name that a stream has is never free again. So
    every part is found, also behind a name that a stream of its own has.
    """
    # A part below 1 has a name that no stream has, at which the search would end.
    found, part = list[StreamPart](), StreamPart(stream, max(after, 1)).following
    while is_name(part.name) and (anchor := await find_stream_anchor(store, StreamKeys(part.name))):
        if anchor.as_part == part:
            found.append(anchor.as_part)
        part = part.following
    return found


def _keys_in_anchor(raw: bytes, *, where: str) -> StreamKeys:
    """Return the keys of the stream that this anchor names. Raises `Corrupt` if `where` is not its key."""
    keys = StreamKeys(StreamAnchor.decode(raw, where=where).stream)
    if keys.anchor != where:
        part = where.partition("/")[0]
        found = f"{keys.stream!r}; if somebody renamed or copied this folder, move it back or out of the tier"
        raise Corrupt(OTHER_STREAM, where, stream=unescape(part), expected=f"that of {part}/", found=found)
    return keys


async def _has_stream(store: ObjectStore, part: str) -> bool:
    """Return whether there is a root, a fragment or a group under this first part of keys."""
    prefixes = (f"{part}/metadata/root.", f"{part}/data/", f"{part}/groups/")
    return looks_escaped(part) and await first_object(store, *prefixes) is not None


async def _name_without_anchor(store: ObjectStore, part: str) -> str | None:
    """Return the name of the stream under this part, whose anchor is lost, or None if no object has it."""
    # A long name is cut in keys, so it must be read from an object. Any sound root or fragment has it. The
    # name is believed only if its keys begin with this part: a stray copy of another stream has another name.
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
            return decode_root(bytes(await store.get(listed.key)), where=listed.key).stream
        return (await load_own_tail(store, listed.key, size_bytes=listed.size_bytes))[0].stream
    except (Corrupt, NotFound, UnsupportedFormat):
        return None
