"""Tests of key objects: pinned bytes, one spelling, and no label that says where a key service is."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_fragments import with_flipped_bit

from offload.contracts.keys import KeyService, check_label
from offload.formats.anchor import (
    ANCHOR_SIZE_BYTES_MAX,
    KEY_FIELDS,
    WRAPPED_SIZE_BYTES_MAX,
    KeyObject,
    StreamAnchor,
    TierAnchor,
)
from offload.formats.checksums import crc32c
from offload.formats.keys import STREAM_SIZE_BYTES_MAX, StreamKeys
from offload.formats.sealing import DataKey
from offload.ground.errors import Corrupt, Denied, Misuse, UnsupportedFormat
from offload.native.key_ring import KeyRing
from offload.store.memory import MemoryStore

KEY: Final = b"s" * 32
UID: Final = UUID("c04b5e21-6d3f-4a97-8e10-b2a1d9f87c36")
SAMPLE: Final = KeyObject(
    stream="a/b ü",
    base_version=6,
    incarnation="7f1d3c52-8a0e-4b6f-9c1d-2e3f4a5b6c7d",
    uid=str(UID),
    generation=3,
    label="tier-2026",
    own=False,
    wrapped=base64.b64encode(b"wrapped by a service").decode(),
)
RAW: Final = (
    b"ledger-offload key 1\n"
    b'{"base_version":6,"generation":3,"incarnation":"7f1d3c52-8a0e-4b6f-9c1d-2e3f4a5b6c7d",'
    b'"label":"tier-2026","own":false,"stream":"a/b \\u00fc",'
    b'"uid":"c04b5e21-6d3f-4a97-8e10-b2a1d9f87c36","wrapped":"d3JhcHBlZCBieSBhIHNlcnZpY2U="}\n'
    b"crc32c c0eab33e\n"
)
HOSTILE_LABELS: Final = (
    "", "-", "-a", "a-", ".", "..", "../other", "a/b", "/etc/passwd", "a\\b", "C:key", "a.b", "a:b", "a@b",
    "a b", " a", "a\n", "a\0", "http://evil.example", "https://evil.example/v1/transit", "file:///key",
    "127.0.0.1", "evil.example:8200", "arn:aws:kms:eu-1:1:key/2", "alias/a", "Tier", "TIER", "tier_2026",
    "%2e%2e", "a?b", "a#b", "$HOME", "{key}", "ä", "\N{ARABIC-INDIC DIGIT ONE}", "a" * 65, "a" * 60_000,
)  # fmt: skip


def sealed(text: str, *, version: int = 1) -> bytes:
    lines = f"ledger-offload key {version}\n{text}\n".encode()
    return lines + b"crc32c %08x\n" % crc32c(lines)


def spelled(values: Mapping[str, Any]) -> bytes:
    """Return a key object with these fields, unchecked, as a hostile or broken writer would store it."""
    return sealed(json.dumps(values, sort_keys=True, separators=(",", ":")))


def assert_refused(**changes: Any) -> None:
    """Assert that such a key object is neither written nor read."""
    with pytest.raises(Misuse):
        replace(SAMPLE, **changes).encode()
    with pytest.raises(Corrupt):
        KeyObject.decode(spelled(asdict(SAMPLE) | changes), where="here")


def test_the_bytes_of_version_1_do_not_drift() -> None:
    assert SAMPLE.encode() == RAW
    assert KeyObject.decode(RAW, where="here") == SAMPLE


def test_the_page_on_the_format_lists_every_field() -> None:
    assert [name for name, _, _ in KEY_FIELDS] == sorted(each.name for each in fields(KeyObject))


@given(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=100),
    st.integers(1, 2**63 - 1),
    st.uuids(),
    st.uuids(),
    st.integers(1, 2**64 - 1),
    st.from_regex(r"[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?", fullmatch=True),
    st.binary(min_size=1, max_size=WRAPPED_SIZE_BYTES_MAX),
)
def test_decoding_undoes_encoding(
    stream: str, base_version: int, incarnation: UUID, uid: UUID, generation: int, label: str, wrapped: bytes
) -> None:
    made = KeyObject(
        stream=stream,
        base_version=base_version,
        incarnation=str(incarnation),
        uid=str(uid),
        generation=generation,
        label=label,
        own=False,
        wrapped=base64.b64encode(wrapped).decode(),
    )

    assert KeyObject.decode(made.encode(), where="here") == made


def test_the_largest_key_object_is_read() -> None:
    largest = replace(
        SAMPLE,
        stream="ü" * (STREAM_SIZE_BYTES_MAX // 2),
        label="a" * 64,
        wrapped=base64.b64encode(bytes(WRAPPED_SIZE_BYTES_MAX)).decode(),
    )

    assert len(largest.encode()) <= ANCHOR_SIZE_BYTES_MAX
    assert KeyObject.decode(largest.encode(), where="here") == largest


def test_no_single_flipped_bit_goes_unnoticed() -> None:
    for bit in range(len(RAW) * 8):
        with pytest.raises(Corrupt):
            KeyObject.decode(with_flipped_bit(RAW, bit), where="here")


def test_a_shortened_or_lengthened_key_object_is_corrupt() -> None:
    for damaged in (*(RAW[:size] for size in range(len(RAW))), RAW + b"\n", b"\n" + RAW, RAW + RAW):
        with pytest.raises(Corrupt):
            KeyObject.decode(damaged, where="here")


@given(st.binary(max_size=100))
def test_any_other_bytes_are_corrupt(raw: bytes) -> None:
    head = b"ledger-offload key 1\n"
    lines = head + raw + b"\n"
    for hostile in (raw, head + raw, lines + b"crc32c %08x\n" % crc32c(lines)):
        with pytest.raises(Corrupt):
            KeyObject.decode(hostile, where="here")


@pytest.mark.parametrize("version", [0, 2, 999_999_999])
def test_another_version_asks_for_an_upgrade(version: int) -> None:
    with pytest.raises(UnsupportedFormat, match="upgrade"):
        KeyObject.decode(sealed('{"from the":"future"}', version=version), where="here")


def test_an_anchor_is_no_key_object_nor_the_reverse() -> None:
    for anchor in (TierAnchor(), StreamAnchor(stream="orders")):
        with pytest.raises(Corrupt):
            KeyObject.decode(anchor.encode(), where="here")
        with pytest.raises(Corrupt):
            anchor.decode(RAW, where="here")


@pytest.mark.parametrize("name", [each.name for each in fields(KeyObject)])
def test_every_field_is_present_and_of_its_type(name: str) -> None:
    values = asdict(SAMPLE)
    for value in (None, 1, True, 1.5, "x", [values[name]], {"a": values[name]}):
        if type(value) is not type(values[name]):
            assert_refused(**{name: value})

    with pytest.raises(Corrupt):
        KeyObject.decode(spelled({key: value for key, value in values.items() if key != name}), where="here")


def test_another_spelling_is_corrupt_even_under_its_checksum() -> None:
    text = RAW.split(b"\n")[1].decode()
    assert sealed(text) == RAW
    spellings = (
        json.dumps(asdict(SAMPLE), sort_keys=True),
        json.dumps(asdict(SAMPLE), separators=(",", ":")),
        json.dumps(asdict(SAMPLE), sort_keys=True, separators=(",", ":"), ensure_ascii=False),
        text[:-1] + ',"wrapped":"d3JhcHBlZCBieSBhIHNlcnZpY2U="}',
        text[:-1] + ',"z":"more"}',
        text.replace("tier-2026", "tier\\u002d2026"),
        text + " ",
        f"[{text}]",
        "{}",
        "null",
        "[" * 30_000,
    )

    for spelling in spellings:
        assert sealed(spelling) != RAW
        with pytest.raises(Corrupt):
            KeyObject.decode(sealed(spelling), where="here")


@pytest.mark.parametrize("name", ["incarnation", "uid"])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "orders",
        "C04B5E21-6D3F-4A97-8E10-B2A1D9F87C36",
        "c04b5e216d3f4a978e10b2a1d9f87c36",
        "{c04b5e21-6d3f-4a97-8e10-b2a1d9f87c36}",
        "urn:uuid:c04b5e21-6d3f-4a97-8e10-b2a1d9f87c36",
        "c04b5e21-6d3f-4a97-8e10-b2a1d9f87c3",
        "c04b5e21-6d3f-4a97-8e10-b2a1d9f87c36\n",
        "c04b5e2-16d3f-4a97-8e10-b2a1d9f87c36",
    ],
)
def test_a_uuid_has_one_spelling(name: str, text: str) -> None:
    """The class `UUID` reads capitals, braces, other prefixes and other hyphens too."""
    assert_refused(**{name: text})


@pytest.mark.parametrize(
    "stream", ["", "\ud800", "x" * (STREAM_SIZE_BYTES_MAX + 1)], ids=["", "half", "long"]
)
def test_a_name_that_no_stream_can_have_is_refused(stream: str) -> None:
    assert_refused(stream=stream)


@pytest.mark.parametrize("label", HOSTILE_LABELS, ids=lambda label: ascii(label[:20]))
def test_a_label_is_never_a_path_or_an_address(label: str) -> None:
    """It comes from the bucket. Otherwise whoever writes to the bucket could choose who gets our token."""
    with pytest.raises(Misuse, match="is no label of a key"):
        check_label(label)

    assert_refused(label=label)


@pytest.mark.parametrize("base_version", [0, -1, 2**63])
def test_a_key_object_names_no_root_that_cannot_exist(base_version: int) -> None:
    """It proves that the root existed, and no stream could ever reach such a number."""
    assert_refused(base_version=base_version)


@pytest.mark.parametrize("generation", [0, -1, 2**64])
def test_a_generation_is_1_or_more(generation: int) -> None:
    assert_refused(generation=generation)


@pytest.mark.parametrize("label", ["tier-2026", str(UID), f"a{UID}", f"a-{UUID(int=9)}", f"a-{UID}-b"])
def test_an_own_master_key_has_the_uid_in_its_label(label: str) -> None:
    """Whoever shreds the stream destroys this master key, so it must not be one that others need."""
    assert_refused(label=label, own=True)
    assert replace(SAMPLE, label=f"a-{UID}", own=True).encode()


def test_the_mark_of_an_own_master_key_cannot_be_taken_away() -> None:
    """The key service does not bind the mark. Without it, a shred would spare the master key."""
    assert_refused(label=f"a-{UID}", own=False)


@pytest.mark.parametrize("label", ["a", "0", "a-b", "a--b", "tier-2026", "a" * 64])
def test_a_label_has_1_to_64_characters(label: str) -> None:
    assert check_label(label) == label
    assert KeyObject.decode(replace(SAMPLE, label=label).encode(), where="here").label == label


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A",
        "AAA",
        "AA=",
        "AAAA=",
        "A===",
        "====",
        "AAA=AAAA",
        "AA==AA==",
        "A A=",
        "AAAA\n",
        "AA-_",
        "ÄÄÄÄ",
        "AAA!",
    ],
)
def test_a_wrapped_key_is_base64(text: str) -> None:
    assert_refused(wrapped=text)


@pytest.mark.parametrize("text", ["QR==", "QQF="])
def test_base64_of_a_wrapped_key_has_one_spelling(text: str) -> None:
    """The last character has bits that a decoder ignores."""
    assert base64.b64decode(text, validate=True)

    assert_refused(wrapped=text)


@pytest.mark.parametrize("size_bytes", [0, WRAPPED_SIZE_BYTES_MAX + 1, 3 * WRAPPED_SIZE_BYTES_MAX])
def test_a_wrapped_key_has_1_to_4096_bytes(size_bytes: int) -> None:
    assert_refused(wrapped=base64.b64encode(bytes(size_bytes)).decode())


class Wrapping(KeyService):
    """A service that records what it is asked to unwrap, and wraps nothing."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bytes]] = []

    async def wrap(self, label: str, key: bytes, context: Mapping[str, str]) -> bytes:
        return key

    async def unwrap(self, label: str, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        self.asked.append((label, wrapped))
        return wrapped


WRAPPED_DATA_KEY: Final = DataKey(
    raw=b"d" * 32, incarnation=UUID(SAMPLE.incarnation), attempt=UUID(int=2), first_offset=0
).wrapped(KEY)
SOUND: Final = replace(SAMPLE, stream="orders", wrapped=base64.b64encode(KEY).decode())


async def opened(objects: Mapping[str, bytes], service: KeyService) -> bytes:
    """Return the data key that a reader of the stream `orders` gets from these objects."""
    store = MemoryStore()
    for name, raw in objects.items():
        await store.create(name, raw)
    ring, life = KeyRing(service=service), UUID(SOUND.incarnation)
    return await ring.open(store, "orders", life, UID, WRAPPED_DATA_KEY, where="here")


def under(own: bytes, copy: bytes) -> dict[str, bytes]:
    keys = StreamKeys("orders")
    names = keys.key_objects(UUID(SOUND.incarnation), UID, SOUND.generation)
    return dict(zip(names, (own, copy), strict=True))


FOREIGN: Final = (
    replace(SOUND, stream="invoices").encode(),
    replace(SOUND, uid=str(UUID(int=9))).encode(),
    replace(SOUND, incarnation=str(UUID(int=9))).encode(),
    replace(SOUND, generation=9).encode(),
    spelled(asdict(SOUND) | {"label": "https://evil.example"}),
    with_flipped_bit(SOUND.encode(), 300),
    StreamAnchor(stream="orders").encode(),
    b"",
)
FOREIGN_IDS: Final = ("stream", "uid", "life", "generation", "label", "bit", "anchor", "empty")


@pytest.mark.parametrize("foreign", FOREIGN, ids=FOREIGN_IDS)
def test_an_object_of_another_stream_or_key_is_not_taken(foreign: bytes) -> None:
    """Somebody put it under the key of this stream's object. The key service is not even asked."""
    service = Wrapping()

    with pytest.raises(Denied, match="both copies"):
        asyncio.run(opened(under(foreign, foreign), service))

    assert service.asked == []


@pytest.mark.parametrize("foreign", FOREIGN, ids=FOREIGN_IDS)
def test_one_sound_copy_is_enough(foreign: bytes) -> None:
    for objects in (under(foreign, SOUND.encode()), under(SOUND.encode(), foreign)):
        service = Wrapping()

        assert asyncio.run(opened(objects, service)) == b"d" * 32

        assert service.asked == [("tier-2026", KEY)]
