"""Tests of indexes that a crash left, written byte by byte: journals, segments, and both versions at once."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from pathlib import Path

import pytest
from offload_rabbitmq.queues import folder as folder_module
from offload_rabbitmq.queues.store_files import IN_STORE, Damages, VhostFiles
from queue_terms import message

ENTRIES = 2048
TERM = message(b"hello")


def publish(sequence: int, *, is_journal: bool, term: bytes = TERM, persistent: bool = True) -> bytes:
    """Return the record of a publish."""
    head = (
        struct.pack(">Q", sequence | (not persistent) << 62)
        if is_journal
        else struct.pack(">H", 0x8000 | persistent << 14 | sequence % ENTRIES)
    )
    return head + bytes(range(16)) + struct.pack(">QII", 0, 5, len(term)) + term


def deliver(sequence: int) -> bytes:
    return struct.pack(">Q", 2 << 62 | sequence)


def ack(sequence: int) -> bytes:
    return struct.pack(">Q", 3 << 62 | sequence)


def mark(sequence: int) -> bytes:
    return struct.pack(">H", 0x4000 | sequence % ENTRIES)


def slot(sequence: int, *, kind: int = 2, present: int = 1, offset: int = 64, flags: int = 1) -> bytes:
    place = bytes([kind]) + (struct.pack(">QII", offset, len(TERM), 0) if kind == 2 else bytes(range(16)))
    return bytes([present, flags, 0]) + place + struct.pack(">IQ", 5, 0)


def segment_v2(first: int, *slots: bytes) -> bytes:
    return b"RCQI\x02" + struct.pack(">QQ", first, (first + 4096) % 2**64) + bytes(43) + b"".join(slots)


BODIES = (
    b"RCQS\x02" + struct.pack(">QQ", 0, 4096) + bytes(43)
    + struct.pack(">IBHB", len(TERM), 1, zlib.crc32(TERM) & 0xFFFF, 0) + TERM
)  # fmt: skip


def live(folder: Path, **files: bytes) -> tuple[list[tuple[int, bool]], Damages]:
    """Return the sequence ids and redelivered marks of a queue with these files, after a clean stop."""
    queue = folder / "queues" / "Q"
    queue.mkdir(parents=True)
    names = {"journal": "journal.jif"}
    for name, raw in files.items():
        (queue / names.get(name, name[1:].replace("_", "."))).write_bytes(raw)
    found = folder_module._Folder(queue, sorted(each.name for each in queue.iterdir()))
    folder_module._read_queue(found, ENTRIES, VhostFiles(folder), {})
    return [(int(each["sequence"]), bool(each["flags"])) for each in found.rows], found.damages


JOURNALED = {number: publish(number, is_journal=True) for number in range(5000)}
STORED = {number: publish(number, is_journal=False) for number in range(5000)}


@pytest.mark.parametrize(
    ("segment", "journal", "found"),
    [
        (b"", JOURNALED[0] + JOURNALED[1], [(0, False), (1, False)]),
        (b"", JOURNALED[0] + JOURNALED[1] + deliver(0) + ack(0), [(1, False)]),
        (STORED[0], JOURNALED[0], [(0, False)]),
        (STORED[0], JOURNALED[0] + deliver(0), [(0, True)]),
        (STORED[0], deliver(0) + ack(0), []),
        (STORED[0], ack(0), []),
        (STORED[0] + mark(0), deliver(0), [(0, True)]),
        (STORED[0] + mark(0), ack(0), []),
        (STORED[0] + mark(0), JOURNALED[0] + deliver(0) + ack(0), []),
        (STORED[0] + mark(0) + mark(0), JOURNALED[0] + deliver(0) + ack(0), []),
        (b"", deliver(0) + ack(0), []),
        (b"", ack(0), []),
        (b"", publish(0, is_journal=True, persistent=False) + JOURNALED[1], [(1, False)]),
        (publish(0, is_journal=False, persistent=False) + STORED[1], b"", [(1, False)]),
        (STORED[0], JOURNALED[4500] + JOURNALED[2050], [(0, False), (2050, False), (4500, False)]),
        (STORED[2], JOURNALED[1] + bytes(1000), [(1, False), (2, False)]),
        (STORED[2], JOURNALED[1] + bytes(7), [(1, False), (2, False)]),
    ],
)
def test_a_message_counts_if_it_is_published_anywhere_and_acknowledged_nowhere(
    tmp_path: Path, segment: bytes, journal: bytes, found: list[tuple[int, bool]]
) -> None:
    files = {"_0_idx": segment} if segment else {}

    assert live(tmp_path, **files, journal=journal) == (found, Counter())


@pytest.mark.parametrize("lacking", range(1, len(JOURNALED[1])))
def test_a_journal_ends_before_a_record_that_is_cut_off(tmp_path: Path, lacking: int) -> None:
    found, damages = live(tmp_path, journal=JOURNALED[0] + JOURNALED[1][:-lacking])

    assert found == [(0, False)]
    assert damages.total() == (
        len(JOURNALED[1]) - lacking > 8 or JOURNALED[1][: len(JOURNALED[1]) - lacking] > bytes(8)
    )


@pytest.mark.parametrize(
    "wrong", [b"\0\0", mark(ENTRIES - 1)[:1], publish(3, is_journal=False, term=b"no term"), STORED[3][:-1]]
)
def test_a_segment_ends_before_bytes_that_are_no_record(tmp_path: Path, wrong: bytes) -> None:
    found, damages = live(tmp_path, _0_idx=STORED[0] + wrong)

    assert (found, damages.total()) == ([(0, False)], 1)


def test_what_is_in_both_versions_counts_once(tmp_path: Path) -> None:
    slots = segment_v2(0, slot(0), slot(1))

    found, damages = live(tmp_path, _0_idx=STORED[1] + STORED[2], _0_qi=slots, _0_qs=BODIES)

    assert (found, damages) == ([(0, False), (1, False), (2, False)], Counter())


@pytest.mark.parametrize(
    ("wrong", "count"),
    [
        (slot(0, present=0), 0),
        (slot(0, flags=0), 0),
        (slot(0, present=7), 1),
        (slot(0, kind=0), 1),
        (slot(0, offset=65), 1),
        (slot(0, offset=2**63), 1),
        (slot(0, offset=2), 1),
    ],
)
def test_a_slot_that_cannot_be_read_is_counted_unless_it_is_not_live(
    tmp_path: Path, wrong: bytes, count: int
) -> None:
    found, damages = live(tmp_path, _0_qi=segment_v2(0, wrong, slot(1)), _0_qs=BODIES)

    assert (found, damages.total()) == ([(1, False)], count)


@pytest.mark.parametrize("head", [b"", b"RCQI\x03", bytes(64), segment_v2(2**64 - 10)[:64]])
def test_a_file_without_the_header_of_an_index_is_counted(tmp_path: Path, head: bytes) -> None:
    found, damages = live(tmp_path, _0_qi=head + slot(0), _0_qs=BODIES)

    assert (found, damages.total()) == ([], 1)


def test_a_slot_may_name_the_message_store(tmp_path: Path) -> None:
    queue = folder_module._Folder(tmp_path, ["0.qi"])
    (tmp_path / "0.qi").write_bytes(segment_v2(8192, slot(0, present=0), slot(1, kind=1)))

    folder_module._read_queue(queue, ENTRIES, VhostFiles(tmp_path), None)

    (row,) = queue.rows.tolist()
    assert row[:3] == (8193, bytes(range(16)), IN_STORE)
    assert queue.versions == ["v2"]
