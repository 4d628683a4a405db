"""Roots of version 1, which release 0.1.0 wrote: before there were groups.

Version 1 lacks three totals in the header (`fragments`, `ledgers`, `last_ledger_id`) and two fields in each
entry (`fragments`, `ledgers`), and knows no entries but those of fragments. `upgraded` fills them in, so that
the rest of the program knows one version only. A tier is upgraded by its next commit; 0.1.0 reads it no more.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from offload.errors import Corrupt
from offload.formats.checksums import check_sealed, crc32c
from offload.formats.layout import Layout
from offload.formats.root import ENTRY, ROOT_FORMAT_VERSION, ROOT_HEADER, RUNNING

_NEW_TOTALS: Final = ("fragments", "ledgers", "last_ledger_id")
_NEW_COLUMNS: Final = ("fragments", "ledgers")

ROOT_HEADER_1: Final = Layout(
    "Manifest root header, version 1", tuple(f for f in ROOT_HEADER.fields if f.name not in _NEW_TOTALS)
)
ENTRY_1: Final = Layout(
    "Manifest entry, version 1", tuple(f for f in ENTRY.fields if f.name not in _NEW_COLUMNS)
)


def upgraded(raw: bytes, *, where: str) -> bytes:
    """The same root as version 2 has it. Raises `Corrupt` where any bit of it is off."""
    if len(raw) < ROOT_HEADER_1.size_bytes + 4:
        raise Corrupt("root size", where, expected=f">= {ROOT_HEADER_1.size_bytes + 4}", found=len(raw))
    fields = ROOT_HEADER_1.unpack(raw)
    check_sealed("root", raw, version=fields["format_version"], known=1, where=where)
    start = (
        ROOT_HEADER_1.size_bytes + fields["stream_size_bytes"] + fields["running_count"] * RUNNING.size_bytes
    )
    size = start + fields["entry_count"] * ENTRY_1.size_bytes + 4
    if size != len(raw):
        raise Corrupt("root size", where, expected=size, found=len(raw))
    old = np.frombuffer(raw, ENTRY_1.dtype, count=fields["entry_count"], offset=start)
    if old["kind"].any():
        raise Corrupt("entry kind", where, expected="fragments", found="another kind")
    rows = np.zeros(len(old), ENTRY.dtype)
    for name in old.dtype.names or ():
        rows[name] = old[name]
    rows["fragments"] = 1
    rows["ledgers"] = np.concatenate(([True], old["ledger_id"][1:] != old["ledger_id"][:-1]))[: len(old)]
    header = ROOT_HEADER.pack(
        **fields | {"format_version": ROOT_FORMAT_VERSION},
        fragments=len(old),
        ledgers=int(rows["ledgers"].sum()),
        last_ledger_id=int(old["ledger_id"][-1]) if len(old) else 0,
    )
    body = header + raw[ROOT_HEADER_1.size_bytes : start] + rows.tobytes()
    return body + crc32c(body).to_bytes(4, "big")
