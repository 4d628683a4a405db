"""Tests of the sections of a fragment and their directory: impossible ones are refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_fragments import (
    CODECS,
    Draft,
    DraftSection,
    chunks_of,
    compressed,
    data_key,
    fragment_of,
    peak_below,
    tail_of,
    with_flipped_bit,
)

from offload.contracts.store import Body
from offload.formats.checksums import crc32c
from offload.formats.fragment import FragmentTail
from offload.formats.keys import StreamKeys
from offload.formats.sealing import TAG_SIZE_BYTES
from offload.formats.sections import decode_directory, encode_sections, section_of
from offload.ground.errors import Corrupt, UnsupportedFormat
from offload.model.compression import BlockCodec, Compression
from offload.native.fragment_check import check_fragment
from offload.store.memory import MemoryStore

KEY: Final = StreamKeys("orders").fragment(100, UUID(int=0xA1))
NEEDED: Final = ("index", "checksums", "description")
LATER: Final = {"version": 9, "codec": 77, "encrypted": 1, "plain_size_bytes": 2**40}
"""The fields of a section that a later program wrote."""


def draft(codec: str = "zstd", *, chunks: int = 50) -> Draft:
    return Draft.of(fragment_of(chunks_of([40] * chunks), CODECS[codec]))


def later(name: bytes, body: bytes = b"bytes of a later program") -> DraftSection:
    return DraftSection(name=name, body=body, claims=dict(LATER))


def chunks_in(tail: FragmentTail, raw: bytes) -> bytes:
    start, end = tail.span_of(0, len(tail.table))
    return tail.chunks_in(raw[start:end], 0, len(tail.table), where="here")


def check(raw: bytes) -> int:
    """Check the whole object as `verify` does. Return its checksum."""

    async def run() -> int:
        store = MemoryStore()
        await store.put(KEY, Body.of(raw))
        return (await check_fragment(store, KEY, size_bytes=len(raw))).checksum

    return asyncio.run(run())


@given(
    st.dictionaries(st.from_regex(r"[a-z0-9-]{1,16}", fullmatch=True), st.binary(max_size=500), max_size=5),
    st.integers(0, 2**40),
    st.sampled_from(["none", "lz4", "zstd:1"]),
)
def test_decoding_sections_undoes_encoding(parts: dict[str, bytes], position: int, codec: str) -> None:
    encoded = encode_sections(parts, position=position, compression=Compression.parse(codec))
    raw = b"".join(body for body, _ in encoded)
    directory = b"".join(row for _, row in encoded)

    sections = decode_directory(directory, where="here", position=position + len(raw))

    assert list(sections) == list(parts)
    assert [section.number for section in sections.values()] == list(range(len(parts)))
    for name, section in sections.items():
        most = len(parts[name])
        assert section.size_bytes <= section.plain_size_bytes == most
        found = section_of(raw, section, origin=position, plain_size_bytes_max=most, where="here")
        assert found == parts[name]


def test_a_section_that_does_not_shrink_is_stored_plain() -> None:
    sections = tail_of(fragment_of(chunks_of([40] * 50), CODECS["zstd"])).sections

    assert sections["index"].codec == BlockCodec.ZSTD
    assert (sections["description"].codec, sections["description"].size_bytes) == (BlockCodec.NONE, 14)


def test_a_section_can_be_stored_verbatim() -> None:
    [(body, row)] = encode_sections(
        {"large": bytes(99)}, position=0, compression=CODECS["zstd"], verbatim=("large",)
    )

    assert body == bytes(99)
    assert decode_directory(row, where="here", position=99)["large"].codec == BlockCodec.NONE


@pytest.mark.parametrize("codec", CODECS)
def test_only_the_sections_that_are_named_are_encrypted(codec: str) -> None:
    parts = {"open": bytes(99), "secret": bytes(99)}
    encoded = encode_sections(
        parts, position=0, compression=CODECS[codec], key=data_key(), sealed=("secret",)
    )
    raw = b"".join(body for body, _ in encoded)

    found = decode_directory(b"".join(row for _, row in encoded), where="here", position=len(raw))

    assert [(each.encrypted, each.plain_size_bytes) for each in found.values()] == [(0, 99), (1, 99)]
    assert found["secret"].size_bytes == found["open"].size_bytes + TAG_SIZE_BYTES
    for name, section in found.items():
        plain = section_of(raw, section, origin=0, plain_size_bytes_max=99, key=data_key(), where="here")
        assert plain == parts[name]


@pytest.mark.parametrize("change", [{"number": 0}, {"plain_size_bytes": 98}, {"codec": 0}], ids=str)
def test_an_encrypted_section_does_not_open_in_another_place(change: dict[str, int]) -> None:
    """A directory is not secret. Whoever changes it gets no other section, size or codec accepted."""
    encoded = encode_sections(
        {"open": b"", "secret": bytes(99)},
        position=0,
        compression=CODECS["zstd"],
        key=data_key(),
        sealed=("secret",),
    )
    raw = encoded[1][0]
    section = decode_directory(encoded[1][1], where="here", position=len(raw))["secret"]
    read = partial(section_of, raw, origin=0, plain_size_bytes_max=99, key=data_key(), where="here")

    assert read(replace(section, number=1)) == bytes(99)
    with pytest.raises(Corrupt, match="seal of section"):
        read(replace(section, **{"number": 1} | change))


@pytest.mark.parametrize("encryption", [2, 255])
def test_another_kind_of_encryption_asks_for_an_upgrade(encryption: int) -> None:
    body, row = encode_sections(
        {"a": bytes(99)}, position=0, compression=CODECS["none"], key=data_key(), sealed=("a",)
    )[0]
    section = decode_directory(row, where="here", position=len(body))["a"]

    with pytest.raises(UnsupportedFormat, match="upgrade"):
        section_of(
            body,
            replace(section, encrypted=encryption),
            origin=0,
            plain_size_bytes_max=99,
            key=data_key(),
            where="here",
        )


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", ["index", "description", "blocks", "key"])
def test_a_section_that_is_read_without_a_key_must_not_be_encrypted(name: str, codec: str) -> None:
    """A later program may encrypt it. No key that a reader of today gets could open it."""
    made = Draft.of(fragment_of(chunks_of([40] * 50), CODECS[codec], key=data_key()))
    made.section(name).claims["encrypted"] = 1

    with pytest.raises(UnsupportedFormat, match="upgrade"):
        assert tail_of(made.sealed()).wrapped_key


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("at", range(5))
def test_a_section_of_an_unknown_name_is_ignored_wherever_it_is(codec: str, at: int) -> None:
    """It is in the tail. Its version, codec and size do not matter."""
    made = draft(codec)
    plain = fragment_of(chunks_of([40] * 50), CODECS[codec])
    made.sections.insert(min(at, len(made.sections)), later(b"key-index-2"))
    raw = made.sealed()

    tail = tail_of(raw)

    assert tail.sections["key-index-2"].version == 9
    assert tail.table.tolist() == tail_of(plain).table.tolist()
    assert chunks_in(tail, raw) == b"".join(chunks_of([40] * 50))
    assert check(raw) == crc32c(raw)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size_bytes", [0, 1, 5 * 2**20])
def test_unknown_sections_may_lie_between_chunks_and_tail(codec: str, size_bytes: int) -> None:
    """No reader fetches them. A check of the whole object reads them too."""
    made = draft(codec)
    made.sections[:0] = [later(b"large", bytes(size_bytes)), later(b"small")]
    made.early = 2
    raw = made.sealed()

    tail = tail_of(raw)

    assert tail.sections["large"].stop + 24 == tail.trailer.tail_start
    assert FragmentTail.decode(raw[tail.trailer.tail_start :], where="here", size_bytes=len(raw))
    assert chunks_in(tail, raw) == b"".join(chunks_of([40] * 50))
    assert check(raw) == crc32c(raw)


def test_a_flipped_bit_between_chunks_and_tail_is_found_by_a_check_of_the_object() -> None:
    made = draft()
    made.sections.insert(0, later(b"early"))
    made.early = 1
    raw = made.sealed()
    section = tail_of(raw).sections["early"]

    for bit in range(section.position * 8, section.stop * 8):
        with pytest.raises(Corrupt, match="data checksum"):
            check(with_flipped_bit(raw, bit))


@pytest.mark.parametrize("name", NEEDED)
def test_a_needed_section_before_the_tail_is_corrupt(name: str) -> None:
    made = draft()
    section = made.section(name)
    made.sections.remove(section)
    made.sections.insert(0, section)
    made.early = 1

    with pytest.raises(Corrupt, match=f"place of section '{name}'"):
        tail_of(made.sealed())


@pytest.mark.parametrize("name", [*NEEDED, "blocks"])
def test_a_missing_section_is_corrupt(name: str) -> None:
    made = draft()
    made.sections.remove(made.section(name))

    with pytest.raises(Corrupt, match=f"section '{name}'"):
        tail_of(made.sealed())


def test_a_directory_without_sections_is_corrupt() -> None:
    made = draft()
    made.sections.clear()

    with pytest.raises(Corrupt):
        tail_of(made.sealed())


@pytest.mark.parametrize("name", [b"index", b"later"])
def test_a_name_that_occurs_twice_is_corrupt(name: bytes) -> None:
    made = draft()
    made.sections += [later(b"later"), later(name)]

    with pytest.raises(Corrupt, match="section name"):
        tail_of(made.sealed())


@pytest.mark.parametrize(
    "name",
    [
        b"",
        b"Index",
        b"in dex",
        b"a\0b",
        b"\0index",
        b"index\n",
        b"a_b",
        b"a.b",
        b"\xff",
        "ä".encode(),
        bytes(16),
    ],
)
def test_a_malformed_name_is_corrupt(name: bytes) -> None:
    made = draft()
    made.sections.append(later(name))

    with pytest.raises(Corrupt, match="section name"):
        tail_of(made.sealed())


@pytest.mark.parametrize("name", [b"a", b"-", b"0123456789abcdef"])
def test_a_name_may_have_1_to_16_characters(name: bytes) -> None:
    made = draft()
    made.sections.append(later(name))

    assert name.decode() in tail_of(made.sealed()).sections


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("field", ["position", "size_bytes"])
@pytest.mark.parametrize("value", [0, 2**63, 2**64 - 1, "more", "less"])
def test_an_impossible_place_is_corrupt_even_of_an_unknown_section(
    number: int, field: str, value: int | str
) -> None:
    """Sections are back to back, from the end of the chunks to the directory."""
    made = draft()
    made.sections.insert(0, later(b"early"))
    sections = [*tail_of(made.sealed()).sections.values()]
    if isinstance(value, str):
        value = getattr(sections[number], field) + (1 if value == "more" else -1)
    made.sections[number].claims[field] = value

    with pytest.raises(Corrupt):
        tail_of(made.sealed())


def test_sections_that_do_not_begin_at_the_end_of_the_chunks_are_corrupt() -> None:
    """There are bytes between them that belong to nobody."""
    made = draft("none")
    made.data += b"\0"

    with pytest.raises(Corrupt, match="end of chunks"):
        tail_of(made.sealed())


@pytest.mark.parametrize("shift", [-40, -1, 1, 10])
def test_a_tail_that_does_not_begin_with_a_section_is_corrupt(shift: int) -> None:
    """All checksums are right, but the tail begins among the chunks or within a section."""
    made = draft()
    made.sections.insert(0, later(b"early"))
    raw = made.sealed()
    start = tail_of(raw).trailer.tail_start + shift
    sums = {"data_checksum": crc32c(raw[:start]), "tail_checksum": crc32c(raw[start:-180])}

    with pytest.raises(Corrupt, match="tail"):
        tail_of(made.sealed(tail_start=start, **sums))


@pytest.mark.parametrize("name", [*NEEDED, "blocks"])
def test_a_wrong_checksum_of_a_section_is_corrupt(name: str) -> None:
    made = draft()
    made.section(name).claims["checksum"] = 1

    with pytest.raises(Corrupt, match=f"checksum of section '{name}'"):
        tail_of(made.sealed())


@pytest.mark.parametrize(
    "changes", [{"version": 2}, {"version": 0}, {"encrypted": 1}, {"encrypted": 255}], ids=str
)
@pytest.mark.parametrize("name", [*NEEDED, "blocks"])
def test_a_needed_section_of_another_version_or_with_a_key_asks_for_an_upgrade(
    name: str, changes: dict[str, int]
) -> None:
    made = draft()
    made.section(name).claims |= changes

    with pytest.raises(UnsupportedFormat, match="upgrade"):
        tail_of(made.sealed())


@pytest.mark.parametrize("codec", [3, 255])
@pytest.mark.parametrize("name", [*NEEDED, "blocks"])
def test_a_needed_section_of_an_unknown_codec_asks_for_an_upgrade(name: str, codec: int) -> None:
    made = draft()
    made.section(name).claims["codec"] = codec

    with pytest.raises(UnsupportedFormat, match="upgrade"):
        tail_of(made.sealed())


@pytest.mark.parametrize("codec", [0, 1, 2])
@pytest.mark.parametrize("name", [*NEEDED, "blocks"])
@pytest.mark.parametrize("claimed", [2**40, 2**63, 2**64 - 1, 2**26, 2**26 + 1, 0])
def test_a_section_that_claims_another_plain_size_is_corrupt_and_costs_no_memory(
    name: str, codec: int, claimed: int
) -> None:
    made = draft()
    section = made.section(name)
    plain = {"codec": codec, "plain_size_bytes": claimed}
    body = b"%16d" % 0 * 50
    section.body = compressed(body, Compression(BlockCodec(codec), int(codec == 1)))
    section.claims = plain
    raw = made.sealed()

    with pytest.raises(Corrupt, match=r"size of section|plain size|compressed bytes"), peak_below(512 * 1024):
        tail_of(raw)


@pytest.mark.parametrize("name", ["index", "checksums"])
@pytest.mark.parametrize("codec", ["none", "zstd", "lz4"])
@pytest.mark.parametrize("change", [-1, 1, 2**22])
def test_a_section_of_another_size_than_the_chunks_need_is_refused(
    name: str, codec: str, change: int
) -> None:
    """Directory and section agree with each other, but not with the count of chunks."""
    made = draft("none")
    plain = made.section(name).body
    plain = plain[:change] if change < 0 else plain + bytes(change)
    made.replace_plain(name, compressed(plain, CODECS[codec]))
    made.section(name).claims = {"codec": CODECS[codec].codec, "plain_size_bytes": len(plain)}
    raw = made.sealed()

    with pytest.raises(Corrupt, match=f"size of section '{name}'"), peak_below(512 * 1024 + 2 * len(raw)):
        tail_of(raw)


@given(st.binary(max_size=48 * 4), st.integers(0, 2**64))
def test_any_other_bytes_of_a_directory_are_corrupt_or_back_to_back(raw: bytes, position: int) -> None:
    raw = raw[: len(raw) // 48 * 48]
    try:
        sections: dict[str, Any] = decode_directory(raw, where="here", position=position)
    except Corrupt:
        return
    ends = [section.stop for section in sections.values()]
    assert ends == [*(each.position for each in list(sections.values())[1:]), position][: len(ends)]
