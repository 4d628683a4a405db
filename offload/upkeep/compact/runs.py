"""Compaction: small fragments of a ledger that lie next to each other become one, and readers notice nothing.

    plan       which runs of fragments are worth it, from the manifest's tree alone
    copy       a run is read and uploaded as one ledger's data, verbatim, under an attempt that was announced

The steps around these, and who drives them, are in `compacting`.

Invariants: a run is of one ledger, of attempts that begin alike, and stands in one group, or in the root; it
never has the stream's newest fragment; its copy is one fragment. What is in the way (a trim, a deletion,
another compaction) is a `Conflict`, and leaves the stream as it is (docs/commit-protocol.md, step "replace").
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from offload.contracts.ledger import ReadHandle
from offload.contracts.offloader import LedgerOffloader
from offload.errors import Absent, Conflict, Misuse
from offload.model.attempt import Attempt, Receipt
from offload.model.entry import Entry, entries_of_rows
from offload.model.manifest import Manifest
from offload.model.tokens import token_of
from offload.model.tree import Tree
from offload.native.fragment_reader import open_entries
from offload.streams.reader import newer_manifest


@dataclass(frozen=True, slots=True)
class FragmentRun:
    """Fragments that may become one."""

    entries: tuple[Entry, ...]

    @property
    def ledger_id(self) -> int:
        """Their ledger."""
        return self.entries[0].ledger_id

    @property
    def data_size_bytes(self) -> int:
        """Chunk bytes of all of them."""
        return sum(entry.data_size_bytes for entry in self.entries)


async def plan_runs(
    tree: Tree, *, fragment_size_bytes: int, fragments_min: int = 2, since: int = 0
) -> AsyncGenerator[FragmentRun, None]:
    """Runs of at least so many fragments that are one of at most `fragment_size_bytes` together. Close it.

    Those that are half as large already, or larger, are left as they are, and so is what ends at or below the
    offset `since`. Fetches each group once, and holds
    the runs of one at a time.
    """
    if fragments_min < 2:
        raise Misuse(f"runs of {fragments_min} fragments: two at least become one")
    async with aclosing(tree.walk(since)) as leaves:
        async for leaf in leaves:
            for run in _runs_in(entries_of_rows(leaf), tree.manifest, fragment_size_bytes):
                if len(run) >= fragments_min:
                    yield FragmentRun(tuple(run))


def _runs_in(entries: Sequence[Entry], manifest: Manifest, size_bytes: int) -> Iterator[list[Entry]]:
    run: list[Entry] = []
    for entry in entries:
        fits = sum(each.data_size_bytes for each in run) + entry.data_size_bytes <= size_bytes
        is_small = 2 * entry.data_size_bytes < size_bytes and entry.next_offset < manifest.next_offset
        if not (is_small and fits and (not run or _are_alike(run[-1], entry))):
            yield run
            run = []
        if is_small:
            run.append(entry)
    yield run


def _are_alike(one: Entry, other: Entry) -> bool:
    return (one.ledger_id, token_of(one.attempt)) == (other.ledger_id, token_of(other.attempt))


async def copy_run(
    offloader: LedgerOffloader,
    run: FragmentRun,
    attempt: Attempt,
    *,
    manifest: Manifest,
    extra_metadata: Mapping[str, str] | None = None,
) -> Receipt:
    """Upload a copy of the run under an attempt that `manifest` runs as a copy. Commits nothing.

    Raises `Conflict` where the run was trimmed or replaced meanwhile, and swept, and `StreamDeleted` where
    the stream was deleted. The copy is one fragment where the offloader's own size is at least the run's.
    """
    try:
        handle = await open_run(offloader, run, manifest=manifest)
        async with handle:
            return await offloader.offload(
                handle, attempt, manifest=manifest, extra_metadata=extra_metadata or {}
            )
    except Absent as absent:
        await newer_manifest(offloader, manifest, absent)  # raises where it is damage
        raise Conflict(f"{absent.where} was trimmed or replaced, and swept, before it was copied") from absent


async def open_run(offloader: LedgerOffloader, run: FragmentRun, *, manifest: Manifest) -> ReadHandle:
    """All that the run holds, as one handle. Raises `Conflict` where `manifest` names some of it no more."""
    tree = offloader.tree(manifest)
    for entry in run.entries:
        if not await tree.names(entry.first_offset, entry.attempt):
            raise Conflict(f"offset {entry.first_offset} was trimmed or replaced since that was planned")
    where = f"offsets [{run.entries[0].first_offset}, {run.entries[-1].next_offset})"
    return await open_entries(offloader.view_of(manifest), run.entries, where=where)
