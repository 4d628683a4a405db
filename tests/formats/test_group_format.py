"""A group's bytes: pinned, undone, no bit of them unguarded; and the entry that stands for them."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload.errors import Corrupt, UnsupportedFormat
from offload.formats.checksums import crc32c
from offload.formats.group import GROUP_HEADER, Group, group_size_bytes
from offload.formats.root import ENTRY
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
    "4f4c4d47000101001c168adb00d208e42f93314529f1fa9c0427eb63233ceda95a5db52b7012a719"
    "0000000000000000000000000000000100000000000000000000000000000002000000000000000500000002"
)
ENTRIES_HEX: Final = (
    "000000000000006400000000000000140000000000000012fffffffffffffffb0000018bcfe56800"
    "00000000000010000000000000001388000000000000004d000000000000000000000000000000a1"
    "deadbeef000000010000000100000000"
    "000000000000007800000000000000050000000000000005fffffffffffffff90000018bcfe567ff"
    "000000000000040000000000000007d0000000000000004d000000000000000000000000000000a1"
    "cafed00d000000010000000000000000"
)
GROUP_HEX: Final = HEADER_HEX + ENTRIES_HEX + "8f283f2f"
NAMING_HEX: Final = (
    "000000000000006400000000000000190000000000000017fffffffffffffff90000018bcfe56800"
    "00000000000014000000000000001b58000000000000000500000000000000000000000000000002"
    "2e5302f2000000020000000101000000"
)
"""The entry that names the sample: sums, the least and the greatest time, its own version and UUID."""

u64 = st.integers(0, 2**64 - 1)
times = st.integers(-(2**63), 2**63 - 1)


@st.composite
def entry_runs(draw: st.DrawFn) -> Entries:
    """Entries of one kind that touch each other."""
    kind = draw(st.integers(EntryKind.FRAGMENT, EntryKind.KILO_GROUP))
    at = draw(st.integers(0, 2**60))
    rows = []
    for _ in range(draw(st.integers(1, 5))):
        records = draw(st.integers(1, 2**40))
        fragments = draw(st.integers(1, 2**29)) if kind else 1
        rows.append(
            ENTRY.pack(
                first_offset=at,
                records=records,
                messages=draw(st.integers(0, records)),
                first_timestamp_ms=draw(times),
                last_timestamp_ms=draw(times),
                data_size_bytes=draw(st.integers(0, 2**60)),
                stored_size_bytes=draw(st.integers(0, 2**60)),
                ledger_id=draw(u64),
                attempt=draw(st.uuids()).bytes,
                checksum=draw(st.integers(0, 2**32 - 1)),
                fragments=fragments,
                ledgers=draw(st.integers(0, fragments)),
                kind=kind,
                copied=0,
                reserved=bytes(2),
            )
        )
        at += records
    return np.frombuffer(b"".join(rows), ENTRY.dtype)


@st.composite
def groups(draw: st.DrawFn) -> Group:
    """Any sound group."""
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
    fields = {name: getattr(group, name) for name in group.__dataclass_fields__}
    return fields | {"entries": group.entries.tobytes()}


def resealed(raw: bytes) -> bytes:
    """The bytes under a fresh checksum: what a hostile or broken writer would store."""
    return raw[:-4] + crc32c(raw[:-4]).to_bytes(4, "big")


def with_field(raw: bytes, name: str, value: int, size_bytes: int) -> bytes:
    at = GROUP_HEADER.offset_of(name)
    return resealed(raw[:at] + value.to_bytes(size_bytes, "big") + raw[at + size_bytes :])


def decode(raw: bytes, *, stream: str = "orders") -> Group:
    return Group.decode(raw, stream=stream, where="here")


def test_the_bytes_of_version_1_do_not_drift() -> None:
    raw = SAMPLE.encode()

    assert raw.hex() == GROUP_HEX
    assert SAMPLE.entry(raw).tobytes().hex() == NAMING_HEX
    assert SAMPLE.key == KEY
    assert fields_of(decode(bytes.fromhex(GROUP_HEX))) == fields_of(SAMPLE)


def test_the_layout_has_the_size_of_version_1() -> None:
    assert GROUP_HEADER.size_bytes == 84
    assert len(SAMPLE.encode()) == group_size_bytes(2) == 84 + 2 * 96 + 4


@given(groups())
def test_decoding_undoes_encoding(group: Group) -> None:
    again = decode(group.encode(), stream=group.stream)

    assert fields_of(again) == fields_of(group)
    assert again.encode() == group.encode()


@given(groups())
def test_its_entry_says_of_it_what_it_says_of_itself(group: Group) -> None:
    raw, children = group.encode(), group.entries

    [row] = group.entry(raw)

    assert row["first_offset"] == children["first_offset"][0]
    for total in ("records", "messages", "data_size_bytes", "stored_size_bytes", "fragments", "ledgers"):
        assert int(row[total]) == sum(map(int, children[total]))
    assert row["first_timestamp_ms"] == min(children["first_timestamp_ms"])
    assert row["last_timestamp_ms"] == max(children["last_timestamp_ms"])
    assert (row["kind"], row["checksum"], row["ledger_id"]) == (group.kind, crc32c(raw), group.version)
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


def test_a_group_that_was_cut_anywhere_is_corrupt() -> None:
    raw = SAMPLE.encode()

    for end in range(len(raw)):
        for damaged in (raw[:end], resealed(raw[: max(end, 4)])):
            with pytest.raises(Corrupt):
                decode(damaged)


def test_a_group_that_was_lengthened_is_corrupt() -> None:
    raw = SAMPLE.encode()
    entry = raw[GROUP_HEADER.size_bytes : GROUP_HEADER.size_bytes + ENTRY.size_bytes]

    for more in (b"\0", bytes(ENTRY.size_bytes), entry):
        for damaged in (raw + more, resealed(raw + more)):
            with pytest.raises(Corrupt):
                decode(damaged)


@given(st.binary(max_size=400))
def test_any_other_bytes_are_corrupt(raw: bytes) -> None:
    for hostile in (raw, b"OLMG\0\1" + raw):
        with pytest.raises(Corrupt):
            decode(hostile)


def test_a_newer_version_asks_for_an_upgrade() -> None:
    """Every later version keeps the magic, the place of the version, and the checksum at the end."""
    raw = bytearray.fromhex(GROUP_HEX)
    raw[5] = 2

    with pytest.raises(UnsupportedFormat, match="upgrade"):
        decode(resealed(bytes(raw)))


@pytest.mark.parametrize("count", [0, 1, 3, 2**31, 2**32 - 1])
def test_a_hostile_count_costs_no_memory(count: int) -> None:
    raw = with_field(SAMPLE.encode(), "entry_count", count, 4)
    tracemalloc.start()

    with pytest.raises(Corrupt):
        decode(raw)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 256 * 1024


def test_a_group_of_nothing_is_corrupt() -> None:
    """It could not say where it begins."""
    with pytest.raises(Corrupt, match="size"):
        decode(replace(SAMPLE, entries=NO_ENTRIES).encode())


@pytest.mark.parametrize("kind", [0, 2, 3, 4, 255])
def test_entries_of_another_kind_than_the_next_lower_are_corrupt(kind: int) -> None:
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


@pytest.mark.parametrize("byte", range(3))
def test_reserved_bytes_of_an_entry_are_refused(byte: int) -> None:
    raw = bytearray(SAMPLE.encode())
    raw[GROUP_HEADER.size_bytes + ENTRY.offset_of("reserved") + byte] = 7

    with pytest.raises(Corrupt):
        decode(resealed(bytes(raw)))


def test_a_group_of_another_stream_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="group stream"):
        decode(SAMPLE.encode(), stream="invoices")


@pytest.mark.parametrize("first_offset", [119, 121])
def test_a_hole_and_an_overlap_are_corrupt(first_offset: int) -> None:
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


def test_a_group_may_end_where_offsets_do() -> None:
    """The last offset of all is 2**64 - 2: the one behind it must be a number too."""
    last = replace(SAMPLE_ENTRIES[1], first_offset=2**64 - 6)

    assert len(decode(replace(SAMPLE, entries=rows_of_entries([last])).encode()).entries) == 1


@pytest.mark.parametrize("kind", [EntryKind.GROUP, EntryKind.KILO_GROUP, EntryKind.MEGA_GROUP])
def test_every_kind_has_its_own_name(kind: EntryKind) -> None:
    suffixes = {EntryKind.GROUP: ".group", EntryKind.KILO_GROUP: ".kgroup", EntryKind.MEGA_GROUP: ".mgroup"}

    assert replace(SAMPLE, kind=kind).key.removesuffix(suffixes[kind]) == KEY.removesuffix(".group")


def above(entries: Entries) -> Entries:
    """The entry of a group of these."""
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
