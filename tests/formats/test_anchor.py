"""Tests of anchors: pinned bytes, and only one spelling for each value."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offload.commit.log import RootLog
from offload.formats.anchor import BRANCHING_FACTOR_MAX, StreamAnchor, TierAnchor
from offload.formats.checksums import crc32c
from offload.formats.chunk import ChunkHeader
from offload.formats.chunk_writer import build_chunk
from offload.formats.root import ENTRY
from offload.ground.env import Env
from offload.ground.errors import Corrupt, Misuse, UnsupportedFormat
from offload.model.compression import Compression
from offload.model.part import PART_MAX, StreamPart
from offload.store.memory import MemoryStore


def sealed(lines: bytes) -> bytes:
    return lines + b"crc32c %08x\n" % crc32c(lines)


TIER = b'ledger-offload tier 1\n{"branching_factor":1024}\ncrc32c 308fcbce\n'
COMPRESSED = b'ledger-offload tier 2\n{"branching_factor":1024,"compression":"zstd:3"}\ncrc32c 0dad04a8\n'
STREAM = b'ledger-offload stream 1\n{"stream":"a/b \\"\\u00fc\\""}\ncrc32c 43bf0c21\n'
PART = b'ledger-offload stream 2\n{"continues":"a/b","part":2,"stream":"a/b-part-2"}\ncrc32c dd550c51\n'
HEADER = ChunkHeader.decode(
    build_chunk([b"x", b"y"], offset=5, timestamp_ms=1, epoch=2), where="here"
).encode()
BEHIND = sealed(
    b'ledger-offload stream 3\n{"behind":"%s","continues":"a/b","part":2,"stream":"a/b-part-2"}\n'
    % HEADER.hex().encode()
)
PINNED = [
    (TierAnchor, TIER),
    (TierAnchor, COMPRESSED),
    (StreamAnchor, STREAM),
    (StreamAnchor, PART),
    (StreamAnchor, BEHIND),
]


def test_the_bytes_of_version_1_do_not_drift() -> None:
    assert TierAnchor().encode() == TIER
    assert StreamAnchor(stream='a/b "ü"').encode() == STREAM


def test_the_bytes_of_version_2_do_not_drift() -> None:
    assert TierAnchor(compression="zstd:3").encode() == COMPRESSED
    assert StreamAnchor.of(StreamPart("a/b", 2)).encode() == PART


def test_the_bytes_of_version_3_do_not_drift() -> None:
    anchor = StreamAnchor.of(StreamPart("a/b", 2, HEADER))

    assert anchor.encode() == BEHIND
    assert StreamAnchor.decode(BEHIND, where="here").as_part.behind == HEADER


@pytest.mark.parametrize(
    "behind", ["00" * 48, HEADER.hex().upper(), HEADER.hex() + "00", HEADER.hex()[:-2], "x" * 96]
)
def test_an_anchor_of_version_3_has_the_header_of_a_chunk(behind: str) -> None:
    text = f'{{"behind":"{behind}","continues":"a","part":2,"stream":"a-part-2"}}'

    with pytest.raises(Corrupt):
        StreamAnchor.decode(sealed(f"ledger-offload stream 3\n{text}\n".encode()), where="here")


@given(st.text(min_size=1, max_size=1000))
@settings(max_examples=30)
def test_decoding_undoes_encoding_of_a_stream(name: str) -> None:
    anchor = StreamAnchor(stream=name)

    assert StreamAnchor.decode(anchor.encode(), where="here") == anchor


@given(st.text(min_size=1, max_size=1000), st.integers(2, PART_MAX))
@settings(max_examples=30)
def test_decoding_undoes_encoding_of_a_part(name: str, number: int) -> None:
    anchor = StreamAnchor.of(StreamPart(name, number))

    assert StreamAnchor.decode(anchor.encode(), where="here") == anchor


def test_the_first_part_has_the_anchor_of_a_stream_without_parts() -> None:
    assert StreamAnchor.of(StreamPart('a/b "ü"')).encode() == STREAM


@pytest.mark.parametrize(
    "text",
    [
        f'{{"behind":"{HEADER.hex()}","continues":"a","part":2,"stream":"a-part-2"}}',
        '{"continues":"a","part":1,"stream":"a"}',
        '{"continues":"a","part":2,"stream":"b-part-2"}',
        '{"continues":"a","part":2,"stream":"a-part-3"}',
        '{"continues":"a","part":1000000000,"stream":"a-part-1000000000"}',
        '{"continues":"a","part":2.0,"stream":"a-part-2"}',
        '{"continues":"a","stream":"a-part-2"}',
        '{"part":2,"stream":"a-part-2"}',
        '{"continues":"","part":0,"stream":"a-part-2"}',
        '{"stream":"a-part-2"}',
    ],
)
def test_an_anchor_of_version_2_names_the_part_that_its_name_says(text: str) -> None:
    """A part is looked up by its name. One of another name would be found by nobody."""
    with pytest.raises(Corrupt):
        StreamAnchor.decode(sealed(f"ledger-offload stream 2\n{text}\n".encode()), where="here")


@given(st.integers(2, BRANCHING_FACTOR_MAX))
def test_decoding_undoes_encoding_of_a_tier(branching_factor: int) -> None:
    anchor = TierAnchor(branching_factor=branching_factor)

    assert TierAnchor.decode(anchor.encode(), where="here") == anchor


@pytest.mark.parametrize(("kind", "raw"), PINNED)
def test_no_single_flipped_bit_goes_unnoticed(kind: type[TierAnchor | StreamAnchor], raw: bytes) -> None:
    for bit in range(len(raw) * 8):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            kind.decode(bytes(damaged), where="here")


@pytest.mark.parametrize(("kind", "raw"), PINNED)
def test_a_shortened_or_lengthened_anchor_is_corrupt(
    kind: type[TierAnchor | StreamAnchor], raw: bytes
) -> None:
    for damaged in (*(raw[:size] for size in range(len(raw))), raw + b"\n", b"\n" + raw):
        with pytest.raises(Corrupt):
            kind.decode(damaged, where="here")


@given(st.binary(max_size=100))
def test_any_other_bytes_are_corrupt(raw: bytes) -> None:
    for hostile in (raw, b"ledger-offload tier 1\n" + raw, sealed(b"ledger-offload tier 1\n" + raw)):
        with pytest.raises(Corrupt):
            TierAnchor.decode(hostile, where="here")


def test_an_anchor_of_the_other_kind_is_corrupt() -> None:
    with pytest.raises(Corrupt):
        TierAnchor.decode(STREAM, where="here")
    with pytest.raises(Corrupt):
        StreamAnchor.decode(TIER, where="here")


@pytest.mark.parametrize("text", ["lz4", "zstd:1", "zstd:19"])
def test_an_anchor_with_a_compression_has_version_2(text: str) -> None:
    """A program of an earlier release asks for an upgrade. In version 1 it would report damage."""
    anchor = TierAnchor(compression=text)

    assert anchor.encode().startswith(b"ledger-offload tier 2\n")
    assert TierAnchor.decode(anchor.encode(), where="here") == anchor
    assert anchor.default_compression == Compression.parse(text)


def test_an_anchor_without_a_compression_says_nothing_of_it() -> None:
    assert TierAnchor.decode(TIER, where="here").default_compression == Compression()


@pytest.mark.parametrize(
    "lines",
    [
        b'ledger-offload tier 1\n{"branching_factor":1024,"compression":"zstd:3"}\n',
        b'ledger-offload tier 2\n{"branching_factor":1024}\n',
        b'ledger-offload tier 2\n{"branching_factor":1024,"compression":""}\n',
        b'ledger-offload tier 2\n{"branching_factor":1024,"compression":"none"}\n',
        b'ledger-offload tier 2\n{"branching_factor":1024,"compression":"zstd"}\n',
        b'ledger-offload tier 2\n{"branching_factor":1024,"compression":"zstd:03"}\n',
        b'ledger-offload tier 2\n{"branching_factor":1024,"compression":"zstd:20"}\n',
        b'ledger-offload tier 2\n{"branching_factor":1024,"compression":"gzip"}\n',
        b'ledger-offload tier 2\n{"branching_factor":1024,"compression":3}\n',
    ],
)
def test_another_spelling_of_a_compression_is_corrupt_even_under_its_checksum(lines: bytes) -> None:
    with pytest.raises(Corrupt):
        TierAnchor.decode(sealed(lines), where="here")


@pytest.mark.parametrize("text", ["none", "zstd", "zstd:20", "gzip"])
def test_another_spelling_of_a_compression_is_not_written(text: str) -> None:
    with pytest.raises(Misuse):
        TierAnchor(compression=text).encode()


@pytest.mark.parametrize(("kind", "known"), [("tier", 2), ("stream", 3)])
def test_the_version_behind_the_newest_asks_for_an_upgrade(kind: str, known: int) -> None:
    anchor = {"tier": TierAnchor, "stream": StreamAnchor}[kind]
    raw = sealed(f'ledger-offload {kind} {known + 1}\n{{"from the":"future"}}\n'.encode())

    with pytest.raises(UnsupportedFormat, match=f"reads {known}; upgrade"):
        anchor.decode(raw, where="here")


@pytest.mark.parametrize("version", [b"0", b"3", b"999999999"])
def test_an_anchor_of_another_version_asks_for_an_upgrade(version: bytes) -> None:
    raw = sealed(b"ledger-offload tier " + version + b'\n{"from the":"future"}\n')

    with pytest.raises(UnsupportedFormat, match="upgrade"):
        TierAnchor.decode(raw, where="here")


@pytest.mark.parametrize(
    "text",
    [
        '{"branching_factor": 1024}',
        '{"branching_factor":1024,"more":1}',
        '{"branching_factor":1024,"branching_factor":1024}',
        "{}",
        "[]",
        "[1]",
        "null",
        "",
        '{"branching_factor":' + "9" * 5000 + "}",
    ],
)
def test_another_spelling_of_an_anchor_is_corrupt_even_under_its_checksum(text: str) -> None:
    with pytest.raises(Corrupt):
        TierAnchor.decode(sealed(f"ledger-offload tier 1\n{text}\n".encode()), where="here")


def test_a_name_is_spelled_in_ascii() -> None:
    """There is one spelling, however a person's editor encodes the text."""
    plain = json.dumps({"stream": "ü"}, ensure_ascii=False, separators=(",", ":")).encode()

    with pytest.raises(Corrupt):
        StreamAnchor.decode(sealed(b"ledger-offload stream 1\n" + plain + b"\n"), where="here")


@pytest.mark.parametrize(
    "text", ['{"branching_factor":"x"}', '{"branching_factor":-1}', "[" * 100_000], ids=["text", "-1", "deep"]
)
def test_a_field_of_another_kind_is_corrupt_even_under_its_checksum(text: str) -> None:
    with pytest.raises(Corrupt):
        TierAnchor.decode(sealed(f"ledger-offload tier 1\n{text}\n".encode()), where="here")


def test_a_mega_group_of_the_greatest_factor_can_count_its_fragments_and_of_the_next_cannot() -> None:
    greatest = min(np.iinfo(ENTRY.dtype[name]).max for name in ("fragments", "ledgers"))

    assert BRANCHING_FACTOR_MAX**3 <= greatest < (BRANCHING_FACTOR_MAX + 1) ** 3


@pytest.mark.parametrize("factor", [0, 1, BRANCHING_FACTOR_MAX + 1, 2**20])
def test_a_factor_whose_groups_could_not_be_counted_is_neither_written_nor_read(factor: int) -> None:
    with pytest.raises(Misuse, match=f"2 to {BRANCHING_FACTOR_MAX}, not {factor}"):
        TierAnchor(branching_factor=factor).encode()

    raw = sealed(b'ledger-offload tier 1\n{"branching_factor":%d}\n' % factor)
    with pytest.raises(Corrupt, match=f"2 to {BRANCHING_FACTOR_MAX}, not {factor}"):
        TierAnchor.decode(raw, where="here")


@pytest.mark.parametrize("factor", [1, BRANCHING_FACTOR_MAX + 1])
def test_no_root_is_written_with_such_a_factor(factor: int) -> None:
    with pytest.raises(Misuse, match="branching factor"):
        RootLog(store=MemoryStore(), stream="orders", env=Env(), factor=factor)
