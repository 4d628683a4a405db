"""Tests of an encrypted and compressed tier that is damaged, or rearranged by somebody who may write to it.

The tier has one object of every kind: anchors, fragments, a group, a root, and both copies of a key. Damage
is found without keys. Somebody who writes to the bucket makes every checksum right again, in the fragments
and in the manifest that names them. That is found with keys, by `read` and by `verify`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from itertools import combinations, pairwise, permutations, product
from typing import Any, Final
from uuid import UUID

import numpy as np
import pytest
from campaign import campaign
from key_world import Objects, Service, World
from made_fragments import Draft, data_key, fragment_of, tail_of, with_flipped_bit
from offload_conformance.ledgers import ledger_of

from offload import ObjectStoreOffloader, StreamReader, StreamWriter, verify
from offload.formats.anchor import KeyObject, TierAnchor
from offload.formats.checksums import crc32c
from offload.formats.fragment import encode_description
from offload.formats.fragment_trailer import HEADER
from offload.formats.keys import TIER_ANCHOR, StreamKeys
from offload.formats.root import decode_root, encode_root
from offload.formats.sealing import KEY_SECTION
from offload.ground.errors import OffloadError
from offload.native.fragment_writer import entry_of
from offload.store.faults import FaultyStore
from offload.store.memory import MemoryStore

STREAMS: Final = ("orders", "others")
KEYS: Final = StreamKeys("orders")
SERVICE: Final = Service()
RECORDS: Final = 3
BODY_SIZE_BYTES: Final = 70_000  # each record fills a block of its own
STEP: Final = 61
"""`make test` flips a bit of every so many bytes, and the campaign flips all bits."""


async def _make(objects: Objects, *, factor: int) -> None:
    objects[TIER_ANCHOR] = TierAnchor(branching_factor=factor, compression="zstd:3").encode()
    tier = _tier(objects)
    for stream in STREAMS:
        writer = await StreamWriter.claim(tier, stream)
        for first in range(0, 3 * RECORDS, RECORDS):
            await writer.offload([ledger_of(RECORDS, first_offset=first, body_size_bytes=BODY_SIZE_BYTES)])
        roots = sorted(key for key in objects if key.startswith(StreamKeys(stream).roots))
        for superseded in roots[:-1]:
            del objects[superseded]


@cache
def made(factor: int = 1024) -> Objects:
    """Return a tier. Nobody changes it."""
    objects: Objects = {}
    asyncio.run(_make(objects, factor=factor))
    return objects


def _tier(objects: Objects, *, with_keys: bool = True) -> ObjectStoreOffloader:
    world = World(store=FaultyStore(MemoryStore(objects=objects)), service=SERVICE)
    return world.tier(world.ring() if with_keys else None)


async def read_refuses(objects: Objects, stream: str = "orders") -> bool:
    """Read the stream with keys. Return False if all is delivered. No wrong message may come in any case."""
    number, error = 0, None
    try:
        reader = await StreamReader.open(_tier(objects), stream)
        async for batch in reader.messages(0):
            for offset, body in enumerate(batch.bodies, batch.offset):
                assert (offset, body) == (number, b"%d" % number + b"." * BODY_SIZE_BYTES)
                number += 1
    except OffloadError as exc:
        error = exc
    assert error is not None or number == 3 * RECORDS
    return error is not None


async def verify_finds(objects: Objects, *, with_keys: bool) -> set[str]:
    report = await verify(_tier(objects, with_keys=with_keys), stream="orders")
    return {damage.where for damage in report.damages} | {*report.unchecked}


def of_one_stream(objects: Objects) -> list[str]:
    return [key for key in objects if key == TIER_ANCHOR or key.startswith(KEYS.prefix)]


def kind_of(key: str) -> str:
    return key.rpartition(".")[2]


async def _flip(sound: Objects, bits_of: Callable[[bytes], Iterator[int]]) -> dict[str, int]:
    """Flip these bits of each object, one at a time, and count them by kind."""
    flipped = dict[str, int]()
    for key in of_one_stream(sound):
        for bit in bits_of(sound[key]):
            objects = sound | {key: with_flipped_bit(sound[key], bit)}
            assert key in await verify_finds(objects, with_keys=False), (key, bit)
            refused = await read_refuses(objects)
            # The other copy of a key heals it, and readers do not ask for the header of a fragment.
            heals = "/keys/" in key or (kind_of(key) == "fragment" and bit < HEADER.size_bytes * 8)
            assert refused or heals or key.endswith("anchor"), (key, bit)
            flipped[kind_of(key)] = flipped.get(kind_of(key), 0) + 1
    return flipped


KINDS: Final = {"anchor", "fragment", "group", "manifest", "key", "copy"}


def test_a_flipped_bit_of_any_object_is_found_without_keys_and_never_read() -> None:
    def some(raw: bytes) -> Iterator[int]:
        return (at * 8 + at % 8 for at in range(0, len(raw), STEP))

    assert asyncio.run(_flip(made(2), some)).keys() == KINDS


@campaign("make test flips a bit of every 61st byte")
@pytest.mark.parametrize("bit", range(8))
def test_this_bit_of_every_byte_of_every_object_is_found_without_keys_and_never_read(bit: int) -> None:
    flipped = asyncio.run(_flip(made(2), lambda raw: iter(range(bit, len(raw) * 8, 8))))

    assert flipped.keys() == KINDS
    assert sum(flipped.values()) == sum(len(made(2)[key]) for key in of_one_stream(made(2)))


def forged(sound: Objects, changes: Mapping[str, bytes]) -> Objects:
    """Return the tier with other fragments, and with a root that names them by their true sizes and sums."""
    objects = {**sound, **changes}
    [root] = [key for key in objects if key.startswith(KEYS.roots)]
    manifest = decode_root(objects[root], where=root)
    entries = manifest.entries.copy()
    for key, raw in changes.items():
        if (parsed := KEYS.parse_fragment(key)) is None:
            continue
        [row] = np.flatnonzero(entries["first_offset"] == parsed[0])
        entry = entry_of(tail_of(raw).trailer, crc32c(raw))
        for name, value in asdict(entry).items():
            entries[name][row] = np.void(value.bytes) if name == "attempt" else value
    last = entries[-1]
    manifest = replace(
        manifest,
        entries=entries,
        next_offset=int(last["first_offset"] + last["records"]),
        **{name: int(entries[name].sum()) for name in ("messages", "data_size_bytes", "stored_size_bytes")},
    )
    return objects | {root: encode_root(manifest)}


async def _outcomes(objects: Objects) -> tuple[bool, bool, bool]:
    """Return whether a read, a verify with keys, and a verify without keys refuse the tier."""
    found = [bool(await verify_finds(objects, with_keys=with_keys)) for with_keys in (True, False)]
    return await read_refuses(objects), found[0], found[1]


def assert_seen_with_keys_alone(objects: Objects, what: object) -> None:
    """Every checksum is right, so that a verify without keys sees nothing."""
    assert asyncio.run(_outcomes(objects)) == (True, True, False), what


def assert_seen(objects: Objects, what: object) -> None:
    assert asyncio.run(_outcomes(objects)) == (True, True, True), what


def fragments_of(objects: Objects, stream: str = "orders") -> list[str]:
    return sorted(key for key in objects if key.startswith(StreamKeys(stream).data))


def blocks_of(raw: bytes) -> list[tuple[bytes, np.void]]:
    """Return the stored bytes and the record of each block."""
    blocks = tail_of(raw).blocks
    assert blocks is not None
    spans = pairwise(blocks.positions.tolist())
    return [(raw[start:stop], record) for (start, stop), record in zip(spans, blocks.records, strict=True)]


def with_blocks(raw: bytes, blocks: Sequence[tuple[bytes, np.void]]) -> Draft:
    """Return a fragment with other stored blocks for the same chunks, or for the first of them."""
    draft, tail = Draft.of(raw), tail_of(raw)
    assert tail.blocks is not None
    records = tail.blocks.records[: len(blocks)].copy()
    for row, (_, record) in enumerate(blocks):
        for name in ("size_bytes", "checksum", "codec"):
            records[name][row] = record[name]
    draft.data = raw[: HEADER.size_bytes] + b"".join(body for body, _ in blocks)
    draft.replace_plain("blocks", records.tobytes())
    return draft


def test_no_two_blocks_of_a_tier_can_be_swapped() -> None:
    sound = made()
    places = [(key, row) for key in fragments_of(sound) for row in range(RECORDS)]

    for (one, row), (other, place) in combinations(places, 2):
        blocks = {key: blocks_of(sound[key]) for key in (one, other)}
        blocks[one][row], blocks[other][place] = blocks[other][place], blocks[one][row]
        changes = {key: with_blocks(sound[key], blocks[key]).sealed() for key in blocks}

        assert_seen_with_keys_alone(forged(sound, changes), (one, row, other, place))


def test_no_section_of_a_tier_can_come_from_another_fragment() -> None:
    """Of fragments of one size, other sections fit as far as anybody without the key can tell."""
    sound = made()
    keys = fragments_of(sound)
    for target, source in permutations(keys, 2):
        for name in ("checksums", "key", "seal"):
            draft, other = Draft.of(sound[target]), Draft.of(sound[source])
            section = draft.section(name)
            section.body, section.claims = other.section(name).body, other.section(name).claims

            assert_seen_with_keys_alone(forged(sound, {target: draft.sealed()}), (target, source, name))


def test_no_wrapped_data_key_of_a_tier_can_be_changed() -> None:
    sound = made()
    for target in fragments_of(sound):
        draft = Draft.of(sound[target])
        section = draft.section("key")
        section.body = with_flipped_bit(section.body, KEY_SECTION.size_bytes * 8 - 1)

        assert_seen_with_keys_alone(forged(sound, {target: draft.sealed()}), target)


def test_no_fragment_of_a_tier_can_take_the_place_of_another() -> None:
    """Its trailer claims the other attempt and the other offsets."""
    sound = made()
    for target, source in permutations(fragments_of(sound), 2):
        own = tail_of(sound[target]).trailer
        claims = {
            name: getattr(own, name)
            for name in ("attempt", "first_offset", "next_offset", "ledger_id", "base_version")
        }
        index = Draft.of(sound[target]).section("index")
        draft = Draft.of(sound[source])
        draft.trailer = replace(
            draft.trailer, first_timestamp_ms=own.first_timestamp_ms, last_timestamp_ms=own.last_timestamp_ms
        )
        draft.section("index").body, draft.section("index").claims = index.body, index.claims

        assert_seen_with_keys_alone(forged(sound, {target: draft.sealed(**claims)}), (target, source))
        assert_seen(sound | {target: sound[source]}, (target, source))


@pytest.mark.parametrize("left", [1, 2])
def test_the_newest_fragment_of_a_tier_cannot_be_cut(left: int) -> None:
    """The last blocks go, and index, counts, offsets and the manifest agree with that."""
    sound = made()
    newest = fragments_of(sound)[-1]
    first = 2 * RECORDS
    chunks = ledger_of(left, first_offset=first, body_size_bytes=BODY_SIZE_BYTES).chunks
    short = fragment_of(chunks, key=data_key(first_offset=first))
    draft = with_blocks(sound[newest], blocks_of(sound[newest])[:left])
    less = tail_of(short).trailer
    for name in ("index", "checksums"):
        section = Draft.of(short).section(name)
        draft.section(name).body, draft.section(name).claims = section.body, section.claims
    names = ("chunk_count", "next_offset", "messages", "last_timestamp_ms", "data_size_bytes")
    draft.trailer = replace(draft.trailer, **{name: getattr(less, name) for name in names})

    assert_seen_with_keys_alone(forged(sound, {newest: draft.sealed()}), left)


def test_no_manifest_can_take_an_encrypted_fragment_for_a_plain_one() -> None:
    """Whoever copies the tier without --encrypt would be allowed to store it in the clear."""
    sound = made()
    [root] = [key for key in sound if key.startswith(KEYS.roots)]
    manifest = decode_root(sound[root], where=root)
    entries = manifest.entries.copy()
    entries["encrypted"] = 0

    assert_seen(sound | {root: encode_root(replace(manifest, entries=entries))}, "every entry")


def rewritten(sound: Objects, **changes: Any) -> Objects:
    """Return the tier with both copies of the key rewritten, and their checksums right."""
    names = [key for key in sound if key.startswith(KEYS.stream_keys)]
    key = KeyObject.decode(sound[names[0]], where=names[0])
    return sound | dict.fromkeys(names, replace(key, **changes).encode())


def test_no_key_object_of_a_tier_can_be_replaced_or_changed() -> None:
    sound = made()
    mine = [key for key in sound if key.startswith(KEYS.stream_keys)]
    theirs = [key for key in sound if key.startswith(StreamKeys("others").stream_keys)]
    foreign = KeyObject.decode(sound[theirs[0]], where=theirs[0])
    own = KeyObject.decode(sound[mine[0]], where=mine[0])

    for key, other in product(mine, theirs):  # one copy alone is healed by the other
        found = asyncio.run(_outcomes(sound | {key: sound[other]}))
        assert found == (False, True, True)
    assert_seen(sound | {key: sound[other] for key, other in zip(mine, theirs, strict=True)}, "both copies")
    assert_seen_with_keys_alone(rewritten(sound, wrapped=foreign.wrapped), "the other stream's key")
    for size in (4, -4):  # of base64: 3 bytes less
        assert_seen_with_keys_alone(rewritten(sound, wrapped=own.wrapped[:size]), "a wrapped key that is cut")
    assert_seen_with_keys_alone(rewritten(sound, label="another"), "another label")


def test_no_fragment_can_be_brought_from_another_stream_with_its_key() -> None:
    """Somebody copies it and the key object, and writes into both that they belong to this stream."""
    sound = made()
    theirs = next(key for key in sound if key.startswith(StreamKeys("others").stream_keys))
    foreign = KeyObject.decode(sound[theirs], where=theirs)
    target, source = fragments_of(sound)[0], fragments_of(sound, "others")[0]
    trailer = tail_of(sound[target]).trailer
    draft = Draft.of(sound[source])
    draft.replace_plain("description", encode_description("orders", {}))
    claims = {name: getattr(trailer, name) for name in ("stream_digest", "incarnation", "attempt")}
    objects = forged(sound, {target: draft.sealed(**claims)})
    key = replace(foreign, stream="orders", incarnation=str(trailer.incarnation))
    names = KEYS.key_objects(trailer.incarnation, UUID(key.uid), key.generation)
    objects |= dict.fromkeys(names, key.encode())

    assert_seen_with_keys_alone(objects, "a fragment of another stream")
