"""`offload inspect`: show the committed data of one stream, down to its fragments.

Invariant: without `--verbose`, the tree has no word of the commit protocol (docs/commit-protocol.md). The
JSON document always has all of it.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Final
from uuid import UUID

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.tree import Tree

from offload.cli.encryption import ShownKey, is_encrypted, keys_of, keys_of_fragments
from offload.cli.kit.arguments import Options, Stream, Tier, Verbose
from offload.cli.kit.columns import fit_tree
from offload.cli.kit.gaps import gap_as_json, gaps_text
from offload.cli.kit.names import known_name
from offload.cli.kit.output import (
    AT_LEAST,
    AT_MOST,
    counted,
    one_line,
    print_error,
    print_json,
    sizes_text,
)
from offload.cli.kit.state import CommandContext, run_async
from offload.contracts.catalogue import Catalogue, StreamView
from offload.ground.errors import OffloadError
from offload.model.entry import Entries, Entry, EntryKind, entries_of_rows
from offload.model.gaps import StreamGap
from offload.model.manifest import AttemptKind, CommittedStream, Manifest, Running
from offload.model.position import iso_of
from offload.model.totals import codec_name, joined_totals, ratio_of, stored_totals, totals
from offload.native.layout_check import native_or_none
from offload.parts.whole_stream import WholeStream

WIDTH: Final = 100_000
"""Wider than any line, so that rich cuts nothing where no terminal is."""


def inspect(
    context: typer.Context,
    tier: Tier,
    stream: Stream,
    verbose: Verbose = False,
    option: Options = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> int:
    """Show the totals, the root, the fragments and the running attempts of STREAM, in all of its parts.

    The name of a later part shows that part alone.
    """
    state: CommandContext = context.obj
    seen = run_async(lambda: _seen(state, tier, stream, option, verbose=verbose))
    if json:
        listed = None if seen.gaps is None else [gap_as_json(gap) for gap in seen.gaps]
        more = {"default_compression": seen.default, "gaps": listed}
        print_json(_joined(stream, seen.parts) | more, indent=2)
    else:
        shown = _joined_tree(stream, seen, verbose=verbose)
        _add_gaps(shown, shlex.join(["offload", "gaps", tier, stream]), seen.gaps)
        width = Console().width if sys.stdout.isatty() else WIDTH
        fit_tree(shown, width)
        Console(width=width, highlight=False, emoji=False).print(shown)
    for error in seen.errors:
        print_error(error)
    return 1 if seen.errors else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Encryption:
    on: bool
    keys: list[ShownKey]
    of: dict[Entry, UUID]
    """The key of each fragment, with `--verbose`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A part of a stream, as it is committed."""

    number: int
    view: StreamView
    encryption: _Encryption


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    parts: list[_Part]
    default: str | None
    """The default compression of the tier."""

    gaps: list[StreamGap] | None
    """None if they are not known."""

    errors: list[OffloadError]
    """Damage to parts that are not shown."""


async def _seen(
    state: CommandContext, tier: str, stream: str, option: list[str] | None, *, verbose: bool
) -> _Seen:
    async with state.opened_to_read(tier, option) as catalogue:
        named = await known_name(catalogue, stream)
        whole = WholeStream(catalogue, named)
        views, errors = await _views(whole)
        parts = [
            _Part(number=number, view=view, encryption=await _encryption(catalogue, view, verbose=verbose))
            for number, view in views
        ]
        native = native_or_none(catalogue)
        gaps: list[StreamGap] | None = None
        with suppress(OffloadError):  # damage of another part must not hide this one
            gaps = await whole.gaps()
        default = None if native is None else str(native.default_compression)
        return _Seen(parts=parts, default=default, gaps=gaps, errors=errors)


async def _views(stream: WholeStream) -> tuple[list[tuple[int, StreamView]], list[OffloadError]]:
    """Return the live parts of a stream, in order, and the damage that hides others."""
    errors: list[OffloadError] = []
    found = await stream.views(damaged=errors.append)
    if not found and errors:
        raise errors[0]
    return found, errors


async def _encryption(catalogue: Catalogue, view: StreamView, *, verbose: bool) -> _Encryption:
    fragments = _fragments_of(view.committed) if verbose else ()
    entries = [entry for row in fragments for entry in entries_of_rows(row)]
    return _Encryption(
        on=await is_encrypted(view),
        keys=await keys_of(catalogue, view.committed),
        of=await keys_of_fragments(catalogue, view.committed, entries),
    )


def _joined(stream: str, parts: Sequence[_Part]) -> dict[str, Any]:
    """Return the document of a stream: that of its only part, or the totals and the documents of all."""
    documents = [document(each.view, each.encryption) for each in parts]
    if len(parts) == 1:
        return documents[0]
    return {
        "stream": stream,
        "totals": _joined_totals(stream, [each["totals"] for each in documents]),
        "parts": [{"part": each.number} | one for each, one in zip(parts, documents, strict=True)],
    }


def _joined_totals(stream: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    whole = joined_totals(stream, parts)
    return {
        **whole,
        "ratio": ratio_of(whole["bytes"], whole["stored_bytes"]),
        "codecs": [*dict.fromkeys(codec for part in parts for codec in part["codecs"])],
        "encrypted": any(part["encrypted"] for part in parts),
    }


def _joined_tree(stream: str, seen: _Seen, *, verbose: bool) -> Tree:
    """Return the tree of a stream: that of its only part, or the totals with the trees of all."""
    if len(seen.parts) == 1:
        return _tree(seen.parts[0].view, seen.parts[0].encryption, seen.default, verbose=verbose)
    whole = _joined(stream, seen.parts)["totals"]
    covered = f"[{whole['first_offset']}, {whole['next_offset']})"
    tree = Tree(
        escape(
            f"{one_line(stream)}  {counted(whole['messages'], 'message')} in offsets {covered}, "
            f"{sizes_text(whole['bytes'], whole['stored_bytes'])}, in {len(seen.parts)} parts"
        )
    )
    if seen.default is not None:
        tree.add(f"default compression of the tier: {seen.default}")
    for each in seen.parts:
        tree.children.append(_tree(each.view, each.encryption, None, verbose=verbose))
    return tree


def document(view: StreamView, encryption: _Encryption) -> dict[str, Any]:
    """Return the document of one part in `offload inspect --json`."""
    committed = view.committed
    sums = totals(committed.stream, committed) | stored_totals(committed) | {"encrypted": encryption.on}
    return {
        "stream": committed.stream,
        "totals": sums,
        "root": {"object": view.where, "version": committed.version} | _who_may_change(committed),
        "groups": [_group(view, row) for row in _groups_of(committed)],
        "fragments": [_fragment(view, row, encryption) for row in _fragments_of(committed)],
        "attempts": [_running(running) for running in _running_in(committed)],
        "keys": [key.as_json() for key in encryption.keys],
    }


def _who_may_change(committed: CommittedStream) -> dict[str, object]:
    """Return the incarnation and the manifest's fields. A tier that is only read has no manifest."""
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
    """Yield the root's own groups, oldest first, one row each. Their contents are not fetched."""
    for row in np.flatnonzero(committed.entries["kind"]):
        yield committed.entries[row : row + 1]


def _fragments_of(committed: CommittedStream) -> Iterator[Entries]:
    """Yield the fragments that the root itself names, one row each: the newest ones."""
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
        "ratio": ratio_of(int(row["data_size_bytes"][0]), int(row["stored_size_bytes"][0])),
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


def _fragment(view: StreamView, row: Entries, encryption: _Encryption) -> dict[str, object]:
    [entry] = entries_of_rows(row)
    key = {"key": str(encryption.of[entry])} if entry in encryption.of else {}
    return {
        "object": view.name_of(row),
        "first_offset": entry.first_offset,
        "next_offset": entry.next_offset,
        "records": entry.records,
        "messages": entry.messages,
        "bytes": entry.data_size_bytes,
        "stored_bytes": entry.stored_size_bytes,
        "ratio": ratio_of(entry.data_size_bytes, entry.stored_size_bytes),
        "codec": codec_name(entry.codec),
        "encrypted": bool(entry.encrypted),
        "first_timestamp": iso_of(entry.first_timestamp_ms) if view.is_measured else None,
        "last_timestamp": iso_of(entry.last_timestamp_ms) if view.is_measured else None,
        "ledger_id": entry.ledger_id,
        "attempt": str(entry.attempt),
        "crc32c": f"{entry.checksum:08x}" if view.is_measured else None,
        **key,
    }


def _tree(view: StreamView, encryption: _Encryption, default: str | None, *, verbose: bool) -> Tree:
    committed = view.committed
    covered = f"[{committed.first_offset}, {committed.next_offset})"
    most, least = ("", "") if view.counts_messages else (AT_MOST, AT_LEAST)
    messages = most + counted(committed.messages, "message")
    tree = Tree(
        escape(
            f"{one_line(committed.stream)}  {messages} in offsets {covered}, "
            f"{sizes_text(committed.data_size_bytes, committed.stored_size_bytes)}"
        )
    )
    if isinstance(committed, Manifest):
        _add_root(tree, committed, verbose=verbose)
    else:
        root = tree.add(f"version {committed.version}, read-only")
        if verbose:
            root.add(f"incarnation {committed.incarnation}")
    if encryption.keys:
        keys = tree.add(f"keys: {len(encryption.keys)}")
        for key in encryption.keys:
            keys.add(escape(str(key)))
    if default is not None:
        tree.add(f"default compression of the tier: {default}")
    fragments = tree.add(f"fragments: {least}{committed.fragments}, ledgers: {committed.ledgers}")
    _add_fragments(fragments, view, encryption)
    return tree


def _add_gaps(tree: Tree, command: str, gaps: list[StreamGap] | None) -> None:
    """Add the gaps between the parts of the stream, and the command that lists them."""
    if gaps is None or gaps:
        text = "gaps: not known" if gaps is None else gaps_text(gaps)
        tree.add(escape(one_line(f"{text}:  {command}")))


def _add_fragments(fragments: Tree, view: StreamView, encryption: _Encryption) -> None:
    committed = view.committed
    for row in _groups_of(committed):
        group = _group(view, row)
        fragments.add(
            escape(
                f"[{group['first_offset']}, {group['next_offset']})  {group['kind']} of "
                f"{counted(int(row['fragments'][0]), 'fragment')}, "
                f"{sizes_text(int(row['data_size_bytes'][0]), int(row['stored_size_bytes'][0]))}"
            )
        )
    for row in _fragments_of(committed):
        [entry] = entries_of_rows(row)
        sizes = sizes_text(entry.data_size_bytes, entry.stored_size_bytes, codec_name(entry.codec))
        times = f"{iso_of(entry.first_timestamp_ms)} to {iso_of(entry.last_timestamp_ms)}"
        fragments.add(
            escape(
                f"[{entry.first_offset}, {entry.next_offset})  {sizes}  "
                f"{times if view.is_measured else 'times unknown'}  "
                f"ledger {entry.ledger_id}, attempt {entry.attempt}{_sealed(entry, encryption)}"
            )
        )


def _sealed(entry: Entry, encryption: _Encryption) -> str:
    if not entry.encrypted:
        return ", not encrypted" if encryption.on else ""
    return f", encrypted by key {encryption.of[entry]}" if entry in encryption.of else ", encrypted"


def _add_root(tree: Tree, manifest: Manifest, *, verbose: bool) -> None:
    """Add the writer of the stream and the attempts that are running."""
    epoch = f", epoch {manifest.epoch}" if verbose else ""
    root = tree.add(f"root version {manifest.version}{epoch}, {manifest.state.name.lower()}")
    root.add(f"writer {manifest.writer}")
    if verbose:
        root.add(f"incarnation {manifest.incarnation}")
    running = tree.add(f"running attempts: {len(manifest.running)}")
    for each in manifest.running:
        whose = f"job {each.writer}" if each.kind is not AttemptKind.STREAM else "the writer's"
        began = f", epoch {each.epoch}" if verbose else ""
        running.add(f"{each.attempt}  ledger {each.ledger_id}{began}, {whose}")
