"""What is in a bucket, and what of it no manifest names.

The plugin's collection of garbage is off by default, so crashes, resets and deposed leaders leave objects.
Each object that the chosen root does not name has one of these reasons:

    older epoch, older root      a root that another one replaced
    newer root                   a root that came during the scan, or that the option `root` passed over
    below the first offset       of data that retention dropped; a dead entry of a group may still name it
    other cut of the same offsets    another leader uploaded these offsets too
    group without a parent       it was uploaded, and its root never came
    behind the next offset       perhaps under way: its root may still come
    no root                      the stream has no root at all

Invariants: nothing is deleted. A group or a fragment that the root needs is never called unused: a leading
group may begin below the first offset. A stream whose groups cannot be read is not judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

from offload.ground.errors import Absent, Corrupt, NotOffloaded, OffloadError, UnsupportedFormat
from offload.model.entry import Entries
from offload.model.manifest import CommittedStream
from offload.model.tree import EntryTree
from offload_rabbitmq_s3.catalogue import RabbitmqS3Catalogue, committed_in, fragment_keys, key_of
from offload_rabbitmq_s3.keys import STREAMS, RabbitmqKey, is_stream_id, stream_prefix
from offload_rabbitmq_s3.objects import FRAGMENT_HEADER, INDEX_RECORD
from offload_rabbitmq_s3.roots import ChosenRoot

__all__ = ["RabbitmqS3Scan", "ScannedObject", "ScannedStream", "scan_bucket"]

STRANGERS_MAX: Final = 20
"""So many objects of strangers are named. The others are counted."""

LOOKS: Final = 3
"""So often a stream is looked at, if objects that its root names went away meanwhile."""


@dataclass(frozen=True, slots=True)
class ScannedObject:
    """An object that the chosen root does not name, or one that it names and that is not there."""

    key: str
    size_bytes: int
    reason: str


@dataclass(slots=True, kw_only=True)
class ScannedStream:
    """One stream of the bucket."""

    stream: str
    root: RabbitmqKey | None = None
    rivals: list[str] = field(default_factory=list)
    first_offset: int = 0
    next_offset: int = 0
    objects: int = 0
    size_bytes: int = 0
    missing: list[ScannedObject] = field(default_factory=list)
    unused: list[ScannedObject] = field(default_factory=list)
    error: OffloadError | None = None
    """The reason why the stream could not be judged."""

    @property
    def is_bad(self) -> bool:
        """True if data is missing or damaged."""
        return bool(self.missing) or self.error is not None


@dataclass(slots=True, kw_only=True)
class RabbitmqS3Scan:
    """The result of a scan."""

    streams: list[ScannedStream] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)
    stranger_count: int = 0

    @property
    def is_bad(self) -> bool:
        """True if data is missing or damaged."""
        return any(each.is_bad for each in self.streams)

    @property
    def objects(self) -> int:
        """The number of objects of all streams."""
        return sum(each.objects for each in self.streams)

    def totals(self) -> list[tuple[str, int, int]]:
        """Return each reason with the number of its unused objects and their bytes."""
        counts, sizes = Counter[str](), Counter[str]()
        for each in (each for stream in self.streams for each in stream.unused):
            counts[each.reason] += 1
            sizes[each.reason] += each.size_bytes
        return [(reason, count, sizes[reason]) for reason, count in counts.most_common()]

    def note_stranger(self, key: str) -> None:
        """Count an object that is none of the plugin's."""
        self.stranger_count += 1
        if len(self.strangers) < STRANGERS_MAX:
            self.strangers.append(key)


async def scan_bucket(
    tier: RabbitmqS3Catalogue,
    found: RabbitmqS3Scan,
    progress: Callable[[RabbitmqS3Scan], None] = lambda found: None,
) -> None:
    """Add all streams of a bucket to `found`. Lists each stream once, and reads its root and its groups."""
    async for name in tier.store.level(STREAMS):
        stream = name.removeprefix(STREAMS).removesuffix("/")
        if not name.endswith("/") or not is_stream_id(stream):
            found.note_stranger(name)
            continue
        for look in range(LOOKS):
            strangers: list[str] = []
            scanned = await _scanned(tier, stream, strangers)
            if not scanned.missing or look == LOOKS - 1 or await _is_newest(tier, scanned):
                break
        found.streams.append(scanned)
        for key in strangers:
            found.note_stranger(key)
        progress(found)


async def _is_newest(tier: RabbitmqS3Catalogue, scanned: ScannedStream) -> bool:
    return (await tier.root(scanned.stream)).key == scanned.root


async def _scanned(tier: RabbitmqS3Catalogue, stream: str, strangers: list[str]) -> ScannedStream:
    scanned, root, named = ScannedStream(stream=stream), None, dict[str, int]()
    try:
        # The root comes before the listing: what is uploaded meanwhile is behind its next offset.
        root = await tier.root(stream)
        scanned.root, scanned.rivals = root.key, [each.root_name for each in root.rivals]
        named = await _named_by(tier, root, scanned)
    except Absent as gone:
        scanned.missing.append(ScannedObject(gone.where, 0, "absent: its members are not known"))
        scanned.error = gone
    except (Corrupt, UnsupportedFormat) as error:
        scanned.error = error
    except NotOffloaded:
        pass
    async for row in tier.store.list(stream_prefix(stream)):
        # Most objects are named, so no key is parsed before it is looked for.
        if (size_bytes := named.pop(row.key, None)) is not None:
            if size_bytes and not _is_size(row.size_bytes, size_bytes):
                scanned.missing.append(ScannedObject(row.key, row.size_bytes, "of another size"))
        elif (key := RabbitmqKey.parse(row.key)) is None:
            strangers.append(row.key)
            continue
        elif scanned.error is None and (root is None or key != root.key):
            scanned.unused.append(ScannedObject(row.key, row.size_bytes, _reason(key, root, scanned)))
        scanned.objects += 1
        scanned.size_bytes += row.size_bytes
    scanned.missing += [ScannedObject(key, 0, "absent") for key in sorted(named)]
    return scanned


async def _named_by(tier: RabbitmqS3Catalogue, root: ChosenRoot, scanned: ScannedStream) -> dict[str, int]:
    """Return the keys that a root needs, each with the size of its chunks, which is 0 for a group."""
    committed, named = committed_in(root), dict[str, int]()
    scanned.first_offset, scanned.next_offset = committed.first_offset, committed.next_offset

    async def load(of: CommittedStream, row: Entries) -> Entries:
        named[str(key_of(of.stream, row))] = 0
        return await tier.load_group(of, row)

    async with aclosing(EntryTree(committed, load).walk()) as runs:
        async for run in runs:
            named.update(
                zip(fragment_keys(committed.stream, run), run["data_size_bytes"].tolist(), strict=True)
            )
    return named


def _is_size(found: int, chunks: int) -> bool:
    index = found - FRAGMENT_HEADER.size_bytes - chunks
    return index > 0 and index % INDEX_RECORD.size_bytes == 0


def _reason(key: RabbitmqKey, root: ChosenRoot | None, scanned: ScannedStream) -> str:
    if root is None:
        return "no root"
    if key.kind is None:
        if key in root.rivals and not root.is_given:
            return "older epoch" if key.number < root.key.number else "older root"
        return "newer root" if key.number >= root.key.number else "older epoch"
    if key.number < scanned.first_offset:
        return "below the first offset"
    if key.number >= scanned.next_offset:
        return "behind the next offset: perhaps under way"
    return "group without a parent" if key.kind else "other cut of the same offsets"


def as_json(found: RabbitmqS3Scan) -> dict[str, Any]:
    """Return the scan for `--json`."""
    return {
        "streams": [
            {
                "stream": each.stream,
                "root": None if each.root is None else str(each.root),
                "other_roots": each.rivals,
                "first_offset": each.first_offset,
                "next_offset": each.next_offset,
                "objects": each.objects,
                "bytes": each.size_bytes,
                "error": None if each.error is None else str(each.error),
                "missing": [_object(one) for one in each.missing],
                "unused": [_object(one) for one in each.unused],
            }
            for each in found.streams
        ],
        "strangers": {"objects": found.stranger_count, "first": found.strangers},
        "totals": [
            {"reason": reason, "objects": count, "bytes": size} for reason, count, size in found.totals()
        ],
    }


def _object(one: ScannedObject) -> dict[str, object]:
    return {"object": one.key, "bytes": one.size_bytes, "reason": one.reason}
