"""A process that gives odd bytes and numbers to the compiled loops, right before a page that nobody may read.

    python guarded_loops.py LIBRARY ROUNDS

A read beyond the bytes ends the process by a signal. Every answer is compared with a plain loop.
"""

from __future__ import annotations

import base64
import ctypes
import json
import math
import mmap
import random
import struct
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np

import offload.ground.loops
from offload.formats.texts import TextForm
from offload.ground.loops import Loops
from offload.model.position import iso_of

CANARY, CANARY_SIZE_BYTES = 0xA5, 1024
MOMENTS = (1_700_000_000_123, -62_135_596_800_000, 253_402_300_799_999, 253_402_300_800_000)
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


class Canaries:
    """NumPy for `offload.ground.loops`, with bytes behind each array of bytes that nobody may write."""

    def __init__(self) -> None:
        self._made = list[np.ndarray[Any, Any]]()

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def empty(self, shape: Any, dtype: Any) -> Any:
        """Return an array as `numpy.empty` does."""
        if dtype is not np.uint8:
            return np.empty(shape, dtype)
        self._made.append(np.full(shape + CANARY_SIZE_BYTES, CANARY, np.uint8))
        return self._made[-1][:shape]

    def check(self) -> None:
        """Check the bytes behind all arrays since the last call."""
        for whole in self._made:
            assert (whole[-CANARY_SIZE_BYTES:] == CANARY).all()
        self._made.clear()


def odd_bytes(draw: random.Random) -> tuple[bytes, int]:
    """Return entries whose lengths are mostly near what fits, and their number."""
    made, entries = b"", draw.randrange(6)
    for _ in range(entries):
        body = draw.randbytes(draw.randrange(9))
        length = len(body) if draw.random() < 0.8 else draw.choice(EDGES)
        made += length.to_bytes(4, "big") + body
    return (made[: len(made) - draw.randrange(4)] if draw.random() < 0.3 else made), entries


def odd(draw: random.Random, near: int) -> int:
    """Return a number about as large as `near`, or a very large one."""
    return draw.randrange(-1, near + 3) if draw.random() < 0.9 else draw.choice(FAR)


def near(draw: random.Random, data: bytes | memoryview, count: int) -> list[int]:
    """Return numbers that are mostly within these bytes."""
    return [odd(draw, len(data) // 2) for _ in range(count)]


def plain_unpack(
    data: bytes, begins: list[int], stops: list[int], counts: list[int]
) -> tuple[list[int], bytes, list[bool]]:
    """Unpack as the compiled loop promises."""
    edges, values, whole = [0], b"", list[bool]()
    for begin, stop, count in zip(begins, stops, counts, strict=True):
        at, bodies = begin, list[bytes]()
        while len(bodies) < count and 0 <= at <= min(stop, len(data)) - 4:
            body = data[at + 4 : at + 4 + int.from_bytes(data[at : at + 4], "big")]
            at += 4 + int.from_bytes(data[at : at + 4], "big")
            if at > min(stop, len(data)) or len(values) + sum(map(len, bodies)) + len(body) > len(data):
                break
            bodies.append(body)
        whole.append(len(bodies) == count and at == stop)
        for body in bodies if whole[-1] else [b""] * count:
            values += body
            edges.append(len(values))
    return edges, values, whole


Step = bytes | tuple[int, bool]


def plain_match(data: bytes, starts: list[int], stops: list[int], steps: list[Step]) -> list[list[int]]:
    """Return the rows that match, each with the places and sizes of its values."""
    found = []
    for row, (at, stop) in enumerate(zip(starts, stops, strict=True)):
        values = [row]
        fits = 0 <= at <= stop <= len(data)
        for step in steps if fits else []:
            if isinstance(step, bytes):
                fits, size = fits and data[at:stop].startswith(step), len(step)
            else:
                width, is_sized = step
                size = int.from_bytes(data[at : at + width], "big") if is_sized else width
                at += width if is_sized else 0
                fits = fits and at + size <= stop
                values += [at, size]
            at += size
        if fits and at == stop:
            found.append(values)
    return found


def plain_text(value: bytes) -> bytes:
    """Return bytes as JSON has them between quotes. Those that are no ASCII stay."""
    return json.dumps(value.decode("latin-1"), ensure_ascii=False)[1:-1].encode("latin-1")


def plain_value(form: TextForm, value: bytes) -> bytes | None:
    """Return the text of a value in this form; None if it has none."""
    match form:
        case TextForm.TEXT:
            return plain_text(value)
        case TextForm.ASCII:
            return plain_text(value) if value.isascii() else None
        case TextForm.RAW:
            return value
        case TextForm.NONE:
            return b""
        case TextForm.UUID:
            return str(UUID(bytes=value)).encode()
        case TextForm.TIME_MS:
            text = iso_of(int.from_bytes(value, "big", signed=True)).encode()
            return None if text.startswith(b"@") else text
        case TextForm.FLOAT:
            number = struct.unpack(">f" if len(value) == 4 else ">d", value)[0]
            return repr(number).encode() if math.isfinite(number) else None
        case TextForm.BINARY:
            return b'{"encoding":"base64","value":"%s"}' % base64.b64encode(value)
    return str(int.from_bytes(value, "big", signed=form is TextForm.SIGNED)).encode()


def is_utf8(value: bytes) -> bool:
    """Return True if Python decodes the value."""
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


Row = tuple[int, bytes, bool, list[bytes]]
"""A row that was found: its number, its text, if it has text that is no ASCII, and the text of each value."""


def plain_transcript(
    data: bytes,
    starts: list[int],
    stops: list[int],
    steps: list[Step],
    forms: list[TextForm],
    texts: list[bytes],
) -> list[Row]:
    """Write rows as the compiled loop promises."""
    rows = list[Row]()
    for row, *numbers in plain_match(data, starts, stops, steps):
        raw = [data[at : at + size] for at, size in zip(numbers[::2], numbers[1::2], strict=True)]
        written = [plain_value(form, value) for form, value in zip(forms, raw, strict=True)]
        values = [value for value in written if value is not None]
        if len(values) < len(forms):
            continue
        text = texts[0] + b"".join(each for pair in zip(values, texts[1:], strict=True) for each in pair)
        beyond = any(
            form is TextForm.TEXT and not value.isascii() for form, value in zip(forms, raw, strict=True)
        )
        parts = zip(forms, raw, values, strict=True)
        shown = [(form, value, text) for form, value, text in parts if form is not TextForm.NONE]
        own = [value if form in (TextForm.TEXT, TextForm.ASCII) else text for form, value, text in shown]
        rows.append((row, text, beyond, own))
    return rows


def check_transcribe(loops: Loops, draw: random.Random, view: memoryview, told: object) -> None:
    """Write rows of values that mostly fit, and mostly end where the data does."""
    steps, forms, content = list[Step](), list[TextForm](), b""
    alphabet = draw.choice([b"\x01", b'\\"\x1f\x00\n azZ09\x7f'])
    for _ in range(draw.randrange(5)):
        form = draw.choice([None, *TextForm][:-2])
        if form is None:
            literal = draw.randbytes(draw.randrange(1, 30))
            steps.append(literal)
            at = draw.randrange(len(literal)) if draw.random() < 0.2 else len(literal)
            content += literal[:at] + b"?" * (at < len(literal)) + literal[at + 1 :]
            continue
        forms.append(form)
        if form in (TextForm.TEXT, TextForm.ASCII) or (form > TextForm.UUID and draw.random() < 0.5):
            value = bytes(draw.choice(alphabet) for _ in range(draw.randrange(30)))
            value += b"\xc3\xa9" if draw.random() < 0.2 else b""
            width, length = draw.choice([1, 4]), len(value) if draw.random() < 0.9 else draw.randrange(256)
            content += length.to_bytes(width, "big") + value
            steps.append((width, True))
            continue
        width = {TextForm.UUID: 16, TextForm.TIME_MS: 8}.get(form, draw.choice([1, 2, 4, 8]))
        steps.append((width, False))
        content += (
            draw.choice([*MOMENTS, draw.randrange(-(2**63), 2**63)])
            .to_bytes(8, "big", signed=True)[-width:]
            .rjust(width, b"\xff")
        )
    content = content[-len(view) :] if content else b""
    view[len(view) - len(content) :] = content
    texts = [draw.randbytes(draw.randrange(20)) for _ in range(len(forms) + 1)]
    first, size = len(view) - len(content), len(view)
    rows = draw.randrange(9)
    starts = [first if draw.random() < 0.7 else odd(draw, size) for _ in range(rows)]
    stops = [size if draw.random() < 0.8 else odd(draw, size) for _ in range(rows)]
    octets = np.frombuffer(view, np.uint8)
    found = loops.transcribe(octets, np.array(starts), np.array(stops), steps, forms, texts)
    expected = plain_transcript(bytes(view), starts, stops, steps, forms, texts)
    got = list[Row]()
    for at, row in enumerate(found.rows.tolist()):
        shown = [form for form in forms if form is not TextForm.NONE]
        sources = [octets if form in (TextForm.TEXT, TextForm.ASCII) else found.texts for form in shown]
        own = [
            source[places[at] : places[at] + sizes[at]].tobytes()
            for source, places, sizes in zip(sources, found.places, found.sizes, strict=True)
        ]
        text = found.texts[found.edges[at] : found.edges[at + 1]].tobytes()
        got.append((row, text, bool(found.beyond[at]), own))
    assert got == expected, (told, starts, stops, steps, forms, texts)


def check_match(loops: Loops, draw: random.Random, data: bytes, view: memoryview, told: object) -> None:
    """Match rows that mostly begin and end as the data does, by steps that mostly fit it."""
    steps, at = list[Step](), 0
    while at < len(data) and len(steps) < 5:
        size = draw.randrange(1, 4)
        kind = draw.randrange(4)
        if (kind == 0 and at + 4 <= len(data)) or kind == 1:
            width = 4 if kind == 0 else 1
            steps.append((width, True))
            at += width + int.from_bytes(data[at : at + width], "big")
        else:
            steps.append(data[at : at + size] if kind == 2 else (size, False))
            at += size
    rows = draw.randrange(1, 4)
    starts = [0 if draw.random() < 0.6 else odd(draw, len(data)) for _ in range(rows)]
    stops = [at if draw.random() < 0.6 else odd(draw, len(data)) for _ in range(rows)]
    octets = np.frombuffer(view, np.uint8)
    matched, places, sizes = loops.match(octets, np.array(starts), np.array(stops), steps)
    columns = [matched, *(column for pair in zip(places, sizes, strict=True) for column in pair)]
    got = [list(row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    assert got == plain_match(data, starts, stops, steps), (told, starts, stops, steps)


EDGES_OF_UTF8 = [
    *(chr(point).encode() for point in (0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF)),
    *(
        bytes.fromhex(text)
        for text in ("80", "c0af", "c1bf", "e09fbf", "eda080", "f08fbfbf", "f4908080", "f5")
    ),
    b"plain text",
]
"""Characters at both ends of each length, and the bytes beside them that are no characters."""


def check_quote(loops: Loops, draw: random.Random, view: memoryview, told: object) -> None:
    """Quote values of bytes that JSON escapes, and of characters whole and cut, up to the end of the data."""
    alphabet = draw.choice([[b"\x01"], [bytes([byte]) for byte in b'\\"\x1f\x00\n abc\xc3'], EDGES_OF_UTF8])
    data = b"".join(draw.choice(alphabet) for _ in range(draw.randrange(40)))
    view[len(view) - len(data) :] = data
    view = view[len(view) - len(data) :]
    rows = draw.randrange(9)
    starts, sizes = near(draw, data, rows), near(draw, data, rows)
    is_within = all(a >= 0 and b >= 0 and a + b <= len(data) for a, b in zip(starts, sizes, strict=True))
    try:
        edges, out, is_broken = loops.quote(np.frombuffer(view, np.uint8), np.array(starts), np.array(sizes))
    except ValueError:
        assert not is_within, told
        return
    assert is_within, told
    for row, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        value = data[start : start + size]
        assert is_broken[row] == (not is_utf8(value)), told
        quoted = b"" if is_broken[row] else b'"' + plain_text(value) + b'"'
        assert out[edges[row] : edges[row + 1]].tobytes() == quoted, told


Part = tuple[list[int], list[int]] | None


def plain_join(sources: list[bytes], parts: list[Part], places: list[int], room: int) -> bytes | None:
    """Return what is written over zeros, or None where the compiled loop refuses."""
    out = bytearray(room)
    for row, at in enumerate(places):
        for source, part in zip(sources, parts, strict=True):
            start, size = (0, len(source)) if part is None else (part[0][row], part[1][row])
            if min(size, at, start) < 0 or start + size > len(source) or at + size > room:
                return None
            out[at : at + size] = source[start : start + size]
            at += size
    return bytes(out)


def main() -> None:
    """Run so many rounds."""
    loops, rounds = Loops(Path(sys.argv[1])), int(sys.argv[2])
    memory, page = guarded()
    canaries = offload.ground.loops.np = Canaries()  # type: ignore[assignment]  # in the place of a module
    for seed in range(rounds):
        draw = random.Random(seed)
        data, entries = odd_bytes(draw)
        memory[page - len(data) : page] = data
        view = memoryview(memory)[page - len(data) : page]
        chunks = draw.randrange(1, 4)
        begins = [odd(draw, len(data)) for _ in range(chunks)]
        counts = [draw.randrange(5) for _ in range(chunks)]
        stops = [odd(draw, len(data)) for _ in range(chunks)]
        if draw.random() < 0.5 and data:  # as the chunks of a run lie
            inner = sorted(draw.randrange(len(data) + 1) for _ in range(chunks - 1))
            begins, stops = [0, *inner], [*inner, len(data)]
        if draw.random() < 0.5:  # entries that end there, mostly
            begins, stops, counts = [0] * chunks, [len(data)] * chunks, [entries] * chunks
        found = loops.unpack(view, *(np.array(each, np.int64) for each in (begins, stops, counts)))
        got = found[0].tolist(), found[1].tobytes(), found[2].tolist()
        assert got == plain_unpack(data, begins, stops, counts), (seed, data, begins, stops, counts)

        check_match(loops, draw, data, view, (seed, data))
        canaries.check()
        check_quote(loops, draw, memoryview(memory)[:page], seed)
        check_transcribe(loops, draw, memoryview(memory)[:page], seed)
        canaries.check()
        rows, room = draw.randrange(4), draw.randrange(20)
        sources = [view, *[draw.randbytes(draw.randrange(4)) for _ in range(draw.randrange(3))]]
        parts = [
            None if draw.random() < 0.3 else ([near(draw, source, rows), near(draw, source, rows)])
            for source in sources
        ]
        places, out = [odd(draw, room // 2) for _ in range(rows)], np.zeros(room + 8, np.uint8)
        pieces = [
            (source, part and (np.array(part[0], np.int64), np.array(part[1], np.int64)))
            for source, part in zip(sources, parts, strict=True)
        ]
        expected = plain_join([bytes(source) for source in sources], parts, places, room)
        try:
            loops.join(pieces, np.array(places, np.int64), out[:room])
        except ValueError:
            assert expected is None, (seed, sources, parts, places)
        else:
            assert out[:room].tobytes() == expected, (seed, sources, parts, places)
        assert not out[room:].any(), (seed, sources, parts, places)
    print(f"{rounds} rounds")


if __name__ == "__main__":
    main()
