"""Tests of the lines that `offload read` prints: a block of them is its messages, one by one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from amqp_messages import records
from hypothesis import given
from hypothesis import strategies as st
from offload_rabbitmq.decoder import AmqpDecoder

from offload.cli.kit.reading import so_far
from offload.contracts.decoder import Decoded, Decoder
from offload.formats.records import RecordRun
from offload.model.position import iso_of
from offload.model.record_columns import RecordBytes
from offload.model.value_text import value_text
from offload.read.batches import PartRun
from offload.showing import message_output
from offload.showing.lines import Format, message_lines, renderer


def run_of(bodies: Sequence[bytes], *, offset: int = 0, timestamp_ms: int = 0) -> RecordRun:
    found = RecordBytes.of(bodies)
    offsets = np.arange(len(bodies), dtype=np.uint64) + np.uint64(offset)
    times = timestamp_ms + np.arange(len(bodies), dtype=np.int64) // 3
    return RecordRun(offsets, times, found.starts, found.sizes, found.data.tobytes())


def printed(how: Format, decoder: Decoder | None, run: RecordRun, part: int) -> bytes:
    return renderer(how, decoder)(PartRun(part, run)).tobytes()


def one_by_one(how: Format, decoder: Decoder | None, run: RecordRun, bodies: list[bytes], part: int) -> bytes:
    if how is Format.RAW:
        return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    if how is Format.BODY:
        shown = bodies if decoder is None else [decoder.bodies([body])[0] for body in bodies]
        return b"".join(body + b"\n" for body in shown)
    lines = []
    for number, body in enumerate(bodies):
        value, sections = (body, {}) if decoder is None else decoder.decode([body])[0]
        tail = "".join(f',"{name}":{json.dumps(of, separators=(",", ":"))}' for name, of in sections.items())
        middle = f',"part":{part}' if part > 1 else ""
        time = iso_of(int(run.timestamps_ms[number]))
        lines.append(
            f'{{"offset":{run.offsets[number]}{middle},"timestamp":"{time}","value":{value_text(value)}{tail}}}\n'
        )
    return "".join(lines).encode()


REAL = records("tiny") + records("batches")[:50]
BODIES = st.lists(st.binary(max_size=9) | st.sampled_from(REAL), min_size=1, max_size=9)


@pytest.mark.parametrize("how", [*Format])
@pytest.mark.parametrize("decoder", [None, AmqpDecoder()], ids=["raw", "amqp"])
@given(
    bodies=BODIES,
    part=st.integers(1, 3),
    offset=st.integers(0, 2**63),
    timestamp_ms=st.integers(-(10**15), 10**15),
)
def test_a_block_is_its_messages_one_by_one(
    how: Format, decoder: Decoder | None, bodies: list[bytes], part: int, offset: int, timestamp_ms: int
) -> None:
    run = run_of(bodies, offset=offset, timestamp_ms=timestamp_ms)

    assert printed(how, decoder, run, part) == one_by_one(how, decoder, run, bodies, part)


class Plain(Decoder):
    """A decoder of somebody else, with the methods that it must have."""

    def bodies(self, records: Sequence[bytes]) -> list[bytes]:
        return [record.upper() for record in records]

    def decode(self, records: Sequence[bytes]) -> list[Decoded]:
        return [Decoded({"text": record.decode()}, {"size": len(record)}) for record in records]


class Several(Plain):
    """A decoder of records that are lists of messages."""

    holds_several = True

    def messages(self, records: Sequence[bytes]) -> Any:
        for number, record in enumerate(records):
            for at, value in enumerate(record.split(b",")):
                yield number, Decoded(value or None, {"index": at})


def test_a_decoder_without_columns_is_printed_too() -> None:
    run = run_of([b"a", b"bc"], offset=7)

    assert printed(Format.BODY, Plain(), run, 1) == b"A\nBC\n"
    assert printed(Format.JSONL, Plain(), run, 1) == (
        b'{"offset":7,"timestamp":"1970-01-01T00:00:00.000Z","value":{"text":"a"},"size":1}\n'
        b'{"offset":8,"timestamp":"1970-01-01T00:00:00.000Z","value":{"text":"bc"},"size":2}\n'
    )
    assert message_lines(Format.JSONL, Plain()) is None


def test_messages_of_one_record_have_its_offset() -> None:
    run = PartRun(2, run_of([b"a,", b"b"], offset=7))
    lines, bodies = message_lines(Format.JSONL, Several()), message_lines(Format.BODY, Several())

    assert lines is not None
    assert bodies is not None
    start = '{"offset":%d,"part":2,"timestamp":"1970-01-01T00:00:00.000Z","value":'
    assert [line.decode() for line in lines(run)] == [
        start % 7 + '"a","index":0}\n',
        start % 7 + 'null,"index":1}\n',
        start % 8 + '"b","index":0}\n',
    ]
    assert b"".join(bodies(run)) == b"a\n\nb\n"


@pytest.mark.parametrize("most", [None, 0, 1, 11, 60])
def test_output_is_written_in_large_blocks(most: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the sizes of runs are, and whichever part they are of, all lines come once and in order."""
    monkeypatch.setattr(message_output, "PRINTED_ROWS_MAX", 10)
    monkeypatch.setattr(message_output, "PRINTED_SIZE_BYTES_MAX", 40)
    written = list[bytes]()
    output = message_output.MessageOutput(Format.BODY, None, write=lambda data: written.append(bytes(data)))
    bodies = [[b"%d" % number for number in range(first, first + 25)] for first in (0, 25)]
    bodies.append([b"x" * 100, b"", b"y"])
    runs = [PartRun(1 + number, run_of(each)) for number, each in enumerate(bodies)]

    counts, left = list[int](), most
    for each in runs:
        counts.append(output.write(each, left))
        left = None if left is None else left - counts[-1]
    output.flush()

    flat = [body for each in bodies for body in each][:most]
    assert b"".join(written) == b"".join(body + b"\n" for body in flat)
    assert sum(counts) == len(flat)
    assert all(len(piece) <= 101 and piece.count(b"\n") <= 10 for piece in written)
    assert len(written) < len(flat) or len(flat) < 3


def test_an_interrupted_read_is_resumed_behind_what_was_written() -> None:
    output = message_output.MessageOutput(Format.BODY, None, write=lambda data: None)

    output.write(PartRun(1, run_of([b"a", b"b"], offset=5)), None)
    assert so_far(output) == "no message was printed"
    output.flush()
    assert so_far(output) == "2 messages printed, up to offset 6; resume with --from 7"
    output.write(PartRun(2, run_of([b"c"], offset=0)), None)
    output.flush()
    assert so_far(output) == "3 messages printed, up to offset 0; resume with --from 1 --part 2"
