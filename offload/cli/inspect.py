"""`offload inspect`: what is committed of one stream, down to its fragments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.tree import Tree

from offload.cli.arguments import Options, Stream, Tier
from offload.cli.output import counted, one_line, print_json, size_text
from offload.cli.state import State, run_async
from offload.formats.keys import StreamKeys
from offload.formats.manifest import AttemptKind, Entries, Entry, Kind, Manifest, Running, decode_entries
from offload.manifest.groups import key_of
from offload.position import iso_of
from offload.tier.totals import totals

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
    state: State = context.obj

    async def main() -> Manifest:
        async with state.tier(tier, option) as offloader:
            return await offloader.load_manifest(stream)

    manifest = run_async(main)
    if json:
        print_json(document(manifest), indent=2)
    else:
        Console(width=WIDTH, highlight=False, emoji=False).print(_tree(manifest))


def document(manifest: Manifest) -> dict[str, object]:
    """The stream as `offload inspect --json` prints it."""
    root = {
        "object": StreamKeys(manifest.stream).root(manifest.version),
        "version": manifest.version,
        "state": manifest.state.name.lower(),
        "incarnation": str(manifest.incarnation),
        "writer": str(manifest.writer),
        "epoch": manifest.epoch,
        "source_epoch": manifest.source_epoch,
        "committer": str(manifest.committer),
        "commit_id": str(manifest.commit_id),
        "parent_commit_id": str(manifest.parent_commit_id),
    }
    return {
        "stream": manifest.stream,
        "totals": totals(manifest.stream, manifest) | {"stored_bytes": manifest.stored_size_bytes},
        "root": root,
        "groups": [_group(manifest, row) for row in _groups_of(manifest)],
        "fragments": [_fragment(manifest, entry) for entry in decode_entries(_fragments_of(manifest))],
        "attempts": [_running(running) for running in manifest.running],
    }


def _groups_of(manifest: Manifest) -> Iterator[Entries]:
    """The root's own groups, oldest first, a row each. What is in them is not fetched."""
    for row in np.flatnonzero(manifest.entries["kind"]):
        yield manifest.entries[row : row + 1]


def _fragments_of(manifest: Manifest) -> Entries:
    """The fragments that the root itself names: the newest."""
    fragments: Entries = manifest.entries[manifest.entries["kind"] == 0]
    return fragments


def _group(manifest: Manifest, row: Entries) -> dict[str, object]:
    first_offset, records = int(row["first_offset"][0]), int(row["records"][0])
    return {
        "object": key_of(manifest.stream, row),
        "kind": Kind(row["kind"][0]).name.lower().replace("_", "-"),
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


def _fragment(manifest: Manifest, entry: Entry) -> dict[str, object]:
    return {
        "object": StreamKeys(manifest.stream).fragment(entry.first_offset, entry.attempt),
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


def _tree(manifest: Manifest) -> Tree:
    covered = f"[{manifest.first_offset}, {manifest.next_offset})"
    tree = Tree(
        escape(
            f"{one_line(manifest.stream)}  {counted(manifest.messages, 'message')} in offsets {covered}, "
            f"{size_text(manifest.stored_size_bytes)}"
        )
    )
    root = tree.add(f"root version {manifest.version}, epoch {manifest.epoch}, {manifest.state.name.lower()}")
    root.add(f"writer {manifest.writer}")
    root.add(f"incarnation {manifest.incarnation}")
    running = tree.add(f"running attempts: {len(manifest.running)}")
    for each in manifest.running:
        whose = f"job {each.writer}" if each.kind is not AttemptKind.STREAM else each.kind.name.lower()
        running.add(f"{each.attempt}  ledger {each.ledger_id}, epoch {each.epoch}, {whose}")
    fragments = tree.add(f"fragments: {manifest.fragments}, ledgers: {manifest.ledgers}")
    for row in _groups_of(manifest):
        group = _group(manifest, row)
        fragments.add(
            escape(
                f"[{group['first_offset']}, {group['next_offset']})  {group['kind']} of "
                f"{counted(int(row['fragments'][0]), 'fragment')}, "
                f"{size_text(int(row['stored_size_bytes'][0]))}"
            )
        )
    for entry in decode_entries(_fragments_of(manifest)):
        fragments.add(
            escape(
                f"[{entry.first_offset}, {entry.next_offset})  {size_text(entry.stored_size_bytes)}  "
                f"{iso_of(entry.first_timestamp_ms)} to {iso_of(entry.last_timestamp_ms)}  "
                f"ledger {entry.ledger_id}, attempt {entry.attempt}"
            )
        )
    return tree
