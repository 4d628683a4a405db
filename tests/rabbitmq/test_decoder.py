"""Tests of the `amqp` decoder: it returns a result for any record; an invalid message stays raw."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from offload_rabbitmq.decoder import NO_SECTIONS, AmqpDecoder

from offload.contracts.decoder import Decoded

DECODER = AmqpDecoder()
LONE_DATA = b"\x00Su\xa0"

RECORDS = st.binary(max_size=60) | st.builds(
    lambda head, tail: head + tail,
    st.sampled_from((LONE_DATA, b"\x00Sw", b"\x00Ss\xc0", b"\x00Sr\xc1", b"\x00Sw\xe0", b"\x00Sw\x00")),
    st.binary(max_size=60),
)


@pytest.mark.parametrize("record", [LONE_DATA[:size] for size in range(5)])
def test_a_record_cut_before_its_length_is_raw(record: bytes) -> None:
    assert DECODER.decode([record]) == [Decoded(record, NO_SECTIONS)]
    assert DECODER.bodies([record]) == [record]


@given(st.lists(RECORDS, max_size=4))
def test_the_decoder_never_fails(records: list[bytes]) -> None:
    """Neither method fails, and both give the same result for a record in a list as for the record alone."""
    decoded, bodies = DECODER.decode(records), DECODER.bodies(records)

    assert bodies == [body for record in records for body in DECODER.bodies([record])]
    for record, (value, sections), body in zip(records, decoded, bodies, strict=True):
        assert sections.keys() == NO_SECTIONS.keys()
        json.dumps(sections, allow_nan=False)
        if isinstance(value, bytes):
            assert body in (value, record)
        else:
            json.dumps(value, allow_nan=False)
