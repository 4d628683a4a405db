"""Runs of fragments: neighbouring small fragments of a ledger that may become one, without readers noticing.

    plan       find the runs that are worth a copy, from the manifest's tree alone
    copy       read a run, and upload it verbatim as one ledger's data, under an attempt that was announced

`upkeep.compact.stream` has the steps around these.

Invariants: a run is of one ledger, and its attempts begin with the same token; all of it is in one group, or
in the root; it never includes the stream's newest fragment; its copy is one fragment. A trim, a deletion or
another compaction that gets in the way is a `Conflict`, and leaves the stream as it is
(docs/commit-protocol.md, step "replace").
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from offload.contracts.ledger import ReadHandle
from offload.contracts.offloader import LedgerOffloader
from offload.ground.errors import Absent, Conflict, Misuse
from offload.model.attempt import Attempt, Receipt
from offload.model.entry import Entry, entries_of_rows
from offload.model.manifest import Manifest
from offload.model.tokens import token_of
from offload.model.tree import Tree
from offload.native.fragment_reader import open_entries
from offload.read.reader import newer_manifest


@dataclass(frozen=True, slots=True)
class FragmentRun:
    """Neighbouring fragments that may become one."""

    entries: tuple[Entry, ...]

    @property
    def ledger_id(self) -> int:
        """The ledger of all of them."""
        return self.entries[0].ledger_id

    @property
    def data_size_bytes(self) -> int:
        """The chunk bytes of all of them."""
        return sum(entry.data_size_bytes for entry in self.entries)


async def plan_runs(
    tree: Tree, *, fragment_size_bytes: int, fragments_min: int = 2, since: int = 0
) -> AsyncGenerator[FragmentRun, None]:
    """Yield runs of at least `fragments_min` fragments, of at most `fragment_size_bytes` together.

    A fragment of half that size or more stays as it is. So does a fragment that ends at or below the offset
    `since`. Fetches each group once, and holds the runs of one group at a time. Close the generator.
    """
    if fragments_min < 2:
        raise Misuse(f"fragments_min is {fragments_min}: at least 2 fragments become one")
    async with aclosing(tree.walk(since)) as leaves:
        # A leaf is the fragments of one group, or of the root. `replace` refuses a run across two of them.
        async for leaf in leaves:
            for run in _runs_in(entries_of_rows(leaf), tree.manifest, fragment_size_bytes):
                if len(run) >= fragments_min:
                    yield FragmentRun(tuple(run))


def _runs_in(entries: Sequence[Entry], manifest: Manifest, size_bytes: int) -> Iterator[list[Entry]]:
    run: list[Entry] = []
    for entry in entries:
        fits = sum(each.data_size_bytes for each in run) + entry.data_size_bytes <= size_bytes
        # Half the size and above: merging it would copy much and save little, again in every later run. The
        # newest fragment stays, or each append would have the end of the stream copied once more.
        is_small = 2 * entry.data_size_bytes < size_bytes and entry.next_offset < manifest.next_offset
        if not (is_small and fits and (not run or _are_alike(run[-1], entry))):
            yield run
            run = []
        if is_small:
            run.append(entry)
    yield run


def _are_alike(one: Entry, other: Entry) -> bool:
    # A token names the batch that a job wrote. A repeated batch is found by it, so a copy must keep it, and
    # fragments of two batches must not become one.
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

    The copy is one fragment if the offloader's own fragment size is at least the size of the run. Raises
    `Conflict` if the run was trimmed or replaced meanwhile, and swept; `StreamDeleted` if the stream was
    deleted.
    """
    try:
        handle = await open_run(offloader, run, manifest=manifest)
        async with handle:
            receipt = await offloader.offload(
                handle, attempt, manifest=manifest, extra_metadata=extra_metadata or {}
            )
            return replace(receipt, dropped_sections=handle.unknown_sections())
    except Absent as absent:
        # Damage or a sweep? If the newest manifest still names the fragment, this raises `absent` again.
        await newer_manifest(offloader, manifest, absent)
        raise Conflict(f"{absent.where} was trimmed or replaced, and swept, before it was copied") from absent


async def open_run(offloader: LedgerOffloader, run: FragmentRun, *, manifest: Manifest) -> ReadHandle:
    """Return one handle on the whole run. Raises `Conflict` if `manifest` no longer names all of it."""
    tree = offloader.tree(manifest)
    for entry in run.entries:
        if not await tree.names(entry.first_offset, entry.attempt):
            raise Conflict(f"offset {entry.first_offset} was trimmed or replaced since the copy was planned")
    where = f"offsets [{run.entries[0].first_offset}, {run.entries[-1].next_offset})"
    return await open_entries(offloader.view_of(manifest), run.entries, where=where)
