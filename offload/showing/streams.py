"""Documents of streams: the row of a list, and all that is committed of one stream.

Programs get them as JSON, and tables and trees are made of them. A stream with further parts is one document,
with the totals of its parts and the documents of all.

Invariant: a document lists what the root itself names. Groups of the manifest's tree are not expanded, so its
size has a bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np

from offload.contracts.catalogue import Catalogue, StreamView
from offload.ground.errors import Absent, NotOffloaded, OffloadError
from offload.model.entry import Entries, Entry, EntryKind, entries_of_rows
from offload.model.gaps import PartEnds, lost_records
from offload.model.manifest import CommittedStream, Manifest, Running
from offload.model.position import iso_of
from offload.model.totals import codec_name, joined_totals, ratio_of, stored_totals, totals
from offload.native.layout_check import native_or_none
from offload.parts.whole_stream import WholeStream
from offload.showing.encryption import ShownKey, is_encrypted, keys_of, keys_of_fragments

__all__ = [
    "PartEncryption",
    "ShownPart",
    "group_as_json",
    "own_fragments",
    "own_groups",
    "row_as_json",
    "rows_of_stream",
    "shown_part",
    "stream_document",
    "stream_names",
]


async def stream_names(catalogue: Catalogue) -> tuple[list[str], Sequence[OffloadError]]:
    """Return the names of the streams, and an error for each folder that hides its own."""
    if (objects := native_or_none(catalogue)) is not None:
        return await objects.find_streams()
    return await catalogue.streams(), []


async def rows_of_stream(stream: WholeStream) -> list[dict[str, Any]]:
    """Return the row of a stream, or nothing if it was deleted, or its first commit never came.

    `newest` is the greatest timestamp of its live messages in milliseconds; None if it has none.
    """
    found = []
    for part in await stream.parts():
        with suppress(NotOffloaded):
            found.append((part, await _row_of_part(stream.catalogue, part.name)))
    if len(found) < 2:
        return [document for _, document in found]
    documents = [{**document, "part": part.number} for part, document in found]
    ends = {part.number: _ends(document) for part, document in found}
    gaps = await stream.gaps_between(ends)
    return [
        {
            **_joined_row(stream.name, documents),
            "gaps": len(gaps),
            "lost_records": lost_records(gaps),
            "parts": documents,
        }
    ]


def _ends(document: dict[str, Any]) -> PartEnds:
    return PartEnds(document["first_offset"], document["next_offset"], document["fragments"])


async def _row_of_part(catalogue: Catalogue, stream: str) -> dict[str, Any]:
    """Return the row of one part alone."""
    view = await catalogue.view(stream)
    while True:
        committed = view.committed
        try:
            last_ms, encrypted = await view.last_timestamp_ms(), await is_encrypted(view)
        except Absent:
            view = await catalogue.view(stream)
            # The group of the first view may have been trimmed or replaced since, and swept. If the newest
            # view is the same one, the group is lost.
            if view.committed.version == committed.version:
                raise
        else:
            return {
                **totals(committed.stream, committed),
                **stored_totals(committed),
                "newest": last_ms,
                "encrypted": encrypted,
            }


def _joined_row(stream: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the row of a stream with these parts."""
    newest = max((part["newest"] for part in parts if part["newest"] is not None), default=None)
    return {**_joined(stream, parts), "newest": newest, "encrypted": _any_encrypted(parts)}


def row_as_json(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row for programs: with times as text."""
    printed = {**row, "newest": None if row["newest"] is None else iso_of(row["newest"])}
    return printed | ({"parts": [row_as_json(part) for part in row["parts"]]} if "parts" in row else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class PartEncryption:
    """The encryption of one part of a stream."""

    on: bool
    keys: Sequence[ShownKey]
    of: dict[Entry, UUID]
    """The key of each fragment; empty unless it was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPart:
    """A part of a stream, as it is committed."""

    number: int
    view: StreamView
    encryption: PartEncryption


async def shown_part(catalogue: Catalogue, number: int, view: StreamView, *, each_key: bool) -> ShownPart:
    """Look up the keys of a part. `each_key` also finds that of each fragment, by a request for each."""
    fragments = own_fragments(view.committed) if each_key else ()
    entries = [entry for row in fragments for entry in entries_of_rows(row)]
    encryption = PartEncryption(
        on=await is_encrypted(view),
        keys=await keys_of(catalogue, view.committed),
        of=await keys_of_fragments(catalogue, view.committed, entries),
    )
    return ShownPart(number=number, view=view, encryption=encryption)


def stream_document(stream: str, parts: Sequence[ShownPart]) -> dict[str, Any]:
    """Return the document of a stream: that of its only part, or the totals and the documents of all."""
    documents = [_document(each.view, each.encryption) for each in parts]
    if len(parts) == 1:
        return documents[0]
    sums = [each["totals"] for each in documents]
    return {
        "stream": stream,
        "totals": _joined(stream, sums) | {"encrypted": _any_encrypted(sums)},
        "parts": [{"part": each.number} | one for each, one in zip(parts, documents, strict=True)],
    }


def _joined(stream: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the totals of the documents of several parts."""
    whole = joined_totals(stream, parts)
    return {
        **whole,
        "ratio": ratio_of(whole["bytes"], whole["stored_bytes"]),
        "codecs": [*dict.fromkeys(codec for part in parts for codec in part["codecs"])],
    }


def _any_encrypted(parts: list[dict[str, Any]]) -> bool:
    return any(part["encrypted"] for part in parts)


def _document(view: StreamView, encryption: PartEncryption) -> dict[str, Any]:
    """Return the document of one part."""
    committed = view.committed
    sums = totals(committed.stream, committed) | stored_totals(committed) | {"encrypted": encryption.on}
    return {
        "stream": committed.stream,
        "totals": sums,
        "root": {"object": view.where, "version": committed.version} | _who_may_change(committed),
        "groups": [group_as_json(view, row) for row in own_groups(committed)],
        "fragments": [_fragment(view, row, encryption) for row in own_fragments(committed)],
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


def own_groups(committed: CommittedStream) -> Iterator[Entries]:
    """Yield the root's own groups, oldest first, one row each. Their contents are not fetched."""
    for row in np.flatnonzero(committed.entries["kind"]):
        yield committed.entries[row : row + 1]


def own_fragments(committed: CommittedStream) -> Iterator[Entries]:
    """Yield the fragments that the root itself names, one row each: the newest ones."""
    for row in np.flatnonzero(committed.entries["kind"] == 0):
        yield committed.entries[row : row + 1]


def group_as_json(view: StreamView, row: Entries) -> dict[str, object]:
    """Return the document of a group."""
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


def _fragment(view: StreamView, row: Entries, encryption: PartEncryption) -> dict[str, object]:
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
