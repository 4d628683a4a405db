"""`offload inspect`: show the committed data of one stream, down to its fragments.

Invariant: without `--verbose`, the tree has no word of the commit protocol (docs/commit-protocol.md). The
JSON document always has all of it.
"""

from __future__ import annotations

import shlex
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.tree import Tree

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
from offload.contracts.catalogue import StreamView
from offload.ground.errors import OffloadError
from offload.model.entry import Entry, entries_of_rows
from offload.model.gaps import StreamGap
from offload.model.manifest import AttemptKind, Manifest
from offload.model.position import iso_of
from offload.model.totals import codec_name
from offload.native.layout_check import native_or_none
from offload.parts.whole_stream import WholeStream
from offload.showing.encryption import ShownKey
from offload.showing.streams import (
    PartEncryption,
    ShownPart,
    group_as_json,
    own_fragments,
    own_groups,
    shown_part,
    stream_document,
)

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
        print_json(stream_document(stream, seen.parts) | more, indent=2)
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
class _Seen:
    parts: list[ShownPart]
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
        parts = [await shown_part(catalogue, number, view, each_key=verbose) for number, view in views]
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


def _joined_tree(stream: str, seen: _Seen, *, verbose: bool) -> Tree:
    """Return the tree of a stream: that of its only part, or the totals with the trees of all."""
    if len(seen.parts) == 1:
        return _tree(seen.parts[0].view, seen.parts[0].encryption, seen.default, verbose=verbose)
    whole = stream_document(stream, seen.parts)["totals"]
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


def _tree(view: StreamView, encryption: PartEncryption, default: str | None, *, verbose: bool) -> Tree:
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
            keys.add(escape(_key_text(key)))
    if default is not None:
        tree.add(f"default compression of the tier: {default}")
    fragments = tree.add(f"fragments: {least}{committed.fragments}, ledgers: {committed.ledgers}")
    _add_fragments(fragments, view, encryption)
    return tree


def _key_text(key: ShownKey) -> str:
    kind = "its own" if key.own else "shared"
    master = "damaged" if key.label is None else f"master key {key.label} ({kind})"
    return f"{key.uid}  {master}, generation {key.generation}, {counted(key.copies, 'copy', 'copies')}"


def _add_gaps(tree: Tree, command: str, gaps: list[StreamGap] | None) -> None:
    """Add the gaps between the parts of the stream, and the command that lists them."""
    if gaps is None or gaps:
        text = "gaps: not known" if gaps is None else gaps_text(gaps)
        tree.add(escape(one_line(f"{text}:  {command}")))


def _add_fragments(fragments: Tree, view: StreamView, encryption: PartEncryption) -> None:
    committed = view.committed
    for row in own_groups(committed):
        group = group_as_json(view, row)
        fragments.add(
            escape(
                f"[{group['first_offset']}, {group['next_offset']})  {group['kind']} of "
                f"{counted(int(row['fragments'][0]), 'fragment')}, "
                f"{sizes_text(int(row['data_size_bytes'][0]), int(row['stored_size_bytes'][0]))}"
            )
        )
    for row in own_fragments(committed):
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


def _sealed(entry: Entry, encryption: PartEncryption) -> str:
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
