"""Tests of a group's bytes and its entry: pinned, decoding undoes encoding, every flipped bit is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_fragments import peak_below, with_flipped_bit
from older_formats import group_1

from offload.formats.checksums import crc32c
from offload.formats.group import GROUP_HEADER, Group
from offload.formats.older_manifests import ENTRY_2
from offload.formats.root import ENTRY
from offload.ground.errors import Corrupt, UnsupportedFormat
from offload.model.compression import BlockCodec
from offload.model.entry import NO_ENTRIES, Entries, Entry, EntryKind, joined_entries, rows_of_entries

SAMPLE_ENTRIES: Final = [
    Entry(
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
    ),
    Entry(
        first_offset=120,
        records=5,
        messages=5,
        first_timestamp_ms=-7,  # the clock went back a little
        last_timestamp_ms=1_699_999_999_999,
        data_size_bytes=1024,
        stored_size_bytes=2000,
        ledger_id=77,
        attempt=UUID(int=0xA1),
        checksum=0xCAFED00D,
        tail_size_bytes=960,
    ),
]
SAMPLE: Final = Group(
    stream="orders",
    incarnation=UUID(int=1),
    kind=EntryKind.GROUP,
    uid=UUID(int=2),
    version=5,
    entries=rows_of_entries(SAMPLE_ENTRIES),
)
KEY: Final = (
    "orders/groups/00000000000000000100.00000000000000000005.00000000-0000-0000-0000-000000000002.group"
)
HEADER_HEX: Final = (
    "4f4c4d47000201001c168adb00d208e42f93314529f1fa9c0427eb63233ceda95a5db52b7012a719"
    "0000000000000000000000000000000100000000000000000000000000000002000000000000000500000002"
)
ENTRIES_HEX: Final = (
    "000000000000006400000000000000140000000000000012fffffffffffffffb0000018bcfe56800"
    "00000000000010000000000000001388000000000000004d0000000000000000"
    "000000000000000000000000000000a1deadbeef0000037800000001000000010000000000000000"
    "000000000000007800000000000000050000000000000005fffffffffffffff90000018bcfe567ff"
    "000000000000040000000000000007d0000000000000004d0000000000000000"
    "000000000000000000000000000000a1cafed00d000003c000000001000000000000000000000000"
)
GROUP_HEX: Final = HEADER_HEX + ENTRIES_HEX + "c5b0c4ac"
NAMING_HEX: Final = (
    "000000000000006400000000000000190000000000000017fffffffffffffff90000018bcfe56800"
    "00000000000014000000000000001b5800000000000000000000000000000005"
    "000000000000000000000000000000023f1f965d0000000000000002000000010100000000000000"
)
"""The entry that names the sample: sums, smallest and greatest time, its own version and UUID."""

HEADER_1_HEX: Final = (
    "4f4c4d47000101001c168adb00d208e42f93314529f1fa9c0427eb63233ceda95a5db52b7012a719"
    "0000000000000000000000000000000100000000000000000000000000000002000000000000000500000002"
)
ENTRIES_1_HEX: Final = (
    "000000000000006400000000000000140000000000000012fffffffffffffffb0000018bcfe56800"
    "00000000000010000000000000001388000000000000004d000000000000000000000000000000a1"
    "deadbeef000000010000000100000000"
    "000000000000007800000000000000050000000000000005fffffffffffffff90000018bcfe567ff"
    "000000000000040000000000000007d0000000000000004d000000000000000000000000000000a1"
    "cafed00d000000010000000000000000"
)
GROUP_1_HEX: Final = HEADER_1_HEX + ENTRIES_1_HEX + "8f283f2f"
"""The same group, as release 0.2.0 wrote it."""

u64 = st.integers(0, 2**64 - 1)
times = st.integers(-(2**63), 2**63 - 1)


@st.composite
def entry_runs(draw: st.DrawFn) -> Entries:
    """Draw adjacent entries of one kind."""
    kind = draw(st.integers(EntryKind.FRAGMENT, EntryKind.KILO_GROUP))
    at = draw(st.integers(0, 2**60))
    rows = []
    for _ in range(draw(st.integers(1, 5))):
        records, stored = draw(st.integers(1, 2**40)), draw(st.integers(0, 2**60))
        fragments = draw(st.integers(1, 2**29)) if kind else 1
        rows.append(
            ENTRY.pack(
                first_offset=at,
                records=records,
                messages=draw(st.integers(0, records)),
                first_timestamp_ms=draw(times),
                last_timestamp_ms=draw(times),
                data_size_bytes=draw(st.integers(0, 2**60)),
                stored_size_bytes=stored,
                ledger_id=0 if kind else draw(u64),
                root_version=draw(u64) if kind else 0,
                attempt=draw(st.uuids()).bytes,
                checksum=draw(st.integers(0, 2**32 - 1)),
                fragments=fragments,
                ledgers=draw(st.integers(0, fragments)),
                kind=kind,
                tail_size_bytes=0 if kind else draw(st.integers(0, min(stored, 2**32 - 1))),
                copied=0,
                codec=0 if kind else draw(st.sampled_from(BlockCodec)),
                encrypted=0 if kind else draw(st.integers(0, 1)),
                reserved=bytes(4),
            )
        )
        at += records
    return np.frombuffer(b"".join(rows), ENTRY.dtype)


@st.composite
def groups(draw: st.DrawFn) -> Group:
    """Draw a sound group."""
    entries = draw(entry_runs())
    return Group(
        stream=draw(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)),
        incarnation=draw(st.uuids()),
        kind=EntryKind(int(entries["kind"][0]) + 1),
        uid=draw(st.uuids()),
        version=draw(u64),
        entries=entries,
    )


def fields_of(group: Group) -> dict[str, Any]:
    fields = {name: getattr(group, name) for name in group.__dataclass_fields__ if name != "size_bytes"}
    return fields | {"entries": group.entries.tobytes()}


def resealed(raw: bytes) -> bytes:
    """Return the bytes with a new checksum, as a hostile or broken writer would store them."""
    return raw[:-4] + crc32c(raw[:-4]).to_bytes(4, "big")


def with_field(raw: bytes, name: str, value: int, size_bytes: int) -> bytes:
    at = GROUP_HEADER.offset_of(name)
    return resealed(raw[:at] + value.to_bytes(size_bytes, "big") + raw[at + size_bytes :])


def decode(raw: bytes, *, stream: str = "orders") -> Group:
    return Group.decode(raw, stream=stream, where="here")


def test_the_bytes_of_version_2_do_not_drift() -> None:
    raw = SAMPLE.encode()

    assert raw.hex() == GROUP_HEX
    assert SAMPLE.entry(raw).tobytes().hex() == NAMING_HEX
    assert SAMPLE.key == KEY
    assert fields_of(decode(bytes.fromhex(GROUP_HEX))) == fields_of(SAMPLE)


def test_the_layout_has_the_size_of_version_2() -> None:
    assert GROUP_HEADER.size_bytes == 84
    assert len(SAMPLE.encode()) == 84 + 2 * 112 + 4


@given(groups())
def test_decoding_undoes_encoding(group: Group) -> None:
    again = decode(group.encode(), stream=group.stream)

    assert fields_of(again) == fields_of(group)
    assert again.encode() == group.encode()


@given(groups())
def test_the_entry_of_a_group_agrees_with_the_group(group: Group) -> None:
    raw, children = group.encode(), group.entries

    [row] = group.entry(raw)

    assert row["first_offset"] == children["first_offset"][0]
    for total in ("records", "messages", "data_size_bytes", "stored_size_bytes", "fragments", "ledgers"):
        assert int(row[total]) == sum(map(int, children[total]))
    assert row["first_timestamp_ms"] == min(children["first_timestamp_ms"])
    assert row["last_timestamp_ms"] == max(children["last_timestamp_ms"])
    assert (row["kind"], row["checksum"], row["root_version"]) == (group.kind, crc32c(raw), group.version)
    for zero in ("ledger_id", "tail_size_bytes", "codec", "copied", "encrypted"):
        assert row[zero] == 0
    assert bytes(row["attempt"]) == group.uid.bytes


def test_no_single_flipped_bit_goes_unnoticed() -> None:
    raw = bytes.fromhex(GROUP_HEX)

    for bit in range(len(raw) * 8):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            decode(bytes(damaged))


@given(groups(), st.data())
def test_no_flipped_bit_of_any_group_goes_unnoticed(group: Group, data: st.DataObject) -> None:
    damaged = bytearray(group.encode())
    bit = data.draw(st.integers(0, len(damaged) * 8 - 1))
    damaged[bit // 8] ^= 1 << bit % 8

    with pytest.raises(Corrupt):
        decode(bytes(damaged), stream=group.stream)


def test_a_group_that_is_cut_anywhere_is_corrupt() -> None:
    raw = SAMPLE.encode()

    for end in range(len(raw)):
        for damaged in (raw[:end], resealed(raw[: max(end, 4)])):
            with pytest.raises(Corrupt):
                decode(damaged)


def test_a_lengthened_group_is_corrupt() -> None:
    raw = SAMPLE.encode()
    entry = raw[GROUP_HEADER.size_bytes : GROUP_HEADER.size_bytes + ENTRY.size_bytes]

    for more in (b"\0", bytes(ENTRY.size_bytes), entry):
        for damaged in (raw + more, resealed(raw + more)):
            with pytest.raises(Corrupt):
                decode(damaged)


@given(st.binary(max_size=400))
def test_any_other_bytes_are_corrupt(raw: bytes) -> None:
    for hostile in (raw, b"OLMG\0\1" + raw, b"OLMG\0\2" + raw):
        with pytest.raises(Corrupt):
            decode(hostile)


def test_a_newer_version_asks_for_an_upgrade() -> None:
    """Every later version keeps the magic, the position of the version, and the checksum at the end."""
    raw = bytearray.fromhex(GROUP_HEX)
    raw[5] = 3

    with pytest.raises(UnsupportedFormat, match="upgrade"):
        decode(resealed(bytes(raw)))


@pytest.mark.parametrize("count", [0, 1, 3, 2**31, 2**32 - 1])
def test_a_hostile_count_costs_no_memory(count: int) -> None:
    raw = with_field(SAMPLE.encode(), "entry_count", count, 4)

    with peak_below(256 * 1024), pytest.raises(Corrupt):
        decode(raw)


def test_an_empty_group_is_corrupt() -> None:
    """An empty group has no first offset."""
    with pytest.raises(Corrupt, match="size"):
        decode(replace(SAMPLE, entries=NO_ENTRIES).encode())


@pytest.mark.parametrize("kind", [0, 2, 3, 4, 255])
def test_entries_must_be_of_the_next_lower_kind(kind: int) -> None:
    with pytest.raises(Corrupt, match="kind"):
        decode(with_field(SAMPLE.encode(), "kind", kind, 1))


def test_entries_of_two_kinds_are_corrupt() -> None:
    fragments = SAMPLE.entries
    mixed = replace(
        SAMPLE, kind=EntryKind.KILO_GROUP, entries=joined_entries(above(fragments[:1]), fragments[1:])
    )

    with pytest.raises(Corrupt, match="entry kind"):
        decode(mixed.encode())


def test_the_reserved_byte_is_refused() -> None:
    with pytest.raises(Corrupt):
        decode(with_field(SAMPLE.encode(), "reserved", 1, 1))


@pytest.mark.parametrize("byte", range(4))
def test_reserved_bytes_of_an_entry_are_refused(byte: int) -> None:
    raw = bytearray(SAMPLE.encode())
    raw[GROUP_HEADER.size_bytes + ENTRY.offset_of("reserved") + byte] = 7

    with pytest.raises(Corrupt):
        decode(resealed(bytes(raw)))


def test_a_group_of_another_stream_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="group stream"):
        decode(SAMPLE.encode(), stream="invoices")


@pytest.mark.parametrize("first_offset", [119, 121])
def test_a_hole_or_an_overlap_is_corrupt(first_offset: int) -> None:
    first, second = SAMPLE_ENTRIES
    wrong = rows_of_entries([first, replace(second, first_offset=first_offset)])

    with pytest.raises(Corrupt, match="coverage"):
        decode(replace(SAMPLE, entries=wrong).encode())


@pytest.mark.parametrize(
    "changes",
    [{"records": 0}, {"messages": 6}, {"first_offset": 2**64 - 2}],
    ids=["no records", "more messages than records", "wrapping"],
)
def test_an_impossible_entry_is_corrupt_even_under_the_checksum(changes: dict[str, Any]) -> None:
    impossible = replace(SAMPLE_ENTRIES[1], **changes)

    with pytest.raises(Corrupt, match="entry records"):
        decode(replace(SAMPLE, entries=rows_of_entries([impossible])).encode())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("data_size_bytes", 2**63),
        ("stored_size_bytes", 2**63),
        ("fragments", 2**31),
        ("ledgers", 2**31),
    ],
)
def test_sums_that_no_entry_can_hold_are_corrupt(name: str, value: int) -> None:
    """Such a group would end a sweep or a verify with an error that is none of ours."""
    columns = ["fragments", name] if name == "ledgers" else [name]  # no more ledgers than fragments
    entries = joined_entries(above(SAMPLE.entries[:1]), above(SAMPLE.entries[1:])).copy()
    group = replace(SAMPLE, kind=EntryKind.KILO_GROUP, entries=entries)
    for column in columns:
        entries[column] = value

    with pytest.raises(Corrupt, match=f"sum of {name}"):
        decode(group.encode())
    for column in columns:
        entries[column][0] = value - 1
    assert len(decode(group.encode()).entries) == 2


def test_a_group_may_end_at_the_greatest_offset() -> None:
    """The greatest offset is 2**64 - 2, because the next offset must be a 64-bit number too."""
    last = replace(SAMPLE_ENTRIES[1], first_offset=2**64 - 6)

    assert len(decode(replace(SAMPLE, entries=rows_of_entries([last])).encode()).entries) == 1


@pytest.mark.parametrize("kind", [EntryKind.GROUP, EntryKind.KILO_GROUP, EntryKind.MEGA_GROUP])
def test_every_kind_has_its_own_name(kind: EntryKind) -> None:
    suffixes = {EntryKind.GROUP: ".group", EntryKind.KILO_GROUP: ".kgroup", EntryKind.MEGA_GROUP: ".mgroup"}

    assert replace(SAMPLE, kind=kind).key.removesuffix(suffixes[kind]) == KEY.removesuffix(".group")


def above(entries: Entries) -> Entries:
    """Return the entry of a group of these entries."""
    group = replace(SAMPLE, kind=EntryKind(int(entries["kind"][0]) + 1), entries=entries)
    return group.entry(group.encode())


def test_groups_hold_groups_up_to_the_third_kind() -> None:
    entries = SAMPLE.entries
    for kind in (EntryKind.GROUP, EntryKind.KILO_GROUP, EntryKind.MEGA_GROUP):
        group = replace(SAMPLE, kind=kind, entries=entries)
        assert fields_of(decode(group.encode())) == fields_of(group)
        entries = group.entry(group.encode())

    assert (int(entries["fragments"][0]), int(entries["ledgers"][0])) == (2, 1)
    assert (int(entries["first_offset"][0]), int(entries["records"][0])) == (100, 25)


@pytest.mark.parametrize("golden", [GROUP_HEX, GROUP_1_HEX], ids=["2", "1"])
def test_a_decoded_group_says_how_large_its_object_is(golden: str) -> None:
    raw = bytes.fromhex(golden)

    assert decode(raw).size_bytes == len(raw)


def test_a_group_of_version_1_is_still_read() -> None:
    """A tier of release 0.2.0 can still be used."""
    assert fields_of(decode(bytes.fromhex(GROUP_1_HEX))) == fields_of(SAMPLE)
    assert group_1(SAMPLE).hex() == GROUP_1_HEX


def test_a_group_of_groups_of_version_1_is_still_read() -> None:
    """In version 1 a group had its root version in the column of the ledger."""
    group = replace(SAMPLE, kind=EntryKind.KILO_GROUP, entries=above(SAMPLE.entries))
    raw = group_1(group)

    assert raw[84 + 56 :][:8] == (5).to_bytes(8, "big")
    assert fields_of(decode(raw)) == fields_of(group)
    assert (group.entries["root_version"], group.entries["ledger_id"]) == (5, 0)


def test_no_flipped_bit_of_a_version_1_group_goes_unnoticed() -> None:
    raw = bytes.fromhex(GROUP_1_HEX)

    for bit in range(len(raw) * 8):
        with pytest.raises(Corrupt):
            decode(with_flipped_bit(raw, bit))


def test_a_version_1_group_that_is_cut_or_lengthened_is_corrupt() -> None:
    raw = bytes.fromhex(GROUP_1_HEX)

    for end in range(len(raw)):
        for damaged in (raw[:end], resealed(raw[: max(end, 4)])):
            with pytest.raises(Corrupt):
                decode(damaged)
    for more in (b"\0", bytes(96), raw[84:180]):
        with pytest.raises(Corrupt):
            decode(resealed(raw + more))


@pytest.mark.parametrize("count", [0, 1, 3, 2**31, 2**32 - 1])
def test_a_hostile_count_in_version_1_costs_no_memory(count: int) -> None:
    raw = with_field(bytes.fromhex(GROUP_1_HEX), "entry_count", count, 4)

    with peak_below(256 * 1024), pytest.raises(Corrupt):
        decode(raw)


@pytest.mark.parametrize("byte", range(2))
def test_reserved_bytes_of_a_version_1_entry_are_refused(byte: int) -> None:
    raw = bytearray.fromhex(GROUP_1_HEX)
    raw[GROUP_HEADER.size_bytes + ENTRY_2.offset_of("reserved") + byte] = 7

    with pytest.raises(Corrupt):
        decode(resealed(bytes(raw)))
