"""AMQP messages of every section and type, drawn from a seed, for readers that must agree on any bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from random import Random

from amqp_messages import compound, sized

SYMBOLS = (
    b"amqp:header:list", b"amqp:delivery-annotations:map", b"amqp:message-annotations:map",
    b"amqp:properties:list", b"amqp:application-properties:map", b"amqp:data:binary",
    b"amqp:amqp-sequence:list", b"amqp:amqp-value:*", b"amqp:footer:map",
)  # fmt: skip
HEADER, DELIVERY, ANNOTATIONS, PROPERTIES, APPLICATION, DATA, SEQUENCE, VALUE, FOOTER = range(0x70, 0x79)
LISTS = (HEADER, PROPERTIES, SEQUENCE)

WIDTHS = (
    dict.fromkeys(range(0x40, 0x46), 0)
    | dict.fromkeys(range(0x50, 0x57), 1)
    | {0x60: 2, 0x61: 2, 0x94: 16, 0x98: 16}
    | dict.fromkeys(range(0x70, 0x75), 4)
    | dict.fromkeys(range(0x80, 0x85), 8)
)
"""The constructors of fixed width."""

TEXTS = (
    "", "a", "x-routing-key", "1", "1.0", "true", "null", "é", "€ \U0001f600", "it's", "ff" * 150,
    "quoted \"'\\", "\n\r\t\f\b\x00\x7f", "\u200b\u2028\xa0\xad", "AA==", "{'descriptor': 1, 'value': 2}",
)  # fmt: skip
FLOATS = (
    0.0, -0.0, 1.0, 2.0, 0.1, 0.3, 2.5, 1e16, 1e15, 123456789012345680.0, 1e-5, 1e-4, 2.0**-44, 2.0**63,
    5e-324, 1e22, 1e23, 1.7976931348623157e308, float("inf"), float("-inf"), float("nan"), 9007199254740993.0,
)  # fmt: skip
TIMES = (
    0, 1, 2, -1, 1_700_000_000_123, 2**63 - 1, -(2**63),
    -62_135_596_800_000, -62_135_596_800_001, 253_402_300_799_999, 253_402_300_800_000,
)  # fmt: skip

SAME_TEXTS = (
    (b"\xa1\0011", b"\x54\1"),
    (b"\xa1\x031.5", b"\x72" + struct.pack(">f", 1.5)),
    (b"\xa3\4true", b"\x41"),
    (b"\xa1\4null", b"\x40"),
    (b"\xa1\4AA==", b"\xa0\1\0"),
    (b"\0\x41\x54\1", sized(0xA1, b"{'descriptor': True, 'value': 1}")),
    (b"\x54\1", b"\x82" + struct.pack(">d", 1)),  # the only keys here that are equal
)
"""Keys that are different, and that have the same text in JSON."""


class Fuzz:
    """A source of encoded values and messages. The same seed gives the same bytes."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def is_flawed(self) -> bool:
        """Return True now and then, if a value should be one that its type forbids."""
        return self.random.random() < 0.003

    def scalar(self) -> bytes:
        pick = self.random
        kind = pick.random()
        if kind < 0.35:
            text = pick.choice(TEXTS)
            return sized(0xA3 if text.isascii() and kind < 0.15 else 0xA1, text.encode())
        if kind < 0.42:
            return sized(
                pick.choice((0xA1, 0xA3)) if self.is_flawed() else 0xA0, pick.randbytes(pick.randrange(5))
            )
        if kind < 0.47:
            text = pick.choice(TEXTS)
            code = 0xB3 if text.isascii() and kind < 0.43 else pick.choice((0xB0, 0xB1))
            return bytes((code,)) + struct.pack(">I", len(text.encode())) + text.encode()
        if kind < 0.6:
            number = pick.choice(FLOATS)
            if pick.random() < 0.5:
                number = struct.unpack(">d", pick.randbytes(8))[0]
            code = pick.choice((0x72, 0x82))
            try:
                return bytes((code,)) + struct.pack(">f" if code == 0x72 else ">d", number)
            except OverflowError:
                return b"\x72\x7f\x7f\xff\xff"
        if kind < 0.66:
            return b"\x83" + struct.pack(">q", pick.choice(TIMES))
        if kind < 0.7:
            return b"\x73" + struct.pack(
                ">I", pick.choice((0xD800, 0x110000) if self.is_flawed() else (0x31, 0x61, 0xE9, 0x1F600))
            )
        if kind < 0.78:  # decimals of small numbers, and of any bits
            code, width, bias = pick.choice(((0x74, 4, 101), (0x84, 8, 398), (0x94, 16, 6176)))
            bits = {4: 23, 8: 53, 16: 113}[width]
            exponent = pick.randrange(-9, 9) + bias
            number = (
                pick.choice((0, 1, 2, 10, 123456)) | exponent << bits | pick.getrandbits(1) << 8 * width - 1
            )
            if pick.random() < 0.4:
                number = pick.getrandbits(8 * width) | (pick.choice((0, 0xF, 3, 0xE)) << 8 * width - 5)
            return bytes((code,)) + (number % (1 << 8 * width)).to_bytes(width, "big")
        code = pick.choice((*WIDTHS, 0x40, 0x41, 0x43, 0x53, 0x54))
        if pick.random() < 0.6:  # small numbers, so that keys are equal now and then
            return (
                bytes((code,)) + pick.choice((0, 1, 1, 2)).to_bytes(WIDTHS[code], "big")
                if WIDTHS[code]
                else bytes((code,))
            )
        if code in (0x56, 0x73) and not self.is_flawed():
            return b"\x42"
        return bytes((code,)) + pick.randbytes(WIDTHS[code])

    def key(self, number: int) -> bytes:
        """Return a key of a map that is most often another than those of other numbers."""
        pick = self.random
        if pick.random() < 0.1:
            return self.scalar()
        if pick.random() < 0.1:
            return b"\0" + self.scalar() + self.key(number)
        if pick.random() < 0.5:
            return sized(pick.choice((0xA1, 0xA3)), b"key%d" % number)
        return b"\x54" + bytes((10 + number,))

    def value(self, depth: int = 0) -> bytes:
        pick = self.random
        kind = pick.random()
        if depth > 3 or kind < 0.55:
            return self.scalar()
        if kind < 0.62:
            return b"\0" + self.value(depth + 2) + self.value(depth + 1)
        if kind < 0.72:
            return self.list(depth)
        if kind < 0.85:
            return self.map(depth)
        return self.array(depth)

    def list(self, depth: int = 0, most: int = 4) -> bytes:
        if self.random.random() < 0.1:
            return b"\x45"
        return self.compound(0xC0, [self.value(depth + 1) for _ in range(self.random.randrange(most + 1))])

    def map(self, depth: int = 0) -> bytes:
        pick, items = self.random, list[bytes]()
        for number in range(pick.choice((0, 1, 2, 3, 4, 4, 20 if depth < 2 else 2))):
            key = self.value(3) if self.is_flawed() else self.key(number)
            items += [key, self.value(depth + 2)]
        if pick.random() < 0.06:
            for key in pick.choice(SAME_TEXTS):
                items += [key, self.scalar()]
        if self.is_flawed():
            items.append(self.scalar())
        return self.compound(0xC1, items)

    def array(self, depth: int = 0) -> bytes:
        pick = self.random
        head = b"".join(
            b"\0" + (b"\x45" if self.is_flawed() else self.scalar())
            for _ in range(pick.choice((0, 0, 0, 1, 2)))
        )
        count = pick.choice((0, 1, 2, 5, 6))
        if pick.random() < 0.3:
            texts = [pick.choice(TEXTS).encode() for _ in range(count)]
            elements = b"\xb1" + b"".join(struct.pack(">I", len(text)) + text for text in texts)
        elif pick.random() < 0.2:
            elements = b"\xd0" + b"".join(struct.pack(">II", 5, 1) + b"\x41" for _ in range(count))
        else:
            code = pick.choice((*WIDTHS, 0xFF if count < 2 else 0x44))
            some = b"\0\1" * 20 if code in (0x56, 0x73) and not self.is_flawed() else pick.randbytes(96)
            elements = bytes((code,)) + some[: WIDTHS.get(code, 1) * count]
        if pick.random() < 0.5:
            body = bytes((count,)) + head + elements
            if len(body) < 256:
                return bytes((0xE0, len(body))) + body
        return b"\xf0" + struct.pack(">II", len(head + elements) + 4, count) + head + elements

    def compound(self, code: int, items: list[bytes]) -> bytes:
        if self.random.random() < 0.2:
            body = b"".join(items)
            return bytes((code + 0x10,)) + struct.pack(">II", len(body) + 4, len(items)) + body
        return compound(code, items)

    def descriptor(self, section: int) -> bytes:
        pick = self.random.random()
        if pick < 0.94:
            return bytes((0, 0x53, section))
        if pick < 0.97:
            return b"\0" + sized(0xA1 if self.is_flawed() else 0xA3, SYMBOLS[section - HEADER])
        code = self.random.choice(
            (0x50, 0x52, 0x54, 0x60, 0x71, 0x80, 0x83, 0x82 if self.is_flawed() else 0x80)
        )
        return bytes((0, code)) + section.to_bytes(WIDTHS[code], "big")

    def section(self, section: int) -> bytes:
        pick = self.random
        head = self.descriptor(section)
        if self.is_flawed():
            return head + self.value()
        if section == DATA:
            return head + sized(0xA0, pick.choice((b"", b"body", b"x" * 300, pick.randbytes(9))))
        if section == VALUE:
            return head + self.value()
        if section in LISTS:
            if pick.random() < 0.1:
                return head + self.array()
            most = {PROPERTIES: 13, HEADER: 5}.get(section, 4) + self.is_flawed()
            return head + self.list(1, most=most)
        if section == ANNOTATIONS and pick.random() < 0.5:
            key = sized(0xA3, b"x-routing-key") + pick.choice(
                (self.value(1), sized(0xA1, b"orders"), b"\x40")
            )
            others = (
                [sized(0xA3, b"x-exchange"), sized(0xA1, b"")]
                if pick.random() < 0.5
                else [self.key(0), self.scalar()]
            )
            if pick.random() < 0.1:
                others += [part for each in pick.choice(SAME_TEXTS) for part in (each, b"\x40")]
            return head + self.compound(0xC1, [*others, key[:15], key[15:]])
        return head + self.map(1)

    def message(self) -> bytes:
        """Return a message: most have a body and one or a few other sections, in their order."""
        pick = self.random
        body = pick.choice(
            (
                [DATA],
                [DATA],
                [VALUE],
                [VALUE],
                [],
                [DATA, DATA],
                [SEQUENCE],
                [SEQUENCE] * 2,
                [VALUE] * (1 + self.is_flawed()),
                [DATA],
            )
        )
        others = [
            each
            for each in (HEADER, DELIVERY, ANNOTATIONS, PROPERTIES, APPLICATION, FOOTER)
            if pick.random() < 0.35
        ]
        sections = sorted([*others, *body])
        if pick.random() < 0.1:
            pick.shuffle(sections)
        if self.is_flawed():
            sections += sections[:1]
        return b"".join(map(self.section, sections))

    def damaged(self, message: bytes) -> Iterator[bytes]:
        """Yield the message with each byte changed, and cut before each."""
        for at in range(len(message)):
            other = self.random.choice((message[at] ^ 1 << at % 8, self.random.randrange(256), 0xFF, 0))
            yield message[:at] + bytes((other,)) + message[at + 1 :]
            yield message[:at]
