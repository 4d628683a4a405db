"""A process that gives odd bytes and numbers to the compiled loops, right before a page that nobody may read.

    python guarded_loops.py LIBRARY ROUNDS

A read beyond the bytes ends the process by a signal. Every answer is compared with a plain loop.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import sys
from pathlib import Path

import numpy as np

from offload.loops import Loops

EDGES = (0, 1, 2, 3, 4, 5, 8, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
FAR = (-(2**63), -(2**40), -5, -1, 2**31, 2**40, 2**63 - 1)


def guarded() -> tuple[mmap.mmap, int]:
    """Return memory of two pages whose second page nobody may read, and the size of the first."""
    size = mmap.PAGESIZE
    memory = mmap.mmap(-1, 2 * size)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    library = ctypes.CDLL(None, use_errno=True)
    assert library.mprotect(ctypes.c_void_p(begin + size), ctypes.c_size_t(size), 0) == 0
    return memory, size


def odd_bytes(draw: random.Random) -> bytes:
    """Return entries whose lengths are mostly near what fits."""
    made = b""
    for _ in range(draw.randrange(6)):
        body = draw.randbytes(draw.randrange(9))
        length = len(body) if draw.random() < 0.8 else draw.choice(EDGES)
        made += length.to_bytes(4, "big") + body
    return made[: len(made) - draw.randrange(4)] if draw.random() < 0.3 else made


def odd(draw: random.Random, near: int) -> int:
    """Return a number about as large as `near`, or a very large one."""
    return draw.randrange(-1, near + 3) if draw.random() < 0.9 else draw.choice(FAR)


def plain_walk(data: bytes, begins: list[int], counts: list[int]) -> tuple[list[int], list[int], list[int]]:
    """Walk as the compiled loop promises."""
    starts, sizes, ends = list[int](), list[int](), list[int]()
    for begin, count in zip(begins, counts, strict=True):
        at, walked = begin, 0
        while walked < count and 0 <= at <= len(data) - 4:
            size = int.from_bytes(data[at : at + 4], "big")
            starts.append(at + 4)
            sizes.append(size)
            at, walked = at + 4 + size, walked + 1
        starts += [0] * (count - walked)
        sizes += [0] * (count - walked)
        ends.append(at if walked == count else -1)
    return starts, sizes, ends


def plain_gather(data: bytes, starts: list[int], sizes: list[int]) -> tuple[list[int], bytes] | None:
    """Return the offsets and the values, or None where the compiled loop refuses."""
    offsets, values = [0], b""
    for start, size in zip(starts, sizes, strict=True):
        if size < 0 or start < 0 or start + size > len(data):
            return None
        values += data[start : start + size]
        offsets.append(len(values))
    return offsets, values


def main() -> None:
    """Run so many rounds."""
    loops, rounds = Loops(Path(sys.argv[1])), int(sys.argv[2])
    memory, page = guarded()
    for seed in range(rounds):
        draw = random.Random(seed)
        data = odd_bytes(draw)
        memory[page - len(data) : page] = data
        view = memoryview(memory)[page - len(data) : page]
        chunks = draw.randrange(1, 4)
        begins = [odd(draw, len(data)) for _ in range(chunks)]
        counts = [draw.randrange(5) for _ in range(chunks)]
        walked = loops.walk(view, np.array(begins, np.int64), np.array(counts, np.int64))
        expected = plain_walk(data, begins, counts)
        assert tuple(column.tolist() for column in walked) == expected, (seed, data, begins, counts)

        rows = draw.randrange(4)
        starts, sizes = ([odd(draw, len(data)) for _ in range(rows)] for _ in range(2))
        try:
            found = loops.gather(view, np.array(starts, np.int64), np.array(sizes, np.int64))
        except ValueError:
            assert plain_gather(data, starts, sizes) is None, (seed, data, starts, sizes)
        else:
            got = found[0].tolist(), found[1].tobytes()
            assert got == plain_gather(data, starts, sizes), (seed, data, starts, sizes)
        del view
    print(f"{rounds} rounds")


if __name__ == "__main__":
    main()
