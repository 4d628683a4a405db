"""Tests of encrypted fragments: no bit changes unseen, and nobody without the data key can rearrange one.

`Draft` plays somebody who may write to the bucket: it changes a part, and makes every CRC right again.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable
from itertools import combinations, pairwise
from typing import Any, Final
from uuid import UUID

import google_crc32c
import numpy as np
import pytest
from campaign import CAMPAIGN
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.keywrap import aes_key_unwrap
from made_fragments import (
    CODECS,
    STREAM_KEY,
    Draft,
    chunks_of,
    data_key,
    fragment_of,
    tail_of,
    with_flipped_bit,
)

from offload.formats.checksums import crc32c
from offload.formats.fragment import FragmentTail
from offload.formats.fragment_trailer import HEADER
from offload.formats.sealing import unwrapped
from offload.ground.errors import Corrupt, Denied, OffloadError

CHUNKS: Final = chunks_of([40_000, 50_000, 10, 70_000, 5])
PLAIN: Final = b"".join(CHUNKS)
GOLDEN: Final = (1609, "5d2f12b62679cb26da8d9aabd9b972998e6684d88933abbc49f69b00eccc3241")
"""Size and SHA-256 of a small fragment without compression, so that no other library can change it."""
RAW: Final = {name: fragment_of(CHUNKS, codec, key=data_key()) for name, codec in CODECS.items()}

each_codec = pytest.mark.parametrize("codec", CODECS)


def opened(raw: bytes) -> FragmentTail:
    """Return the tail of an object, unlocked as a reader with the stream's key does."""
    tail = tail_of(raw)
    _, wrapped = tail.wrapped_key
    return tail.unlocked(unwrapped(wrapped, STREAM_KEY, where="here"), where="here")


def read(raw: bytes) -> bytes:
    tail = opened(raw)
    start, end = tail.span_of(0, len(tail.table))
    return tail.chunks_in(raw[start:end], 0, len(tail.table), where="here")


def scrubbed(raw: bytes) -> None:
    """Check an object without its key, as a verify does."""
    tail = tail_of(raw)
    start, end = tail.span_of(0, len(tail.table))
    tail.check_stored(raw[start:end], 0, len(tail.table), where="here")
    if crc32c(raw[: tail.trailer.tail_start]) != tail.trailer.data_checksum:
        raise Corrupt("data checksum", "here", expected=0, found=1)


def as_forged(change: Callable[[Draft], None], raw: bytes, **claims: Any) -> bytes:
    draft = Draft.of(raw)
    change(draft)
    return draft.sealed(**claims)


@each_codec
def test_an_encrypted_fragment_reads_back_with_its_key_alone(codec: str) -> None:
    raw = RAW[codec]

    assert read(raw) == PLAIN
    assert not any(chunk[60:100] in raw for chunk in CHUNKS if len(chunk) > 100)
    tail = tail_of(raw)
    assert tail.checksums is None
    with pytest.raises(Denied, match="no key was given"):
        tail.chunks_in(raw[slice(*tail.span_of(0, 1))], 0, 1, where="here")
    with pytest.raises(Corrupt, match="seal"):
        tail.unlocked(b"x" * 32, where="here")


@each_codec
def test_every_flipped_bit_is_found_without_the_key_and_refused_with_it(codec: str) -> None:
    raw = RAW[codec]
    tail_start = tail_of(raw).trailer.tail_start
    bits = [*range(0, tail_start * 8, 997), *range(tail_start * 8, len(raw) * 8, 13 if CAMPAIGN else 151)]

    for bit in bits:
        damaged = with_flipped_bit(raw, bit)
        with pytest.raises(OffloadError):
            scrubbed(damaged)
        if bit >= HEADER.size_bytes * 8:
            with pytest.raises(OffloadError):
                read(damaged)


@each_codec
def test_no_two_blocks_can_be_swapped(codec: str) -> None:
    tail = tail_of(RAW[codec])
    assert tail.blocks is not None
    borders = tail.blocks.positions.tolist()
    bodies = [RAW[codec][start:stop] for start, stop in pairwise(borders)]
    assert len(bodies) > 1

    for one, other in combinations(range(len(bodies)), 2):

        def swap(draft: Draft, one: int = one, other: int = other) -> None:
            order = list(range(len(bodies)))
            order[one], order[other] = other, one
            draft.data = draft.data[: HEADER.size_bytes] + b"".join(bodies[n] for n in order)
            records = tail.blocks.records.copy() if tail.blocks else np.empty(0)
            for name in ("size_bytes", "checksum", "codec"):
                records[name] = records[name][order]
            draft.replace_plain("blocks", records.tobytes())

        with pytest.raises(Corrupt, match="seal"):
            read(as_forged(swap, RAW[codec]))


def test_the_error_of_a_wrong_seal_does_not_show_the_right_one() -> None:
    """Errors end up in logs. A forger who reads there could take the tag, and put it into the fragment."""
    draft = Draft.of(RAW["none"])
    right = draft.section("seal").body
    draft.section("seal").body = bytes(16)

    with pytest.raises(Corrupt, match="seal") as caught:
        opened(draft.sealed())

    assert str(right) not in str(caught.value)
    assert right not in (caught.value.expected, caught.value.found)


@each_codec
def test_a_block_of_another_place_does_not_open_even_if_the_seal_were_right(codec: str) -> None:
    """The blocks are bound to their numbers by themselves: a reader may have unlocked the tail before."""
    tail = opened(RAW[codec])
    assert tail.blocks is not None
    start, end = tail.span_of(0, len(tail.table))
    stored = RAW[codec][start:end]
    tail.blocks.records.flags.writeable = False
    for number in range(len(tail.blocks.records)):
        part = stored[tail.blocks.positions[number] - start : tail.blocks.positions[number + 1] - start]
        for place in range(len(tail.blocks.records)):
            if place != number:
                with pytest.raises(Corrupt):
                    tail.blocks._plain(part, place, tail.key, "here")


@each_codec
def test_no_fragment_can_be_cut(codec: str) -> None:
    """The last blocks go, and index, counts and offsets agree with that."""
    short = fragment_of(CHUNKS[:-1], CODECS[codec], key=data_key())
    tail, less = tail_of(RAW[codec]), tail_of(short)
    assert tail.blocks is not None
    assert less.blocks is not None

    def cut(draft: Draft) -> None:
        draft.data = RAW[codec][: int(tail.blocks.positions[len(less.blocks.records)])]  # type: ignore[union-attr]
        for name in ("index", "blocks", "checksums"):
            other = Draft.of(short).section(name)
            draft.section(name).body, draft.section(name).claims = other.body, other.claims
        draft.trailer = less.trailer

    with pytest.raises(Corrupt, match=r"seal|end of chunks"):
        read(as_forged(cut, RAW[codec]))


@pytest.mark.parametrize("name", ["index", "checksums", "blocks", "description", "key", "seal"])
def test_no_section_can_come_from_another_fragment(name: str) -> None:
    other = fragment_of(
        chunks_of([40_000, 50_000, 10, 70_000, 6]),
        CODECS["zstd"],
        key=data_key(raw=b"e" * 32),
        metadata={"a": "b"},
    )

    def replaced(draft: Draft) -> None:
        body = Draft.of(other).section(name)
        draft.section(name).body, draft.section(name).claims = body.body, body.claims

    with pytest.raises(Corrupt):
        read(as_forged(replaced, RAW["zstd"]))


def test_no_section_can_be_added_left_out_or_moved() -> None:
    def added(draft: Draft) -> None:
        draft.sections.insert(1, type(draft.sections[0])(name=b"topics", body=b"forged"))

    def left_out(draft: Draft) -> None:
        draft.sections.remove(draft.section("seal"))

    def moved(draft: Draft) -> None:
        draft.sections.insert(0, draft.sections.pop(1))

    for change in (added, left_out, moved):
        with pytest.raises(Corrupt):
            read(as_forged(change, RAW["zstd"]))


@pytest.mark.parametrize(
    "claim",
    [
        {"ledger_id": 78},
        {"epoch": 4},
        {"base_version": 6},
        {"copied": 1},
        {"incarnation": UUID(int=2)},
        {"attempt": UUID(int=2)},
    ],
    ids=str,
)
def test_no_field_of_the_trailer_can_be_changed(claim: dict[str, Any]) -> None:
    with pytest.raises(Corrupt, match="seal"):
        read(Draft.of(RAW["zstd"]).sealed(**claim))


@pytest.mark.parametrize("change", [{"attempt": UUID(int=7)}, {"incarnation": UUID(int=7)}])
def test_a_fragment_cannot_take_the_place_of_another(change: dict[str, Any]) -> None:
    """Two attempts with one data key cannot happen. Even then, nothing of the one opens as the other's."""
    tail = tail_of(fragment_of(CHUNKS, CODECS["zstd"], key=data_key(**change)))

    with pytest.raises(Corrupt, match="seal"):
        tail.unlocked(b"d" * 32, where="here")


def test_the_bytes_of_an_encrypted_fragment_do_not_drift() -> None:
    raw = fragment_of(chunks_of([3, 5, 700]), key=data_key())

    assert (len(raw), hashlib.sha256(raw).hexdigest()) == GOLDEN


def test_the_page_on_the_format_suffices_to_open_a_fragment() -> None:
    """The test follows docs/format.md, and shares no code with the program."""
    raw = RAW["none"]
    trailer = raw[-180:]
    tail_start, _, sections = struct.unpack(">QII", trailer[152:168])
    directory = raw[-180 - 48 * sections : -180]
    rows = [struct.unpack(">16sHBBQQQI", directory[48 * n : 48 * n + 48]) for n in range(sections)]
    bodies = {row[0].rstrip(b"\0").decode(): raw[row[4] : row[4] + row[5]] for row in rows}
    cipher = AESGCM(aes_key_unwrap(STREAM_KEY, bodies["key"][16:]))

    def context(kind: int, number: int, size: int, codec: int, *, is_last: bool) -> tuple[bytes, bytes]:
        ids = UUID(int=1).bytes + UUID(int=0xA1).bytes
        where = struct.pack(">QQQBB", 100, number, size, codec, is_last)
        return struct.pack(">IQ", kind, number), bytes([kind]) + ids + where

    blocks = [
        struct.unpack(">IIB3sI", bodies["blocks"][n : n + 16]) for n in range(0, len(bodies["blocks"]), 16)
    ]
    at, plain = 16, []
    for number, (_, size, codec, _, _) in enumerate(blocks):
        nonce, data = context(1, number, size - 16, codec, is_last=number == len(blocks) - 1)
        plain.append(cipher.decrypt(nonce, raw[at : at + size], data))
        at += size
    assert (b"".join(plain), at) == (PLAIN, tail_start)
    [(number, row)] = [(number, row) for number, row in enumerate(rows) if row[3]]
    nonce, data = context(2, number, row[6], row[2], is_last=False)
    checksums = cipher.decrypt(nonce, bodies["checksums"], data)
    assert checksums == b"".join(zlib.crc32(chunk).to_bytes(4, "big") for chunk in CHUNKS)
    nonce, data = context(3, 0, 0, 0, is_last=False)
    rest = trailer[:-8] + bytes(4)
    sealed = raw[:16] + directory[:-4] + bytes(4)
    sealed += b"".join(hashlib.sha256(body).digest() for name, body in bodies.items() if name != "seal")
    sealed += rest + google_crc32c.value(rest).to_bytes(4, "big")
    assert cipher.encrypt(nonce, b"", data + sealed) == bodies["seal"]


def test_an_encrypted_fragment_says_who_wrapped_its_key() -> None:
    uid, wrapped = tail_of(RAW["zstd"]).wrapped_key

    assert uid == UUID(int=0)
    assert unwrapped(wrapped, STREAM_KEY, where="here") == b"d" * 32
