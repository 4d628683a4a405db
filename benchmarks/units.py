"""The unit of compression: one chunk, one chunk with a dictionary, or a block of chunks (docs/adr/0022).

    python benchmarks/units.py [FOLDER-OF-A-STREAM ...]

Without a folder, it measures made streams of JSON orders, whose chunks have 0.3, 1.4 and 29 KiB: the medians
of a slow, a batching and a fast RabbitMQ stream. For each unit it prints how many times smaller the data
becomes (with 24 bytes of index for each unit, and the dictionary), the CPU seconds per GiB of plain data to
compress and to decompress, and the bytes that a reader fetches for one message: the unit that holds it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import zstandard

from offload.formats.chunk_writer import build_chunk
from offload.opening.by_url import open_source
from offload.opening.plugins import Plugins

MIB: Final = 2**20
GIB: Final = 2**30
UNIT_INDEX_SIZE_BYTES: Final = 24
DICTIONARY_SIZE_BYTES: Final = 64 * 1024
SAMPLE_SIZE_BYTES: Final = 8 * MIB
"""The bytes from which a dictionary is trained: a hundred times its size, as zstd's manual advises."""

PLACES: Final = ("Berlin", "Lyon", "Porto", "Turin", "Gent")
GOODS: Final = ("lamp", "chair", "table", "shelf", "sofa")

CHUNKS: Final = {"slow": 1, "batching": 6, "fast": 130}
"""The number of messages in a chunk of each made stream."""


def order(draw: random.Random) -> bytes:
    """Return one JSON order: identifiers, names and prices, as a shop's events have them."""
    lines = [
        {"item": draw.choice(GOODS), "count": draw.randrange(1, 9), "cents": draw.randrange(10**5)}
        for _ in range(draw.randrange(1, 3))
    ]
    return json.dumps(
        {
            "order": f"{draw.getrandbits(128):032x}",
            "customer": draw.randrange(200_000),
            "at": f"2026-11-23T{draw.randrange(24):02}:{draw.randrange(60):02}:00Z",
            "city": draw.choice(PLACES),
            "lines": lines,
            "state": "placed",
        }
    ).encode()


def orders(messages: int, size_bytes: int) -> Iterator[bytes]:
    """Yield chunks of so many orders."""
    draw, written, offset = random.Random(7), 0, 0
    while written < size_bytes:
        bodies = [order(draw) for _ in range(messages)]
        chunk = build_chunk(bodies, offset=offset, timestamp_ms=offset, epoch=1)
        yield chunk
        written, offset = written + len(chunk), offset + messages


async def chunks_of(path: Path) -> list[bytes]:
    """Return the chunks of the one stream in a folder of RabbitMQ."""
    source = open_source(f"rabbitmq://{path.parent}", plugins=Plugins.find())
    found: list[bytes] = []
    async with await (await source.stream(path.name)).snapshot() as snapshot:
        for ledger in snapshot.ledgers:
            table = await ledger.table()
            found += [await ledger.read(table[n : n + 1]) for n in range(len(table))]
    return found


def units_of(chunks: Sequence[bytes], size_bytes: int) -> list[bytes]:
    """Return runs of chunks of about `size_bytes`; with 0, each chunk."""
    units, held, size = [], list[bytes](), 0
    for chunk in chunks:
        if held and size + len(chunk) > size_bytes:
            units.append(b"".join(held))
            held, size = [], 0
        held.append(chunk)
        size += len(chunk)
    return [*units, b"".join(held)]


def measured(units: Sequence[bytes], *, level: int, is_trained: bool) -> dict[str, float]:
    """Compress and decompress the units. CPU times are the least of three."""
    began = time.process_time()
    dictionary = _trained(units) if is_trained else None
    training = time.process_time() - began
    packer = zstandard.ZstdCompressor(level=level, dict_data=dictionary, write_content_size=True)
    opener = zstandard.ZstdDecompressor(dict_data=dictionary)
    packed = [packer.compress(unit) for unit in units]
    kept = [min(one, other, key=len) for one, other in zip(packed, units, strict=True)]
    plain = sum(map(len, units))
    stored = sum(map(len, kept)) + len(kept) * UNIT_INDEX_SIZE_BYTES
    stored += len(dictionary.as_bytes()) if dictionary else 0
    return {
        "ratio": plain / stored,
        "compress": (training + _least(lambda: [packer.compress(unit) for unit in units])) * GIB / plain,
        "decompress": _least(lambda: [opener.decompress(each) for each in packed]) * GIB / plain,
        # A message is in a unit in proportion to the unit's plain bytes.
        "fetched": sum(len(one) * len(other) for one, other in zip(kept, units, strict=True)) / plain,
    }


def _trained(units: Sequence[bytes]) -> zstandard.ZstdCompressionDict | None:
    every = max(1, sum(map(len, units)) // SAMPLE_SIZE_BYTES)
    try:
        return zstandard.train_dictionary(DICTIONARY_SIZE_BYTES, list(units[::every]))
    except zstandard.ZstdError:  # too few samples
        return None


def _least(call: Callable[[], object]) -> float:
    found = []
    for _ in range(3):
        began = time.process_time()
        call()
        found.append(time.process_time() - began)
    return min(found)


def main() -> None:
    """Measure each stream, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*")
    parser.add_argument("--level", type=int, default=3)
    parser.add_argument("--size-mib", type=int, default=32, help="of a made stream")
    given = parser.parse_args()
    streams = {folder: asyncio.run(chunks_of(Path(folder).resolve())) for folder in given.folders} or {
        name: list(orders(count, given.size_mib * MIB)) for name, count in CHUNKS.items()
    }
    print(f"zstd {given.level}; CPU seconds per GiB of plain data")
    print(
        f"{'stream':28} {'unit':20} {'units':>8} {'ratio':>7} {'compress':>9} {'decompress':>11}  one message"
    )
    for name, chunks in streams.items():
        kinds = [("chunk", 0, False), ("chunk, dictionary", 0, True)]
        kinds += [(f"block of {size} KiB", size * 1024, False) for size in (16, 64, 256, 1024)]
        for kind, size, is_trained in kinds:
            units = units_of(chunks, size)
            row = measured(units, level=given.level, is_trained=is_trained)
            print(
                f"{Path(name).name:28} {kind:20} {len(units):8,} {row['ratio']:7.2f} {row['compress']:9.2f}"
                f" {row['decompress']:11.2f} {row['fetched'] / 1024:8.1f} KiB"
            )


if __name__ == "__main__":
    main()
