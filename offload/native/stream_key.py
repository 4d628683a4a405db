"""Whether a stream is encrypted, and with which key its next fragments are.

The ring (`native.key_ring`) makes and unwraps keys. This module compares what the ring finds with the
stream's newest root and fragments: key objects may be lost, and a shred may have taken them.

Invariants: a stream that is encrypted is never continued in the clear; a key that is missing because the
stream was deleted is reported as `StreamDeleted`.
"""

from __future__ import annotations

import asyncio
from typing import Protocol
from uuid import UUID

from offload.commit.log import RootLog
from offload.contracts.store import ObjectStore
from offload.formats.sealing import DataKey
from offload.ground.errors import Absent, Conflict, Denied, StreamDeleted
from offload.model.attempt import Attempt
from offload.model.entry import EntryKind
from offload.model.manifest import CommittedStream, Manifest, StreamState
from offload.model.tree import Tree
from offload.native.key_objects import listed_keys
from offload.native.key_ring import NO_SERVICE, KeyRing, StreamKey
from offload.native.stream_names import was_deleted

__all__ = ["StreamEncryption"]


class TierOfStreams(Protocol):
    """The part of an open offloader that the questions of this module need."""

    @property
    def url(self) -> str: ...

    @property
    def store(self) -> ObjectStore: ...

    def log(self, stream: str) -> RootLog: ...

    def tree(self, manifest: Manifest) -> Tree: ...


class StreamEncryption:
    """The keys of a tier's streams, as its writers and readers ask for them.

    `ring` is None if no key service was given. Then encrypted streams are recognized and refused.
    """

    def __init__(self, tier: TierOfStreams, ring: KeyRing | None) -> None:
        self._tier = tier
        self._ring = ring
        self._without_key: dict[str, tuple[UUID, int]] = {}
        """The life and epoch in which a stream had no key."""
        self._asking = asyncio.Lock()

    async def key_for_writing(self, manifest: Manifest) -> StreamKey | None:
        """Return the key of this life of the stream. None if it is not encrypted.

        Raises `Denied` if the stream is encrypted and no keys were given: data that is to be secret must not
        be stored in the clear because an option was forgotten.
        """
        if self._ring is not None:
            try:
                found = await self._ring.for_writing(
                    self._tier.store,
                    manifest.stream,
                    manifest.incarnation,
                    base_version=manifest.version,
                    refuse_if_over=lambda: self.refuse_if_over(manifest, None),
                )
            except Denied as refused:
                await self.refuse_if_over(manifest, refused)
                raise
            if found is not None:
                return found
        if await self._is_encrypted(manifest):
            missing = (
                NO_SERVICE
                if self._ring is None
                else "its key objects are lost; restore them from a backup, or name a master key for new data"
            )
            denied = Denied(f"stream {manifest.stream!r} is encrypted, and {missing}")
            if self._ring is not None:
                await self.refuse_if_over(manifest, denied)
            raise denied
        return None

    def data_key(
        self, stream_key: StreamKey | None, attempt: Attempt, first_offset: int
    ) -> tuple[DataKey | None, bytes]:
        """Return a new key for a fragment, and the key wrapped. None if the stream is not encrypted."""
        if self._ring is None or stream_key is None:
            return None, b""
        return self._ring.data_key(stream_key, attempt=attempt.uid, first_offset=first_offset)

    async def refuse_if_over(self, committed: CommittedStream, refused: Denied | None) -> None:
        """Raise `StreamDeleted` if the stream was deleted, or begun again: perhaps a shred took its key."""
        stream, url = committed.stream, self._tier.url
        newest = await self._tier.log(stream).load_newest()
        if newest is None or newest.state is StreamState.DELETED:
            gone = was_deleted(stream, url)
            raise StreamDeleted(gone, epoch=None if newest is None else newest.epoch) from refused
        # A rebuild writes to the life that it brings back, while its root still names another one.
        is_rebuild = newest.state is StreamState.REBUILDING and newest.version == committed.version
        if newest.incarnation != committed.incarnation and not is_rebuild:
            gone = f"stream {stream!r} of {url} was deleted, and begun again since"
            raise StreamDeleted(gone, epoch=newest.epoch) from refused

    async def _is_encrypted(self, manifest: Manifest) -> bool:
        # During a rebuild the root still names the fragments of the history that is replaced.
        newest, is_rebuilding = manifest.entries[-1:], manifest.state is StreamState.REBUILDING
        if not is_rebuilding and len(newest):
            is_group = newest["kind"][0] != EntryKind.FRAGMENT
            if await self._is_newest_encrypted(manifest) if is_group else newest["encrypted"][0]:
                return True
        if self._ring is not None:
            # No key was listed a moment ago. A shred may have deleted it, and it deletes the stream first.
            if not is_rebuilding and not len(newest):
                await self.refuse_if_over(manifest, None)
            return False
        # The newest fragment may be plain although the stream has a key: a run that was to encrypt what
        # follows may have ended before its first commit.
        # Several ledgers of a stream are offloaded at once, and one of them asks. Whoever makes a key later
        # claims the stream first, under another epoch.
        claimed = manifest.incarnation, manifest.epoch
        async with self._asking:
            if self._without_key.get(manifest.stream) != claimed:
                if await listed_keys(self._tier.store, manifest.stream, manifest.incarnation):
                    return True
                self._without_key[manifest.stream] = claimed
        return False

    async def _is_newest_encrypted(self, manifest: Manifest) -> bool:
        # The entry of a group says nothing of encryption, and key objects may be lost. So the group is read.
        try:
            newest = await self._tier.tree(manifest).last()
        except Absent:  # damage, unless the manifest is an older one
            await self.refuse_if_over(manifest, None)
            now = await self._tier.log(manifest.stream).load_newest()
            if now is None or now.version == manifest.version:
                raise
            raise Conflict(
                f"stream {manifest.stream!r} has a newer root, and a group of this one is gone"
            ) from None
        return newest is not None and bool(newest.encrypted)
