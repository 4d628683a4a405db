"""Roots and groups of older versions, brought to today's, so that the rest of the program has one version.

Roots of version 1 had no groups: three totals in the header and two columns of the entries are missing. In
roots of version 2 and in groups of version 1, an entry's `ledger_id` had two meanings, and the place of a
fragment's tail followed from `data_size_bytes`. The next commit of a stream writes today's versions, and
older programs can then no longer read it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from offload.formats.checksums import check_sealed, crc32c
from offload.formats.fragment_trailer import HEADER
from offload.formats.layout import Field, Layout
from offload.formats.root import ENTRY, ROOT_FORMAT_VERSION, ROOT_HEADER, RUNNING
from offload.ground.errors import Corrupt
from offload.model.entry import Entries


def _without(table: Layout, title: str, *names: str) -> Layout:
    return Layout(title, tuple(field for field in table.fields if field.name not in names))


_PLAIN_2: Final = _without(ENTRY, "", "root_version", "tail_size_bytes", "codec", "encrypted", "reserved")
ENTRY_2: Final = Layout(
    "Manifest entry of roots of version 2, and of groups of version 1",
    (*_PLAIN_2.fields, Field("reserved", "2s", "zero, and refused otherwise")),
)
ENTRY_1: Final = _without(ENTRY_2, "Manifest entry of roots of version 1", "fragments", "ledgers")
ROOT_HEADER_1: Final = _without(
    ROOT_HEADER, "Manifest root header, version 1", "fragments", "ledgers", "last_ledger_id"
)
_LAYOUTS: Final = {1: (ROOT_HEADER_1, ENTRY_1), 2: (ROOT_HEADER, ENTRY_2)}


def upgraded_root(raw: bytes, *, where: str) -> bytes:
    """Return a root of version 1 or 2 as a root of today's version. Raises `Corrupt` for any damaged bit."""
    version = int.from_bytes(raw[4:6], "big")
    header_layout, entry_layout = _LAYOUTS[version]
    if len(raw) < header_layout.size_bytes + 4:
        raise Corrupt("root size", where, expected=f">= {header_layout.size_bytes + 4}", found=len(raw))
    fields = header_layout.unpack(raw)
    check_sealed("root", raw, version=version, known=version, where=where)
    start = header_layout.size_bytes + fields["stream_size_bytes"]
    start += fields["running_count"] * RUNNING.size_bytes
    size = start + fields["entry_count"] * entry_layout.size_bytes + 4
    if size != len(raw):
        raise Corrupt("root size", where, expected=size, found=len(raw))
    rows = upgraded_entries(raw[start:-4], entry_layout, where=where)
    if version == 1:
        fields["fragments"], fields["ledgers"] = len(rows), int(rows["ledgers"].sum())
        fields["last_ledger_id"] = int(rows["ledger_id"][-1]) if len(rows) else 0
    header = ROOT_HEADER.pack(**fields | {"format_version": ROOT_FORMAT_VERSION})
    body = header + raw[header_layout.size_bytes : start] + rows.tobytes()
    return body + crc32c(body).to_bytes(4, "big")


def upgraded_entries(raw: bytes, entry_layout: Layout, *, where: str) -> Entries:
    """Return entries of an older layout as today's. Raises `Corrupt` if reserved bytes are not zero."""
    old = np.frombuffer(raw, entry_layout.dtype)
    is_of_1 = entry_layout is ENTRY_1  # which had no groups
    if (old["reserved"] != np.void(bytes(2))).any() or (is_of_1 and old["kind"].any()):
        raise Corrupt("entry kind", where, expected="0 to 3", found="another kind or reserved bytes")
    rows = np.zeros(len(old), ENTRY.dtype)
    for name in old.dtype.names or ():
        if name != "reserved":
            rows[name] = old[name]
    if is_of_1:
        rows["fragments"] = 1
        # A ledger is counted in the row at which it begins. The slice is for a root without entries.
        begins = np.concatenate(([True], old["ledger_id"][1:] != old["ledger_id"][:-1]))
        rows["ledgers"] = begins[: len(old)]
    is_group = rows["kind"] > 0
    rows["root_version"] = np.where(is_group, old["ledger_id"], np.uint64(0))
    rows["ledger_id"] = np.where(is_group, np.uint64(0), old["ledger_id"])
    # An entry of a third-party tier may have any size, and no tail of ours.
    before = old["data_size_bytes"] + np.uint64(HEADER.size_bytes)
    behind = old["stored_size_bytes"] - before
    has_tail = ~is_group & (old["stored_size_bytes"] > before) & (behind < np.uint64(2**32))
    rows["tail_size_bytes"] = np.where(has_tail, behind, np.uint64(0))
    return rows
