"""Anchors: pinned, of one spelling only."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offload.commit.log import RootLog
from offload.env import Env
from offload.errors import Corrupt, Misuse, UnsupportedFormat
from offload.formats.anchor import BRANCHING_FACTOR_MAX, StreamAnchor, TierAnchor
from offload.formats.checksums import crc32c
from offload.formats.root import ENTRY
from offload.store.memory import MemoryStore

TIER = b'ledger-offload tier 1\n{"branching_factor":1024}\ncrc32c 308fcbce\n'
STREAM = b'ledger-offload stream 1\n{"stream":"a/b \\"\\u00fc\\""}\ncrc32c 43bf0c21\n'


def sealed(lines: bytes) -> bytes:
    return lines + b"crc32c %08x\n" % crc32c(lines)


def test_the_bytes_of_version_1_do_not_drift() -> None:
    assert TierAnchor().encode() == TIER
    assert StreamAnchor(stream='a/b "ü"').encode() == STREAM


@given(st.text(min_size=1, max_size=1000))
@settings(max_examples=30)
def test_decoding_undoes_encoding_of_a_stream(name: str) -> None:
    anchor = StreamAnchor(stream=name)

    assert StreamAnchor.decode(anchor.encode(), where="here") == anchor


@given(st.integers(2, BRANCHING_FACTOR_MAX))
def test_decoding_undoes_encoding_of_a_tier(branching_factor: int) -> None:
    anchor = TierAnchor(branching_factor=branching_factor)

    assert TierAnchor.decode(anchor.encode(), where="here") == anchor


@pytest.mark.parametrize(("kind", "raw"), [(TierAnchor, TIER), (StreamAnchor, STREAM)])
def test_no_single_flipped_bit_goes_unnoticed(kind: type[TierAnchor | StreamAnchor], raw: bytes) -> None:
    for bit in range(len(raw) * 8):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            kind.decode(bytes(damaged), where="here")


@pytest.mark.parametrize(("kind", "raw"), [(TierAnchor, TIER), (StreamAnchor, STREAM)])
def test_an_anchor_that_was_cut_or_lengthened_is_corrupt(
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


@pytest.mark.parametrize("version", [b"0", b"2", b"999999999"])
def test_another_version_asks_for_an_upgrade(version: bytes) -> None:
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
def test_another_spelling_of_the_same_is_corrupt_even_under_its_checksum(text: str) -> None:
    with pytest.raises(Corrupt):
        TierAnchor.decode(sealed(f"ledger-offload tier 1\n{text}\n".encode()), where="here")


def test_a_name_is_spelled_in_ascii() -> None:
    """One spelling, whatever a person's editor makes of it."""
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
