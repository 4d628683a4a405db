"""Rebuilding a stream's manifest from its data objects alone, when all of its roots are lost.

The steps (docs/commit-protocol.md, step "rebuild"), each in this order for a reason:

    look       list everything, read what each fragment says of itself
    fence      create a root far above every number that any object mentions; it names nothing
    look again what a writer may have stored since; from here on no commit of anybody else's counts
    commit     one root that names the chosen fragments

The operator asserts that no writer and no sweep of the stream is alive: a sweep in between could delete what
the rebuild names. Invariants: nothing is deleted; nothing is committed where a hole is, unless the
operator says where the stream begins or ends; a rebuild that was interrupted is begun again by the same
command, above its own fence.

What comes back may be more than was committed: fragments that were trimmed, or whose attempt was dropped,
say nothing of that. Groups are not needed. Only the tails of fragments are read; `verify` reads the rest.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from offload.env import Env
from offload.errors import Conflict, Corrupt, Misuse, NotFound, NotOffloaded, RootsLost, UnsupportedFormat
from offload.formats.anchor import StreamAnchor
from offload.formats.checksums import crc32c
from offload.formats.keys import StreamKeys
from offload.formats.manifest import Manifest, State
from offload.manifest.commit import RootLog
from offload.manifest.rebuilding import Choice, Fence, Found, Rebuilt, choose
from offload.store.port import Listed, ObjectStore
from offload.tasks import run_each
from offload.tier.fragment_check import load_own_tail
from offload.tier.fragment_writer import entry_of
from offload.tier.object_store_offloader import ObjectStoreOffloader
from offload.tier.place import create_anchor

TAILS_AT_ONCE: Final = 16

Tail = Found | Corrupt
"""What a fragment says of itself, or why it cannot be believed."""

Tell = Callable[[int], None]
"""Told that so many more were read."""

ReadTails = Callable[[ObjectStore, StreamKeys, Sequence[Listed], Tell], Awaitable[Mapping[str, Tail]]]
"""Reads the tails of all these fragments: by key what each says. `read_tails` is one."""


async def read_tails(
    store: ObjectStore, keys: StreamKeys, rows: Sequence[Listed], tell: Tell
) -> Mapping[str, Tail]:
    """Read the tails of these fragments, some at once. Raises `Conflict` where one is deleted meanwhile."""
    found: dict[str, Tail] = {}

    async def read(row: Listed) -> None:
        found[row.key] = await _tail(store, keys, row)
        tell(1)

    await run_each(read, rows, at_once=TAILS_AT_ONCE)
    return found


async def _tail(store: ObjectStore, keys: StreamKeys, row: Listed) -> Tail:
    try:
        tail, raw = await load_own_tail(store, row.key, size_bytes=row.size_bytes)
    except NotFound as exc:
        raise Conflict(f"{row.key} was deleted meanwhile: stop every sweep, and run again") from exc
    except Corrupt as damage:
        return damage.within(row.key, stream=keys.stream)
    except UnsupportedFormat as newer:
        known = "one that this program knows"
        return Corrupt("format version", row.key, expected=known, found=str(newer))
    trailer = tail.trailer
    return Found(
        entry=entry_of(trailer, crc32c(raw, trailer.data_checksum)),  # of header, chunks, and the tail
        incarnation=trailer.incarnation,
        epoch=trailer.epoch,
        base_version=trailer.base_version,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildReport:
    """What was found, and what was or would be committed."""

    stream: str
    choice: Choice
    damages: list[Corrupt]
    manifest: Manifest | None
    """As committed; None where nothing was."""

    def as_json(self) -> dict[str, object]:
        """The document of `offload rebuild --json`."""
        keys, chosen = StreamKeys(self.stream), self.choice.chosen
        return {
            "stream": self.stream,
            "committed": self.manifest is not None,
            "version": None if self.manifest is None else self.manifest.version,
            "first_offset": chosen[0].entry.first_offset if chosen else None,
            "next_offset": chosen[-1].entry.next_offset if chosen else None,
            "fragments": len(chosen),
            "messages": sum(each.entry.messages for each in chosen),
            "holes": [{"first_offset": begin, "next_offset": end} for begin, end in self.choice.holes],
            "left_out": [
                {
                    "object": keys.fragment(each.entry.first_offset, each.entry.attempt),
                    "first_offset": each.entry.first_offset,
                    "next_offset": each.entry.next_offset,
                    "reason": reason,
                }
                for each, reason in self.choice.left_out
            ],
            "damages": [str(damage) for damage in self.damages],
        }


async def rebuild(
    offloader: ObjectStoreOffloader,
    stream: str,
    *,
    begin: int | None = None,
    end: int | None = None,
    dry_run: bool = False,
    env: Env | None = None,
    read_tails: ReadTails = read_tails,
    progress: Callable[[int, int], None] = lambda read, listed: None,
) -> RebuildReport:
    """Make a stream's manifest anew. `begin` and `end` are the operator's word on where it begins and ends.

    With holes, and no word on them, nothing is committed: the report has no manifest. Raises `Conflict`
    where a sound newest root stands or the stream was deleted, `NotOffloaded` where no fragment is left,
    `Misuse` where no fragment begins at `begin` or ends at `end`. `read_tails` may have other machines read
    the tails; all that is decided is decided here. `progress` is told how many fragments were read, and how
    many are known.
    """
    env = env or Env()
    await offloader.open()
    log = offloader.log(stream)
    standing = await _standing(log)
    survey = _Survey(store=offloader.store, keys=StreamKeys(stream), read_tails=read_tails, progress=progress)
    await survey.look()
    choice = _chosen(survey, begin, end)
    if dry_run or choice.holes:
        return _report(stream, choice, survey, None)

    # 1. The fence. From here on no root of anybody else's can be the newest.
    newest = choice.chosen[-1]
    fence = Fence(
        stream=stream,
        writer=env.uuid(),
        incarnation=newest.incarnation,
        epoch=survey.epoch + 1,
        above=survey.number,
    )
    fenced = await log.commit(fence, base=standing, committer=fence.writer)

    # 2. What came about before the fence stood.
    await survey.look()
    choice = _chosen(survey, begin, end)
    if choice.holes or choice.chosen[-1].incarnation != fence.incarnation:
        return _report(stream, choice, survey, None)

    # 3. The one commit.
    entries = [each.entry for each in choice.chosen]
    await create_anchor(offloader.store, log.keys.anchor, StreamAnchor(stream=stream).encode(), env)
    manifest = await log.commit(
        Rebuilt(writer=fence.writer, entries=entries), base=fenced, committer=fence.writer
    )
    return _report(stream, choice, survey, manifest)


def _report(stream: str, choice: Choice, survey: _Survey, manifest: Manifest | None) -> RebuildReport:
    return RebuildReport(
        stream=stream, choice=choice, damages=list(survey.damages.values()), manifest=manifest
    )


async def _standing(log: RootLog) -> Manifest | None:
    """The fence of an earlier rebuild, or None. Raises `Conflict` where a root stands that decides."""
    try:
        newest = await log.load_newest()
    except RootsLost:
        return None
    except (Corrupt, UnsupportedFormat) as damage:
        raise Conflict(
            f"stream {log.stream!r}: its newest root is there, but does not hold ({damage}); "
            "look at it, and remove it by hand if the data is to be believed instead"
        ) from damage
    if newest is None or newest.state is State.REBUILDING:
        return newest
    if newest.state is State.DELETED:
        raise Conflict(f"stream {log.stream!r} was deleted; there is nothing to rebuild")
    raise Conflict(f"stream {log.stream!r} has a sound manifest, version {newest.version}; nothing is lost")


def _chosen(survey: _Survey, begin: int | None, end: int | None) -> Choice:
    found = list(survey.found.values())
    if not found:
        raise NotOffloaded(
            f"stream {survey.keys.stream!r} has no fragment that holds; nothing can be rebuilt"
        )
    choice = choose(found, begin=begin, end=end)
    if not choice.chosen:
        starts = sorted({each.entry.first_offset for each in found})
        near = ", ".join(map(str, starts[:5])) + (", …" if len(starts) > 5 else "")
        raise Misuse(
            f"stream {survey.keys.stream!r}: no fragment begins at offset {begin}; some do at {near}"
        )
    if end is not None and choice.chosen[-1].entry.next_offset != end and not choice.holes:
        raise Misuse(f"stream {survey.keys.stream!r}: no fragment in line ends at offset {end}")
    return choice


@dataclass(slots=True, kw_only=True)
class _Survey:
    """Everything that stands under a stream's prefix, as far as a rebuild needs it."""

    store: ObjectStore
    keys: StreamKeys
    read_tails: ReadTails
    progress: Callable[[int, int], None]
    found: dict[str, Found] = field(default_factory=dict)
    damages: dict[str, Corrupt] = field(default_factory=dict)
    number: int = 0
    """The highest number of a root that any object mentions."""

    @property
    def epoch(self) -> int:
        """The highest epoch that any fragment mentions."""
        return max(each.epoch for each in self.found.values())

    async def look(self) -> None:
        """List all, and read what was not read before: objects do not change."""
        async for listed in self.store.list(self.keys.roots):
            self.number = max(self.number, self.keys.parse_root(listed.key) or 0)
        async for listed in self.store.list(self.keys.groups):
            group = self.keys.parse_group(listed.key)
            self.number = max(self.number, group[1] if group else 0)
        rows = [row async for row in self.store.list(self.keys.data) if self.keys.parse_fragment(row.key)]
        gone = self.found.keys() - {row.key for row in rows}
        if gone:
            raise Conflict(
                f"{min(gone)} was deleted meanwhile: stop every sweep of the stream, and run again"
            )
        fresh = [row for row in rows if row.key not in self.found and row.key not in self.damages]
        read = len(self.found) + len(self.damages)

        def tell(more: int) -> None:
            nonlocal read
            read += more
            self.progress(read, len(rows))

        tails = await self.read_tails(self.store, self.keys, fresh, tell)
        for row in fresh:
            self._keep(row.key, tails[row.key])

    def _keep(self, key: str, tail: Tail) -> None:
        if isinstance(tail, Found):
            self.number = max(self.number, tail.base_version)
            self.found[key] = tail
        else:
            self.damages[key] = tail
