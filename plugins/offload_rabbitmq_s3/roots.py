"""The root that is read: of all roots of a stream, the one that its brokers committed last.

RabbitMQ's metadata store, Khepri, names the committed root, and it is not in the bucket. So the root is
chosen: the highest epoch, then the highest next offset, then the highest first offset. The plugin uploads
committed chunks alone, so data that only a newer, uncommitted root names is the stream's too. The caller may
name another root.

Cost: one list and one get, or one more get for each further root of the highest epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from offload.contracts.store import ObjectStore, Span
from offload.ground.errors import Misuse, NotFound, NotOffloaded, TryAgain, UnsupportedFormat
from offload.ground.tasks import in_order, one_by_one
from offload.model.entry import EntryKind
from offload.store.checked import checked
from offload_rabbitmq_s3.keys import RabbitmqKey, is_stream_id, older_root, roots_prefix
from offload_rabbitmq_s3.objects import (
    MANIFEST_HEADER,
    MANIFEST_SIZE_BYTES_MAX,
    OLDER,
    RabbitmqManifest,
)

__all__ = ["ChosenRoot", "chosen_root", "given_roots", "listed", "load_manifest", "roots_of"]

LOOKS: Final = 3
"""So often the roots are listed if the chosen one was replaced before it was read."""

ROOTS_AT_ONCE: Final = 16

NAMES_MAX: Final = 5
"""So many names of roots or streams stand in a note or an error. The others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChosenRoot:
    """The root of a stream, and the other roots that the bucket has."""

    key: RabbitmqKey
    manifest: RabbitmqManifest
    rivals: Sequence[RabbitmqKey]
    is_given: bool

    @property
    def note(self) -> str | None:
        """A line on the other roots, or None if there is none."""
        if not self.rivals:
            return None
        why = "as option root says" if self.is_given else "the newest by epoch and offsets"
        others = listed([each.root_name for each in self.rivals])
        return f"stream {self.key.stream!r}: root {self.key.root_name} is read, {why}; others: {others}"


def given_roots(options: Mapping[str, Any]) -> Mapping[str, RabbitmqKey]:
    """Return the roots in the option `root`: `STREAM:EPOCH.UID`, and further ones behind commas."""
    given: dict[str, RabbitmqKey] = {}
    for text in str(options.get("root", "")).split(",") if options.get("root") else ():
        stream, _, name = text.rpartition(":")
        key = RabbitmqKey.parse(f"{roots_prefix(stream)}{name}.manifest")
        if key is None:
            raise Misuse(
                f"option 'root' takes STREAM:EPOCH.UID, as the name of a root has them, not {text!r}"
            )
        given[stream] = key
    return given


async def chosen_root(store: ObjectStore, stream: str, given: RabbitmqKey | None = None) -> ChosenRoot:
    """Return the newest root of a stream, or the one that is given.

    Raises `NotOffloaded` if it is absent, `UnsupportedFormat` if only the first generation wrote one, and
    `TryAgain` if roots are replaced faster than they can be read.
    """
    for _ in range(LOOKS):
        keys = await roots_of(store, stream, given)
        try:
            key = given or await _newest(store, keys)
            manifest = await load_manifest(store, key)
        except NotFound:
            continue
        rivals = [each for each in keys if each != key]
        return ChosenRoot(key=key, manifest=manifest, rivals=rivals, is_given=given is not None)
    raise TryAgain(
        f"{store.url}: the roots of stream {stream!r} were replaced {LOOKS} times while they were read"
    )


async def load_manifest(store: ObjectStore, key: RabbitmqKey) -> RabbitmqManifest:
    """Read a root or a group. Raises `NotFound`, `Corrupt` and `UnsupportedFormat`."""

    def decode(raw: bytes) -> RabbitmqManifest:
        if len(raw) > MANIFEST_SIZE_BYTES_MAX:
            raise UnsupportedFormat(f"{key} is larger than {MANIFEST_SIZE_BYTES_MAX} bytes")
        return RabbitmqManifest.decode(raw, kind=key.kind or EntryKind.FRAGMENT, where=str(key))

    return await checked(store, str(key), decode, span=Span(0, MANIFEST_SIZE_BYTES_MAX + 1))


async def roots_of(store: ObjectStore, stream: str, given: RabbitmqKey | None = None) -> list[RabbitmqKey]:
    """Return the keys of the roots of a stream, the highest epoch first, by one list.

    Raises as `chosen_root` if there is none, or if the given one is not among them.
    """
    found = []
    if is_stream_id(stream):  # no other name can be a part of a key
        found = [
            key
            async for row in store.list(roots_prefix(stream))
            if (key := RabbitmqKey.parse(row.key)) is not None
        ]
        older = older_root(stream)
        if not found and older in [row.key async for row in store.list(older)]:
            raise UnsupportedFormat(f"{older} is {OLDER}")
    found.sort(key=lambda each: -each.number)
    if given is not None and given not in found:
        has = listed([each.root_name for each in found]) or "none"
        raise NotOffloaded(f"{store.url} has no root {given.root_name} of stream {stream!r}; it has {has}")
    if not found:
        raise NotOffloaded(f"{store.url} has no stream {stream!r}; `offload ls` shows which it has")
    return found


def listed(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    more = f" and {len(names) - NAMES_MAX} more" if names[NAMES_MAX:] else ""
    return ", ".join(names[:NAMES_MAX]) + more


async def _newest(store: ObjectStore, keys: Sequence[RabbitmqKey]) -> RabbitmqKey:
    epoch = max(key.number for key in keys)
    newest = [key for key in keys if key.number == epoch]
    if not newest[1:]:
        return newest[0]

    async def header_of(key: RabbitmqKey) -> tuple[int, int, int]:
        def decode(raw: bytes) -> RabbitmqManifest:
            return RabbitmqManifest.decode_header(raw, kind=EntryKind.FRAGMENT, where=str(key))

        span = Span(0, MANIFEST_HEADER.size_bytes)
        header = await checked(store, str(key), decode, span=span)
        return header.next_offset, header.first_offset, key.uid

    async with aclosing(in_order(header_of, one_by_one(newest), at_once=ROOTS_AT_ONCE)) as headers:
        return max([(of, key) async for key, of in headers])[1]
