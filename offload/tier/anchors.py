"""Restoring anchors that are lost or damaged: a stream's, which holds its name, and a tier's.

An anchor decides nothing that commits rest on, but every command wants it: without one nobody can tell a tier
from a folder of strangers. A stream's anchor holds only its name, so it can always be made again, with the
same bytes.
"""

from __future__ import annotations

from functools import partial

from offload.env import Env
from offload.errors import Corrupt, NotFound
from offload.formats.anchor import StreamAnchor
from offload.formats.keys import StreamKeys
from offload.store.port import Body, ObjectStore
from offload.tier.place import create_anchor, read_anchor


async def restore_stream_anchor(store: ObjectStore, stream: str, *, env: Env, dry_run: bool = False) -> bool:
    """Make sure that the stream has its anchor. Return whether it was lost or damaged.

    Raises `Corrupt` if the anchor is sound and names another stream, `UnsupportedFormat` if a newer
    version of this program wrote it: then it is left as it is.
    """
    key, raw = StreamKeys(stream).anchor, StreamAnchor(stream=stream).encode()
    try:
        found = await read_anchor(store, key, partial(StreamAnchor.decode, where=key))
    except NotFound:
        if not dry_run:
            await create_anchor(store, key, raw, env)
        return True
    except Corrupt:
        if not dry_run:
            await store.put(key, Body.of(raw))
        return True
    if found.stream != stream:
        raise Corrupt("anchor", key, stream=stream, expected=stream, found=found.stream)
    return False
