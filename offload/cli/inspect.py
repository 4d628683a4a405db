"""`offload inspect`: what is committed of one stream, down to its fragments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Final

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.tree import Tree

from offload.cli.kit.arguments import Options, Stream, Tier
from offload.cli.kit.output import counted, one_line, print_json, size_text
from offload.cli.kit.state import CommandContext, run_async
from offload.contracts.catalogue import StreamView
from offload.model.entry import Entries, EntryKind, entries_of_rows
from offload.model.manifest import AttemptKind, CommittedStream, Manifest, Running
from offload.model.position import iso_of
from offload.model.totals import totals

WIDTH: Final = 100_000
"""Wider than any line: a terminal wraps what it must, and nothing is cut."""


def inspect(
    context: typer.Context,
    tier: Tier,
    stream: Stream,
    option: Options = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Show totals, root, fragments and running attempts of STREAM."""
    state: CommandContext = context.obj

    async def main() -> StreamView:
        async with state.catalogue(tier, option) as catalogue:
            return await catalogue.view(stream)

    view = run_async(main)
    if json:
        print_json(document(view), indent=2)
    else:
        Console(width=WIDTH, highlight=False, emoji=False).print(_tree(view))


def document(view: StreamView) -> dict[str, object]:
    """The stream as `offload inspect --json` prints it."""
    committed = view.committed
    return {
        "stream": committed.stream,
        "totals": totals(committed.stream, committed) | {"stored_bytes": committed.stored_size_bytes},
        "root": {"object": view.where, "version": committed.version} | _who_may_change(committed),
        "groups": [_group(view, row) for row in _groups_of(committed)],
        "fragments": [_fragment(view, row) for row in _fragments_of(committed)],
        "attempts": [_running(running) for running in _running_in(committed)],
    }


def _who_may_change(committed: CommittedStream) -> dict[str, object]:
    """The incarnation, and what a manifest says besides: a tier that is only read has none."""
    incarnation: dict[str, object] = {"incarnation": str(committed.incarnation)}
    if not isinstance(committed, Manifest):
        return incarnation
    manifest = committed
    return {
        "state": manifest.state.name.lower(),
        **incarnation,
        "writer": str(manifest.writer),
        "epoch": manifest.epoch,
        "source_epoch": manifest.source_epoch,
        "committer": str(manifest.committer),
        "commit_id": str(manifest.commit_id),
        "parent_commit_id": str(manifest.parent_commit_id),
    }


def _running_in(committed: CommittedStream) -> Sequence[Running]:
    return committed.running if isinstance(committed, Manifest) else ()


def _groups_of(committed: CommittedStream) -> Iterator[Entries]:
    """The root's own groups, oldest first, a row each. What is in them is not fetched."""
    for row in np.flatnonzero(committed.entries["kind"]):
        yield committed.entries[row : row + 1]


def _fragments_of(committed: CommittedStream) -> Iterator[Entries]:
    """The fragments that the root itself names, a row each: the newest."""
    for row in np.flatnonzero(committed.entries["kind"] == 0):
        yield committed.entries[row : row + 1]


def _group(view: StreamView, row: Entries) -> dict[str, object]:
    first_offset, records = int(row["first_offset"][0]), int(row["records"][0])
    return {
        "object": view.name_of(row),
        "kind": EntryKind(row["kind"][0]).name.lower().replace("_", "-"),
        "first_offset": first_offset,
        "next_offset": first_offset + records,
        "records": records,
        "messages": int(row["messages"][0]),
        "fragments": int(row["fragments"][0]),
        "bytes": int(row["data_size_bytes"][0]),
        "stored_bytes": int(row["stored_size_bytes"][0]),
        "first_timestamp": iso_of(int(row["first_timestamp_ms"][0])),
        "last_timestamp": iso_of(int(row["last_timestamp_ms"][0])),
        "crc32c": f"{int(row['checksum'][0]):08x}",
    }


def _running(running: Running) -> dict[str, object]:
    return {
        "attempt": str(running.attempt),
        "ledger_id": running.ledger_id,
        "epoch": running.epoch,
        "writer": str(running.writer),
        "kind": running.kind.name.lower(),
    }


def _fragment(view: StreamView, row: Entries) -> dict[str, object]:
    [entry] = entries_of_rows(row)
    return {
        "object": view.name_of(row),
        "first_offset": entry.first_offset,
        "next_offset": entry.next_offset,
        "records": entry.records,
        "messages": entry.messages,
        "bytes": entry.data_size_bytes,
        "stored_bytes": entry.stored_size_bytes,
        "first_timestamp": iso_of(entry.first_timestamp_ms),
        "last_timestamp": iso_of(entry.last_timestamp_ms),
        "ledger_id": entry.ledger_id,
        "attempt": str(entry.attempt),
        "crc32c": f"{entry.checksum:08x}",
    }


def _tree(view: StreamView) -> Tree:
    committed = view.committed
    covered = f"[{committed.first_offset}, {committed.next_offset})"
    tree = Tree(
        escape(
            f"{one_line(committed.stream)}  {counted(committed.messages, 'message')} in offsets {covered}, "
            f"{size_text(committed.stored_size_bytes)}"
        )
    )
    if isinstance(committed, Manifest):
        _add_root(tree, committed)
    else:
        tree.add(f"version {committed.version}, only read here").add(f"incarnation {committed.incarnation}")
    fragments = tree.add(f"fragments: {committed.fragments}, ledgers: {committed.ledgers}")
    for row in _groups_of(committed):
        group = _group(view, row)
        fragments.add(
            escape(
                f"[{group['first_offset']}, {group['next_offset']})  {group['kind']} of "
                f"{counted(int(row['fragments'][0]), 'fragment')}, "
                f"{size_text(int(row['stored_size_bytes'][0]))}"
            )
        )
    for row in _fragments_of(committed):
        [entry] = entries_of_rows(row)
        fragments.add(
            escape(
                f"[{entry.first_offset}, {entry.next_offset})  {size_text(entry.stored_size_bytes)}  "
                f"{iso_of(entry.first_timestamp_ms)} to {iso_of(entry.last_timestamp_ms)}  "
                f"ledger {entry.ledger_id}, attempt {entry.attempt}"
            )
        )
    return tree


def _add_root(tree: Tree, manifest: Manifest) -> None:
    """Who may change the stream, and what is under way."""
    root = tree.add(f"root version {manifest.version}, epoch {manifest.epoch}, {manifest.state.name.lower()}")
    root.add(f"writer {manifest.writer}")
    root.add(f"incarnation {manifest.incarnation}")
    running = tree.add(f"running attempts: {len(manifest.running)}")
    for each in manifest.running:
        whose = f"job {each.writer}" if each.kind is not AttemptKind.STREAM else each.kind.name.lower()
        running.add(f"{each.attempt}  ledger {each.ledger_id}, epoch {each.epoch}, {whose}")
