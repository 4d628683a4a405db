"""Tests of transcripts: each row is written as a plain loop writes it, by the compiled loop and by NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from campaign import CAMPAIGN
from fresh_loops import use_loops
from guarded_loops import is_utf8, plain_transcript
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offload.formats.patterns import Pattern, PatternStep, PatternValue
from offload.formats.texts import TextForm, timestamp_texts
from offload.formats.transcripts import Transcriber
from offload.model.record_columns import RecordBytes

EXAMPLES = 1_000 if CAMPAIGN else 150
DAY_MS = 86_400_000
TEXTS = st.lists(
    st.sampled_from(
        [b"a", b"plain text", b'"', b"\\", b"\n", b"\x00", b"\x1f", b"\x7f", b"\xc3\xa9", b"\xc3"]
    ),
    max_size=6,
).map(b"".join)
NUMBERS = st.sampled_from([0, -1, -(2**63), 2**63 - 1, 1_700_000_000_123]) | st.integers(-(2**63), 2**63 - 1)
WIDTHS = {
    TextForm.SIGNED: (1, 2, 4, 8),
    TextForm.UNSIGNED: (1, 2, 4, 8),
    TextForm.TIME_MS: (8,),
    TextForm.UUID: (16,),
    TextForm.FLOAT: (4, 8),
}
"""The bytes of values that have no size in front."""


@st.composite
def transcribers(draw: st.DrawFn) -> Transcriber:
    """Draw a description of rows. Behind each value is ASCII, and a row has `RAW` or texts."""
    steps, forms = list[PatternStep](), list[TextForm]()
    without = draw(st.sampled_from([{TextForm.RAW}, {TextForm.TEXT, TextForm.ASCII}]))
    forms_here = [form for form in TextForm if form not in without]
    for form in draw(st.lists(st.none() | st.sampled_from(forms_here), max_size=5)):
        if form is None:
            steps.append(draw(st.binary(min_size=1, max_size=20)))
            continue
        forms.append(form)
        widths = WIDTHS.get(form)
        steps.append(PatternValue(draw(st.sampled_from(widths or (1, 4))), is_sized=widths is None))
    behind = st.sampled_from([b'"', b',"key":', b"\xc3\xa9 is no ASCII, and long enough\\"])
    return Transcriber(Pattern(steps), forms, [draw(behind), *(draw(behind) + b"}" for _ in forms)])


@st.composite
def rows_of(draw: st.DrawFn, transcriber: Transcriber) -> bytes:
    """Draw a row that fits, mostly."""
    row, forms = b"", iter(transcriber.forms)
    for step in transcriber.pattern.steps:
        match step:
            case bytes():
                row += step
            case PatternValue(width, is_sized=True):
                value = draw(TEXTS) if next(forms) is not TextForm.BINARY else draw(st.binary(max_size=5))
                row += len(value).to_bytes(width, "big") + value
            case PatternValue(width):
                number = draw(NUMBERS).to_bytes(8, "big", signed=True)
                row += (
                    number[-width:]
                    if next(forms) is not TextForm.UUID
                    else draw(st.binary(min_size=16, max_size=16))
                )
    return row[: draw(st.integers(0, len(row)))] if draw(st.integers(0, 9)) == 0 else row


@pytest.mark.parametrize("compiled", [True, False])
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), transcriber=transcribers())
def test_rows_are_written_as_by_a_plain_loop(
    monkeypatch: pytest.MonkeyPatch, compiled: bool, data: st.DataObject, transcriber: Transcriber
) -> None:
    use_loops(monkeypatch, compiled=compiled)
    records = RecordBytes.of(data.draw(st.lists(rows_of(transcriber), max_size=5)))
    stops = records.starts + records.sizes

    found = transcriber.find(records.data, records.starts, stops)

    got = [
        (
            row,
            text,
            [
                value.data[value.starts[at] : value.starts[at] + value.sizes[at]].tobytes()
                for value in found.values
            ],
        )
        for at, (row, text) in enumerate(zip(found.rows.tolist(), found.column.to_list(), strict=True))
    ]
    steps = [
        step if isinstance(step, bytes) else (step.width, step.is_sized) for step in transcriber.pattern.steps
    ]
    rows = plain_transcript(
        records.data.tobytes(),
        records.starts.tolist(),
        stops.tolist(),
        steps,
        [*transcriber.forms],
        [*transcriber.texts],
    )
    shown = [form for form in transcriber.forms if form is not TextForm.NONE]
    texts = [number for number, form in enumerate(shown) if form is TextForm.TEXT]
    assert got == [
        (row, text, values)
        for row, text, _, values in rows
        if all(is_utf8(values[number]) for number in texts)
    ]


@pytest.mark.parametrize("first_year_ms", [-62_135_596_800_000, 946_684_800_000])
def test_all_days_of_400_years_have_their_date(monkeypatch: pytest.MonkeyPatch, first_year_ms: int) -> None:
    """The calendar repeats itself after so many years."""
    times = first_year_ms + np.arange(146_097) * DAY_MS + np.arange(146_097) * 593 % DAY_MS
    columns = []
    for compiled in (True, False):
        use_loops(monkeypatch, compiled=compiled)
        pool = timestamp_texts(times)
        columns.append(pool.data[pool.starts[:, None] + np.arange(24)].tobytes())

    assert columns[0] == columns[1]
