"""The bytes and the keys of the plugin's objects."""

from __future__ import annotations

import struct
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from offload_rabbitmq_s3 import RabbitmqKey, RabbitmqManifest
from offload_rabbitmq_s3.objects import (
    ENTRY,
    encode_index,
    index_table,
    rows_of_stored,
    sizes_of,
    stored_entries,
)
from rabbitmq_s3_bucket import DATA, MANIFEST, Bucket, Named, fragment_of, manifest_of

from offload.formats.chunk import scan
from offload.ground.errors import Corrupt, UnsupportedFormat
from offload.model.entry import Entry, EntryKind, entries_of_rows

WORKED = bytes.fromhex("00000000000004d20000018bcfe568000000018bcfe57b88000004000000f619c087")
"""The worked example of the plugin's documents."""


def test_the_worked_entry_of_the_documents_is_read_and_written() -> None:
    (entry,) = entries_of_rows(rows_of_stored(np.frombuffer(WORKED, ENTRY.dtype), 1300))

    assert (entry.first_offset, entry.next_offset, entry.messages) == (1234, 1300, 66)
    assert (entry.first_timestamp_ms, entry.last_timestamp_ms) == (1700000000000, 1700000005000)
    assert (entry.data_size_bytes, entry.attempt) == (64 * 2**20, UUID(int=0xF619C087))
    assert stored_entries([entry]).tobytes() == WORKED


def test_sizes_of_forty_bits_are_read() -> None:
    raw = Named(0, 0, 0, 0, 2**40 - 3, 1).pack()

    assert sizes_of(np.frombuffer(raw, ENTRY.dtype)).tolist() == [2**40 - 3]


@pytest.mark.parametrize("bucket", ["tiny", "batches"])
def test_every_key_and_every_manifest_of_the_generator_is_read_and_written(bucket: str) -> None:
    strangers = []
    for path in sorted((DATA / bucket).rglob("*")):
        name = str(path.relative_to(DATA / bucket))
        if not path.is_file():
            continue
        key = RabbitmqKey.parse(name)
        if key is None:
            strangers.append(name.rpartition("/")[2])
            continue
        assert str(key) == name
        if key.kind is not EntryKind.FRAGMENT:
            raw = path.read_bytes()
            manifest = RabbitmqManifest.decode(raw, kind=key.kind or EntryKind.FRAGMENT, where=name)
            assert manifest.encode() == raw
            assert key.kind is None or manifest.first_offset == key.number
    assert strangers == ([] if bucket == "tiny" else ["README", "00000000000000000000.zzzzzzzz.group", "x"])


@pytest.mark.parametrize(
    "name",
    [
        "data/00000000000000000001.1a6916c7.group",
        "metadata/00000000000000000001.1a6916c7.fragment",
        "data/1.1a6916c7.fragment",
        "data/00000000000000000001.1A6916C7.fragment",
        "data/99999999999999999999.1a6916c7.fragment",
        "metadata/root.01.1a6916c7.manifest",
        "metadata/root.99999999999999999999.1a6916c7.manifest",
        "metadata/root.1.1a6916c7.group",
        "metadata/manifest",
        "data/00000000000000000001.1a6916c7.fragment\n",
    ],
)
def test_a_key_of_another_form_is_a_strangers(name: str) -> None:
    assert RabbitmqKey.parse(f"rabbitmq/stream/__a_1/{name}") is None


@pytest.mark.parametrize("stream", ["a", "_=-Z9", "x" * 255])
def test_a_stream_may_have_any_name_of_a_folder(stream: str) -> None:
    key = RabbitmqKey(stream, EntryKind.FRAGMENT, 2**64 - 1, 0)

    assert RabbitmqKey.parse(str(key)) == key
    assert RabbitmqKey.parse(str(key).replace(stream, stream + "/..", 1)) is None


def test_an_index_is_written_as_it_is_read() -> None:
    bucket = Bucket()
    chunks = bucket.messages(7)
    raw = fragment_of(chunks)
    data = b"".join(chunks)
    table = scan(data, first_position=8, where="memory")
    last = bucket.next + int(table["records"].sum())
    entry = entry_of(0, last, len(data), int(table["timestamp_ms"][0]), int(table["timestamp_ms"][-1]))

    found = index_table(raw[8 + len(data) :], entry, where="memory")

    assert encode_index(table) == raw[8 + len(data) :]
    for name in ("offset", "timestamp_ms", "records", "size_bytes", "position"):
        assert found[name].tolist() == table[name].tolist()


def entry_of(first: int, behind: int, size: int, first_ms: int, last_ms: int) -> Entry:
    return Entry(
        first_offset=first,
        records=behind - first,
        messages=behind - first,
        first_timestamp_ms=first_ms,
        last_timestamp_ms=last_ms,
        data_size_bytes=size,
        stored_size_bytes=size,
        ledger_id=first,
        attempt=UUID(int=1),
        checksum=0,
    )


@pytest.mark.parametrize(
    ("records", "what"),
    [
        ([], "size of the index"),
        ([(0, 5, 0), (3, 6, 100)], None),
        ([(1, 5, 0), (3, 6, 100)], "index record 0"),
        ([(0, 5, 8), (3, 6, 100)], "index record 0"),
        ([(0, 5, 0), (0, 6, 100)], "index record 0"),
        ([(0, 5, 0), (3, 6, 40)], "index record 0"),
        ([(0, 5, 0), (9, 6, 100)], "index record 1"),
        ([(0, 5, 0), (3, 6, 190)], "index record 1"),
        ([(0, 5, 0), (3, 6, 2**32 - 1)], "index record 1"),
        ([(0, 4, 0), (3, 6, 100)], "times of the index"),
        ([(0, 5, 0), (3, 7, 100)], "times of the index"),
    ],
)
def test_an_index_that_does_not_fit_its_entry_is_damage(
    records: list[tuple[int, int, int]], what: str | None
) -> None:
    raw = b"".join(struct.pack(">QqI", *each) for each in records)
    entry = entry_of(0, 9, 200, 5, 6)
    if what is None:
        assert len(index_table(raw, entry, where="o")) == 2
        for cut in range(1, 20):
            with pytest.raises((Corrupt, UnsupportedFormat)):
                index_table(raw[:-cut], entry, where="o")
    else:
        with pytest.raises(Corrupt, match=what):
            index_table(raw, entry, where="o")


ROOT = manifest_of(
    0, [Named(0, 1, 2, 2, 0, 9), Named(9, 3, 4, 0, 100, 8), Named(12, 5, 6, 0, 90, 7)], (20, 2, 500)
)


@given(st.integers(0, len(ROOT) - 1))
def test_a_root_that_is_cut_is_refused(stop: int) -> None:
    """At the end of an entry nothing shows it here: a walk finds that the sizes differ."""
    if (stop - 49) % 34 or stop < 49:
        with pytest.raises((Corrupt, UnsupportedFormat)):
            RabbitmqManifest.decode(ROOT[:stop], kind=EntryKind.FRAGMENT, where="root")


@pytest.mark.parametrize(
    ("kind", "raw", "error", "text"),
    [
        (0, b"OSIX" + ROOT[4:], Corrupt, "magic"),
        (0, b"OSIG" + ROOT[4:], Corrupt, "magic"),
        (0, ROOT[:7] + b"\2" + ROOT[8:], UnsupportedFormat, "version 2"),
        (0, b"OSIR\0\0\0\1" + bytes(25 + 27), UnsupportedFormat, "older generation"),
        (0, manifest_of(0, [Named(0, 1, 2, 0, 100, 9)], (3, 2, 99)), Corrupt, "total size"),
        (0, manifest_of(0, [Named(0, 1, 2, 0, 100, 9)], (3, 2, 2**70)), Corrupt, "total size"),
        (0, manifest_of(0, [Named(0, 1, 2, 0, 100, 9)], (3, 2, 100), first=1), Corrupt, "first offset"),
        (0, manifest_of(0, [Named(0, 1, 2, 1, 0, 9)], (3, 2, 9), first=3), Corrupt, "first offset"),
        (0, manifest_of(0, [Named(3, 1, 2, 0, 100, 9)], (3, 2, 100)), Corrupt, "next offset"),
        (0, manifest_of(0, [], (9, -1, 1)), Corrupt, "total size"),
        (0, manifest_of(0, [Named(0, 1, 2, 0, 51, 9)], (3, 2, 51)), Corrupt, "entry 0"),
        (0, manifest_of(0, [Named(0, 1, 2, 0, 2**40 - 1, 9)], (3, 2, 2**40 - 1)), Corrupt, "entry 0"),
        (0, manifest_of(0, [Named(0, 1, 2, 4, 0, 9)], (3, 2, 0)), Corrupt, "entry 0"),
        (0, manifest_of(0, [Named(0, 1, 2, 1, 5, 9)], (3, 2, 0)), Corrupt, "entry 0"),
        (
            0,
            manifest_of(0, [Named(0, 1, 2, 0, 60, 9), Named(0, 1, 2, 0, 60, 9)], (3, 2, 120)),
            Corrupt,
            "entry 1",
        ),
        (
            0,
            manifest_of(0, [Named(0, 1, 2, 0, 60, 9), Named(2, 1, 2, 1, 0, 9)], (3, 2, 60)),
            Corrupt,
            "entry 1",
        ),
        (1, manifest_of(1, [Named(0, 1, 2, 1, 0, 9)]), Corrupt, "entry 0"),
        (2, manifest_of(2, [Named(0, 1, 2, 3, 0, 9)]), Corrupt, "entry 0"),
        (1, manifest_of(1, []), Corrupt, "entries"),
        (1, manifest_of(1, [Named(0, 1, 2, 0, 60, 9)], (1, 0, 0)), Corrupt, "last numbers"),
        (1, manifest_of(1, [Named(5, 1, 2, 0, 60, 9)], first=4), Corrupt, "first offset"),
    ],
)
def test_a_manifest_that_breaks_a_rule_is_refused(
    kind: int, raw: bytes, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        RabbitmqManifest.decode(raw, kind=EntryKind(kind), where="object")


def test_the_roots_of_the_data_are_those_of_its_manifest() -> None:
    for name, told in MANIFEST.items():
        raw = (DATA / name / told["root"]).read_bytes()
        root = RabbitmqManifest.decode(raw, kind=EntryKind.FRAGMENT, where=told["root"])

        assert (root.first_offset, root.next_offset) == (told["first_offset"], told["next_offset"])
        assert root.total_size_bytes == told["total_size"]
