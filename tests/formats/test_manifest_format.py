"""Tests of a root's bytes: they are pinned, decoding undoes encoding, and every flipped bit is found."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_fragments import with_flipped_bit
from older_formats import entries_2, root_1, root_2

from offload.formats.checksums import crc32c
from offload.formats.layout import Layout
from offload.formats.older_manifests import ENTRY_1, ENTRY_2, ROOT_HEADER_1
from offload.formats.root import ENTRY, ROOT_HEADER, RUNNING, decode_root, encode_root
from offload.ground.errors import Corrupt, UnsupportedFormat
from offload.model.compression import BlockCodec
from offload.model.entry import (
    ENTRY_DTYPE,
    NO_ENTRIES,
    PLAIN_ROWS_MAX,
    TOTALS,
    Entries,
    Entry,
    EntryKind,
    entries_of_rows,
    exact_sum,
    joined_entries,
    rows_of_entries,
)
from offload.model.manifest import AttemptKind, Manifest, Running, StreamState

SAMPLE_ENTRY: Final = Entry(
    first_offset=100,
    records=20,
    messages=18,
    first_timestamp_ms=-5,
    last_timestamp_ms=1_700_000_000_000,
    data_size_bytes=4096,
    stored_size_bytes=5000,
    ledger_id=77,
    attempt=UUID(int=0xA1),
    checksum=0xDEADBEEF,
    tail_size_bytes=888,
)
SAMPLE: Final = Manifest(
    stream="orders",
    version=5,
    incarnation=UUID(int=1),
    writer=UUID(int=2),
    epoch=3,
    source_epoch=4,
    committer=UUID(int=5),
    commit_id=UUID(int=6),
    parent_commit_id=UUID(int=7),
    first_offset=100,
    next_offset=120,
    messages=18,
    data_size_bytes=4096,
    stored_size_bytes=5000,
    fragments=1,
    ledgers=1,
    last_ledger_id=77,
    running=(
        Running(attempt=UUID(int=0xB2), ledger_id=78, epoch=3, writer=UUID(int=0xC3), kind=AttemptKind.JOB),
    ),
    entries=rows_of_entries([SAMPLE_ENTRY]),
)
ENTRY_HEX: Final = (
    "000000000000006400000000000000140000000000000012fffffffffffffffb0000018bcfe56800"
    "00000000000010000000000000001388000000000000004d0000000000000000"
    "000000000000000000000000000000a1deadbeef0000037800000001000000010000000000000000"
)
RUNNING_HEX: Final = (
    "000000000000000000000000000000b2000000000000004e0000000000000003"
    "000000000000000000000000000000c30100000000000000"
)
HEADER_HEX: Final = (
    "4f4c4d52000300000000000000000005000000000000000000000000000000010000000000000000"
    "00000000000000020000000000000003000000000000000400000000000000000000000000000005"
    "00000000000000000000000000000006000000000000000000000000000000070000000000000064"
    "00000000000000780000000000000012000000000000100000000000000013880000000000000001"
    "0000000000000001000000000000004d000000060000000100000001"
)
ROOT_HEX: Final = HEADER_HEX + "6f7264657273" + RUNNING_HEX + ENTRY_HEX + "9c84c2af"

ROOT_1_HEX: Final = (
    "4f4c4d52000100000000000000000005000000000000000000000000000000010000000000000000"
    "00000000000000020000000000000003000000000000000400000000000000000000000000000005"
    "00000000000000000000000000000006000000000000000000000000000000070000000000000064"
    "00000000000000780000000000000012000000000000100000000000000013880000000600000001"
    "00000001" + "6f7264657273" + RUNNING_HEX + "00000000000000640000000000000014000000000000"
    "0012fffffffffffffffb0000018bcfe5680000000000000010000000000000001388000000000000"
    "004d000000000000000000000000000000a1deadbeef000000005601b8dc"
)
"""The same root, as release 0.1.0 wrote it."""

ENTRY_2_HEX: Final = (
    "000000000000006400000000000000140000000000000012fffffffffffffffb0000018bcfe56800"
    "00000000000010000000000000001388000000000000004d000000000000000000000000000000a1"
    "deadbeef000000010000000100000000"
)
HEADER_2_HEX: Final = (
    "4f4c4d52000200000000000000000005000000000000000000000000000000010000000000000000"
    "00000000000000020000000000000003000000000000000400000000000000000000000000000005"
    "00000000000000000000000000000006000000000000000000000000000000070000000000000064"
    "00000000000000780000000000000012000000000000100000000000000013880000000000000001"
    "0000000000000001000000000000004d000000060000000100000001"
)
ROOT_2_HEX: Final = HEADER_2_HEX + "6f7264657273" + RUNNING_HEX + ENTRY_2_HEX + "d949885a"
"""The same root, as release 0.2.0 wrote it."""

u64 = st.integers(0, 2**64 - 1)
ids = st.uuids()
runnings = st.builds(
    Running, attempt=ids, ledger_id=u64, epoch=u64, writer=ids, kind=st.sampled_from(AttemptKind)
)


@st.composite
def entry_lists(draw: st.DrawFn) -> list[Entry]:
    """Draw adjacent entries."""
    at = draw(st.integers(0, 2**60))
    entries = []
    for _ in range(draw(st.integers(0, 4))):
        records, stored = draw(st.integers(1, 2**40)), draw(st.integers(0, 2**60))
        entries.append(
            Entry(
                first_offset=at,
                records=records,
                messages=draw(st.integers(0, records)),
                first_timestamp_ms=draw(st.integers(-(2**63), 2**63 - 1)),
                last_timestamp_ms=draw(st.integers(-(2**63), 2**63 - 1)),
                data_size_bytes=draw(st.integers(0, 2**60)),
                stored_size_bytes=stored,
                ledger_id=draw(u64),
                attempt=draw(ids),
                checksum=draw(st.integers(0, 2**32 - 1)),
                tail_size_bytes=draw(st.integers(0, min(stored, 2**32 - 1))),
                codec=draw(st.sampled_from(BlockCodec)),
                copied=draw(st.integers(0, 1)),
                encrypted=draw(st.integers(0, 1)),
            )
        )
        at += records
    return entries


@st.composite
def groups_before(draw: st.DrawFn, end: int) -> Entries:
    """Draw entries of groups up to this offset, larger kinds first."""
    kinds = draw(st.lists(st.integers(EntryKind.GROUP, EntryKind.MEGA_GROUP), max_size=min(3, end)))
    rows = []
    for kind in sorted(kinds):  # the smallest kind comes last
        records = draw(st.integers(1, min(end - len(kinds) + len(rows) + 1, 2**40)))
        end -= records
        fragments = draw(st.integers(1, 2**32 - 1))
        row = {
            "first_offset": end,
            "records": records,
            "messages": draw(st.integers(0, records)),
            "fragments": fragments,
            "ledgers": draw(st.integers(0, fragments)),
            "kind": kind,
            "attempt": draw(ids).bytes,
            "ledger_id": 0,
            "tail_size_bytes": 0,
            "copied": 0,
            "codec": 0,
            "encrypted": 0,
            "reserved": bytes(4),
        }
        numbers = {field.name: draw(st.integers(0, 2**30)) for field in ENTRY.fields if field.name not in row}
        rows.append(ENTRY.pack(**row, **numbers))
    return np.frombuffer(b"".join(reversed(rows)), ENTRY.dtype)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """Draw a sound manifest. Its first entry may be a group whose prefix was trimmed."""
    entries = draw(entry_lists())
    begin = entries[0].first_offset if entries else draw(u64)
    groups = draw(groups_before(begin))
    fragments = rows_of_entries(entries, after_ledger=draw(st.none() | u64))
    stored = joined_entries(groups, fragments)
    next_offset = entries[-1].next_offset if entries else begin
    totals = {total: exact_sum(stored[total]) for total in TOTALS}
    ledgers = exact_sum(stored["ledgers"])
    least, most = ledgers, ledgers + 1
    if len(groups):
        first, trimmed = groups[0], draw(st.integers(0, int(groups["records"][0]) - 1))
        begin = int(first["first_offset"]) + trimmed
        if trimmed:
            totals = {t: totals[t] - draw(st.integers(0, int(first[t]) - (t == "fragments"))) for t in TOTALS}
            least -= int(first["ledgers"])
    least, most = max(least, min(1, totals["fragments"])), min(most, totals["fragments"])
    return Manifest(
        stream=draw(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)),
        version=draw(u64),
        incarnation=draw(ids),
        writer=draw(ids),
        epoch=draw(u64),
        source_epoch=draw(u64),
        committer=draw(ids),
        commit_id=draw(ids),
        parent_commit_id=draw(ids),
        state=draw(st.sampled_from(StreamState)),
        first_offset=begin,
        next_offset=next_offset,
        **totals,
        ledgers=draw(st.integers(least, most)),
        last_ledger_id=draw(u64),
        running=tuple(draw(st.lists(runnings, max_size=3))),
        entries=stored,
    )


def fields_of(manifest: Manifest) -> dict[str, Any]:
    fields = {name: getattr(manifest, name) for name in manifest.__dataclass_fields__}
    return fields | {"entries": manifest.entries.tobytes()}


def resealed(raw: bytes) -> bytes:
    """Return the bytes with a new checksum, as a hostile or broken writer would store them."""
    return raw[:-4] + crc32c(raw[:-4]).to_bytes(4, "big")


def with_field(raw: bytes, name: str, value: int, size_bytes: int) -> bytes:
    at = ROOT_HEADER.offset_of(name)
    return resealed(raw[:at] + value.to_bytes(size_bytes, "big") + raw[at + size_bytes :])


def test_the_bytes_of_version_3_do_not_drift() -> None:
    assert encode_root(SAMPLE).hex() == ROOT_HEX
    assert rows_of_entries([SAMPLE_ENTRY]).tobytes().hex() == ENTRY_HEX
    assert fields_of(decode_root(bytes.fromhex(ROOT_HEX), where="here")) == fields_of(SAMPLE)


def test_the_layouts_have_the_sizes_of_version_3() -> None:
    assert (ROOT_HEADER.size_bytes, RUNNING.size_bytes, ENTRY.size_bytes) == (188, 56, 112)
    assert ENTRY.dtype.itemsize == ENTRY.size_bytes


@given(manifests())
def test_decoding_undoes_encoding(manifest: Manifest) -> None:
    again = decode_root(encode_root(manifest), where="here")

    assert fields_of(again) == fields_of(manifest)
    assert encode_root(again) == encode_root(manifest)


@given(entry_lists())
def test_decoding_entries_undoes_encoding(entries: list[Entry]) -> None:
    assert entries_of_rows(rows_of_entries(entries)) == entries


def test_no_single_flipped_bit_goes_unnoticed() -> None:
    raw = bytes.fromhex(ROOT_HEX)

    for bit in range(len(raw) * 8):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            decode_root(bytes(damaged), where="here")


@given(manifests(), st.data())
def test_no_flipped_bit_of_any_root_goes_unnoticed(manifest: Manifest, data: st.DataObject) -> None:
    damaged = bytearray(encode_root(manifest))
    bit = data.draw(st.integers(0, len(damaged) * 8 - 1))
    damaged[bit // 8] ^= 1 << bit % 8

    with pytest.raises(Corrupt):
        decode_root(bytes(damaged), where="here")


@given(manifests(), st.data())
def test_a_shortened_or_lengthened_root_is_corrupt(manifest: Manifest, data: st.DataObject) -> None:
    raw = encode_root(manifest)
    cut = data.draw(st.integers(0, len(raw) - 1))

    for damaged in (raw[:cut], raw + b"\0", resealed(raw + b"\0"), resealed(raw[: max(cut, 4)])):
        with pytest.raises(Corrupt):
            decode_root(damaged, where="here")


@given(st.binary(max_size=600))
def test_any_other_bytes_are_corrupt(raw: bytes) -> None:
    for hostile in (raw, b"OLMR\0\1" + raw, b"OLMR\0\2" + raw, b"OLMR\0\3" + raw):
        with pytest.raises(Corrupt):
            decode_root(hostile, where="here")


def test_a_newer_version_asks_for_an_upgrade() -> None:
    """Every later version keeps the magic, the position of the version, and the checksum at the end."""
    raw = bytearray.fromhex(ROOT_HEX)
    raw[5] = 4

    with pytest.raises(UnsupportedFormat, match="upgrade"):
        decode_root(resealed(bytes(raw)), where="here")


@pytest.mark.parametrize("name", ["entry_count", "running_count", "stream_size_bytes"])
@pytest.mark.parametrize("value", [2, 2**31, 2**32 - 1])
def test_a_hostile_count_costs_no_memory(name: str, value: int) -> None:
    raw = with_field(encode_root(SAMPLE), name, value, 4)
    tracemalloc.start()

    with pytest.raises(Corrupt):
        decode_root(raw, where="here")

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 256 * 1024


@pytest.mark.parametrize(
    ("name", "value", "size_bytes"), [("reserved", 1, 1), ("state", 3, 1), ("messages", 17, 8)]
)
def test_a_header_that_breaks_a_rule_is_corrupt_even_under_its_checksum(
    name: str, value: int, size_bytes: int
) -> None:
    with pytest.raises(Corrupt):
        decode_root(with_field(encode_root(SAMPLE), name, value, size_bytes), where="here")


@pytest.mark.parametrize("sealed", [True, False], ids=["sound checksum", "another end"])
def test_an_object_of_another_kind_is_told_by_its_magic_and_not_as_damage(sealed: bool) -> None:
    raw = b"OLMG" + encode_root(SAMPLE)[4:]

    with pytest.raises(Corrupt, match="root magic"):
        decode_root(resealed(raw) if sealed else raw, where="here")


@pytest.mark.parametrize("name", ["kind", "reserved"])
@pytest.mark.parametrize("layout", [RUNNING, ENTRY], ids=["running", "entry"])
def test_reserved_bytes_and_kinds_are_refused(name: str, layout: Any) -> None:
    raw = bytearray(encode_root(SAMPLE))
    begin = ROOT_HEADER.size_bytes + 6 + (RUNNING.size_bytes if layout is ENTRY else 0)
    raw[begin + layout.offset_of(name)] = 7

    with pytest.raises(Corrupt):
        decode_root(resealed(bytes(raw)), where="here")


@pytest.mark.parametrize("name", ["first_offset", "next_offset", "messages", "stored_size_bytes"])
def test_a_root_that_disagrees_with_its_entries_is_refused_before_it_is_written(name: str) -> None:
    wrong = replace(SAMPLE, **{name: getattr(SAMPLE, name) + 1})

    with pytest.raises(Corrupt):
        wrong.check("here")


def test_a_hole_or_an_overlap_is_corrupt() -> None:
    for begin in (119, 121):
        second = replace(SAMPLE_ENTRY, first_offset=begin)
        wrong = replace(
            SAMPLE,
            entries=rows_of_entries([SAMPLE_ENTRY, second]),
            next_offset=second.next_offset,
            messages=36,
            data_size_bytes=8192,
            stored_size_bytes=10_000,
            fragments=2,
        )
        with pytest.raises(Corrupt, match="coverage"):
            decode_root(encode_root(wrong), where="here")


def test_appending_keeps_entries_as_they_are_stored() -> None:
    """Entries stay big-endian from disk to disk on any machine."""
    assert SAMPLE.entries.dtype == ENTRY.dtype
    assert SAMPLE.entries["first_offset"].dtype == np.dtype(">u8")
    assert NO_ENTRIES.dtype == ENTRY.dtype


@pytest.mark.parametrize(
    ("changes", "next_offset"),
    [({"records": 0}, 100), ({"first_offset": 2**64 - 1, "records": 3}, 2)],
    ids=["no records", "wrapping"],
)
def test_an_impossible_range_is_corrupt_even_under_its_checksum(
    changes: dict[str, Any], next_offset: int
) -> None:
    impossible = replace(SAMPLE_ENTRY, **changes)
    wrong = replace(
        SAMPLE,
        first_offset=impossible.first_offset,
        next_offset=next_offset,
        entries=rows_of_entries([impossible]),
    )

    with pytest.raises(Corrupt):
        decode_root(encode_root(wrong), where="here")


def group_entry(**changes: Any) -> Entries:
    """Return the entry of a group of three fragments and two ledgers over [70, 100), before the sample's."""
    row = {
        "first_offset": 70,
        "records": 30,
        "messages": 30,
        "first_timestamp_ms": 0,
        "last_timestamp_ms": 1,
        "data_size_bytes": 300,
        "stored_size_bytes": 900,
        "ledger_id": 0,
        "root_version": 4,
        "tail_size_bytes": 0,
        "attempt": UUID(int=0xD4).bytes,
        "checksum": 9,
        "fragments": 3,
        "ledgers": 2,
        "kind": EntryKind.GROUP,
        "copied": 0,
        "codec": 0,
        "encrypted": 0,
        "reserved": bytes(4),
    }
    return np.frombuffer(ENTRY.pack(**row | changes), ENTRY.dtype)


def with_group(group: Entries, **changes: Any) -> Manifest:
    """Return the sample with this group before its one fragment."""
    entries = joined_entries(group, SAMPLE.entries)
    totals = {total: exact_sum(entries[total]) for total in (*TOTALS, "ledgers")}
    return replace(
        SAMPLE, entries=entries, **totals | {"first_offset": int(group["first_offset"][0])} | changes
    )


def test_a_group_takes_the_place_of_its_fragments() -> None:
    root = with_group(group_entry())

    root.check("here")
    assert root.has_groups
    assert not SAMPLE.has_groups
    assert (root.fragments, root.ledgers) == (4, 3)


def test_only_a_group_reaches_below_the_first_offset() -> None:
    """Its part below is trimmed and not counted in the totals. Fragments are trimmed whole."""
    rest = {"messages": 38, "data_size_bytes": 4296, "stored_size_bytes": 5600, "fragments": 3, "ledgers": 3}

    with_group(group_entry(), first_offset=80, **rest).check("here")
    with pytest.raises(Corrupt, match="coverage"):
        replace(SAMPLE, first_offset=101).check("here")


@pytest.mark.parametrize("first_offset", [100, 110])
def test_a_root_does_not_name_a_group_that_is_trimmed_whole(first_offset: int) -> None:
    with pytest.raises(Corrupt, match="coverage"):
        with_group(group_entry(), first_offset=first_offset).check("here")


def test_larger_kinds_come_first() -> None:
    first, second = group_entry(first_offset=40), group_entry(kind=EntryKind.KILO_GROUP)
    wrong = with_group(joined_entries(first, second), first_offset=40)

    with pytest.raises(Corrupt, match="entry kind"):
        decode_root(encode_root(wrong), where="here")


@pytest.mark.parametrize(
    "changes",
    [
        {"fragments": 0},
        {"fragments": 0, "ledgers": 0},
        {"ledgers": 4},
        {"kind": EntryKind.FRAGMENT},
        {"kind": 4},
    ],
    ids=str,
)
def test_an_entry_with_impossible_counts_is_refused(changes: dict[str, Any]) -> None:
    wrong = with_group(group_entry(**changes))

    with pytest.raises(Corrupt, match="entry"):
        decode_root(encode_root(wrong), where="here")


@pytest.mark.parametrize(("first_offset", "ledgers"), [(70, 2), (70, 5), (80, 0), (80, 5)])
def test_a_count_of_ledgers_that_the_entries_cannot_have_is_refused(first_offset: int, ledgers: int) -> None:
    """The entries name three ledgers. There may be one more, if the beginning of the first is trimmed."""
    with_group(group_entry(), first_offset=first_offset, ledgers=4).check("here")

    with pytest.raises(Corrupt, match="total of ledgers"):
        with_group(group_entry(), first_offset=first_offset, ledgers=ledgers).check("here")


@pytest.mark.parametrize("rows", [0, 1, PLAIN_ROWS_MAX, PLAIN_ROWS_MAX + 1, 1000])
def test_sums_of_any_number_of_rows_are_exact(rows: int) -> None:
    entries = np.zeros(rows, ENTRY_DTYPE)
    entries["messages"] = 2**64 - 1
    entries["fragments"] = 2**32 - 1

    assert exact_sum(entries["messages"]) == rows * (2**64 - 1)
    assert exact_sum(entries["fragments"]) == rows * (2**32 - 1)


def test_totals_beyond_a_machine_integer_are_summed_exactly() -> None:
    """A wrapped sum could match any total. A root cannot hold a sum that does not fit."""
    large = [
        replace(SAMPLE_ENTRY, data_size_bytes=2**63 + 1),
        replace(SAMPLE_ENTRY, first_offset=120, data_size_bytes=2**63),
    ]
    entries = rows_of_entries(large)

    assert exact_sum(entries["data_size_bytes"]) == 2**64 + 1
    wrapped = replace(
        SAMPLE,
        entries=entries,
        next_offset=140,
        **{total: exact_sum(entries[total]) % 2**64 for total in TOTALS},
    )
    with pytest.raises(Corrupt, match="total of data_size_bytes"):
        wrapped.check("here")


def test_an_entry_marks_a_copy() -> None:
    copied = rows_of_entries([replace(SAMPLE_ENTRY, copied=1)])

    assert entries_of_rows(copied) == [replace(SAMPLE_ENTRY, copied=1)]
    assert copied.tobytes().hex() == ENTRY_HEX[:-14] + "01000000000000"


def test_an_entry_marks_an_encrypted_fragment() -> None:
    encrypted = rows_of_entries([replace(SAMPLE_ENTRY, encrypted=1)])

    assert entries_of_rows(encrypted) == [replace(SAMPLE_ENTRY, encrypted=1)]
    assert encrypted.tobytes().hex() == ENTRY_HEX[:-10] + "0100000000"


@pytest.mark.parametrize("name", ["copied", "encrypted"])
@pytest.mark.parametrize(
    ("value", "kind"),
    [(2, 0), (255, 0), (1, 1), (1, 2), (1, 3), (255, 3)],
    ids=lambda number: str(int(number)),
)
def test_an_impossible_mark_of_an_entry_is_refused(name: str, value: int, kind: int) -> None:
    """A mark is 0, or 1 of a fragment. A group's entry has none."""
    rows = rows_of_entries([replace(SAMPLE_ENTRY, tail_size_bytes=0)]).copy()
    rows[name], rows["kind"] = value, kind

    with pytest.raises(Corrupt, match=f"entry {name}"):
        replace(SAMPLE, entries=rows).check("here")


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"codec": 1, "kind": 1}, "entry codec"),
        ({"root_version": 1}, "entry root version"),
        ({"tail_size_bytes": 5001}, "entry tail"),
    ],
    ids=str,
)
def test_a_codec_version_or_tail_that_an_entry_cannot_have_is_refused(
    changes: dict[str, int], what: str
) -> None:
    rows = rows_of_entries([replace(SAMPLE_ENTRY, tail_size_bytes=0)]).copy()
    for name, value in changes.items():
        rows[name] = value

    with pytest.raises(Corrupt, match=what):
        replace(SAMPLE, entries=rows).check("here")


@pytest.mark.parametrize("codec", [max(BlockCodec) + 1, 255])
def test_a_codec_of_a_later_program_asks_for_an_upgrade(codec: int) -> None:
    """As in a fragment's trailer. Damage of the same entries is reported first."""
    rows = rows_of_entries([replace(SAMPLE_ENTRY, tail_size_bytes=0)]).copy()
    rows["codec"] = codec

    with pytest.raises(UnsupportedFormat, match=f"codec {codec} is not known; upgrade the program"):
        decode_root(encode_root(replace(SAMPLE, entries=rows)), where="here")
    rows["fragments"] = 2
    with pytest.raises(Corrupt, match="entry fragments"):
        decode_root(encode_root(replace(SAMPLE, entries=rows)), where="here")


@pytest.mark.parametrize("byte", range(4))
def test_each_reserved_byte_of_an_entry_is_refused(byte: int) -> None:
    raw = bytearray(encode_root(SAMPLE))
    raw[-4 - 4 + byte] = 1

    with pytest.raises(Corrupt, match="reserved"):
        decode_root(resealed(bytes(raw)), where="here")


def with_sums(entries: Entries, **changes: Any) -> Manifest:
    """Return the sample with these entries and their totals."""
    totals = {total: exact_sum(entries[total]) for total in (*TOTALS, "ledgers")}
    first, last = entries[0], entries[-1]
    return replace(
        SAMPLE,
        entries=entries,
        first_offset=int(first["first_offset"]),
        next_offset=int(last["first_offset"]) + int(last["records"]),
        last_ledger_id=int(last["ledger_id"]),
        **totals | changes,
    )


def test_a_root_of_version_1_is_still_read() -> None:
    """A tier of release 0.1.0 can still be used."""
    assert fields_of(decode_root(bytes.fromhex(ROOT_1_HEX), where="here")) == fields_of(SAMPLE)
    assert root_1(SAMPLE).hex() == ROOT_1_HEX


def test_a_root_of_version_2_is_still_read() -> None:
    """A tier of release 0.2.0 can still be used."""
    assert fields_of(decode_root(bytes.fromhex(ROOT_2_HEX), where="here")) == fields_of(SAMPLE)
    assert root_2(SAMPLE).hex() == ROOT_2_HEX
    assert entries_2(SAMPLE.entries).hex() == ENTRY_2_HEX


def test_older_layouts_have_their_sizes() -> None:
    assert (ROOT_HEADER_1.size_bytes, ENTRY_1.size_bytes, ENTRY_2.size_bytes) == (164, 88, 96)


def test_the_ledgers_of_a_version_1_root_are_counted() -> None:
    entries = [
        replace(SAMPLE_ENTRY, first_offset=20 * n, ledger_id=ledger) for n, ledger in enumerate((3, 3, 4))
    ]

    manifest = decode_root(root_1(with_sums(rows_of_entries(entries))), where="here")

    assert (manifest.fragments, manifest.ledgers, manifest.last_ledger_id) == (3, 2, 4)
    assert entries_of_rows(manifest.entries) == entries
    assert manifest.entries["ledgers"].tolist() == [1, 0, 1]


@pytest.mark.parametrize("older", [root_1, root_2])
def test_an_older_root_without_entries_is_still_read(older: Callable[[Manifest], bytes]) -> None:
    totals = dict.fromkeys((*TOTALS, "ledgers", "last_ledger_id"), 0)
    empty = replace(SAMPLE, entries=NO_ENTRIES, first_offset=120, **totals)

    assert fields_of(decode_root(older(empty), where="here")) == fields_of(empty)


def test_a_group_in_a_version_2_root_keeps_its_root_version() -> None:
    """In version 2 a group had its root version in the column of the ledger."""
    manifest = with_sums(joined_entries(group_entry(), SAMPLE.entries))
    raw = root_2(manifest)

    again = decode_root(raw, where="here")

    assert raw[188 + 6 + 56 + 56 :][:8] == (4).to_bytes(8, "big")
    assert fields_of(again) == fields_of(manifest)
    assert (again.entries["root_version"].tolist(), again.entries["ledger_id"].tolist()) == ([4, 0], [0, 77])


@pytest.mark.parametrize(
    ("data_size_bytes", "stored_size_bytes", "tail_size_bytes"),
    [
        (4096, 4096 + 16 + 300, 300),
        (4096, 4096 + 16, 0),
        (4096, 4096, 0),
        (4096, 0, 0),
        (0, 16 + 2**32 - 1, 2**32 - 1),
        (0, 16 + 2**32 + 5, 0),
        (2**64 - 1, 10, 0),
    ],
)
def test_the_tail_of_an_older_entry_follows_from_its_sizes(
    data_size_bytes: int, stored_size_bytes: int, tail_size_bytes: int
) -> None:
    """An entry of a tier of another layout may have any sizes. It has no tail of ours."""
    entry = replace(
        SAMPLE_ENTRY,
        data_size_bytes=data_size_bytes,
        stored_size_bytes=stored_size_bytes,
        tail_size_bytes=tail_size_bytes,
    )
    manifest = with_sums(rows_of_entries([entry]))

    for older in (root_1, root_2):
        assert entries_of_rows(decode_root(older(manifest), where="here").entries) == [entry]


@pytest.mark.parametrize("golden", [ROOT_1_HEX, ROOT_2_HEX], ids=["1", "2"])
def test_no_flipped_bit_of_an_older_root_goes_unnoticed(golden: str) -> None:
    raw = bytes.fromhex(golden)

    for bit in range(len(raw) * 8):
        with pytest.raises(Corrupt):
            decode_root(with_flipped_bit(raw, bit), where="here")


@pytest.mark.parametrize("golden", [ROOT_1_HEX, ROOT_2_HEX], ids=["1", "2"])
def test_an_older_root_that_is_cut_anywhere_is_corrupt(golden: str) -> None:
    raw = bytes.fromhex(golden)

    for end in range(len(raw)):
        for damaged in (raw[:end], resealed(raw[: max(end, 4)])):
            with pytest.raises(Corrupt):
                decode_root(damaged, where="here")


@pytest.mark.parametrize("name", ["entry_count", "running_count", "stream_size_bytes"])
@pytest.mark.parametrize(
    ("golden", "header"), [(ROOT_1_HEX, ROOT_HEADER_1), (ROOT_2_HEX, ROOT_HEADER)], ids=["1", "2"]
)
def test_a_hostile_count_in_an_older_root_costs_no_memory(golden: str, header: Layout, name: str) -> None:
    raw = bytearray.fromhex(golden)
    at = header.offset_of(name)
    raw[at : at + 4] = b"\xff" * 4
    tracemalloc.start()

    with pytest.raises(Corrupt):
        decode_root(resealed(bytes(raw)), where="here")

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 256 * 1024


@pytest.mark.parametrize(("golden", "layout"), [(ROOT_1_HEX, ENTRY_1), (ROOT_2_HEX, ENTRY_2)], ids=["1", "2"])
@pytest.mark.parametrize("name", ["kind", "copied", "reserved"])
def test_impossible_numbers_in_an_older_entry_are_refused(golden: str, layout: Layout, name: str) -> None:
    raw = bytearray.fromhex(golden)
    raw[len(raw) - 4 - layout.size_bytes + layout.offset_of(name)] = 7

    with pytest.raises(Corrupt, match="entry"):
        decode_root(resealed(bytes(raw)), where="here")


def test_a_group_in_a_version_1_root_is_corrupt() -> None:
    """Version 1 had no groups."""
    raw = bytearray.fromhex(ROOT_1_HEX)
    raw[len(raw) - 4 - 88 + ENTRY_1.offset_of("kind")] = 1

    with pytest.raises(Corrupt, match="entry kind"):
        decode_root(resealed(bytes(raw)), where="here")
