"""Tests of `Retry-After`: it is read as seconds or as a date, and ignored if it is invalid."""

from __future__ import annotations

import math

import pytest
from offload_cloud.pauses import pause_of

NOW_MS = 1_700_000_000_000  # 14 November 2023, 22:13:20


@pytest.mark.parametrize(
    ("said", "pause_seconds"),
    [
        ("7", 7.0),
        (" 0 ", 0.0),
        ("Tue, 14 Nov 2023 22:13:50 GMT", 30.0),
        ("Tue, 14 Nov 2023 22:13:00 GMT", 0.0),
        ("", None),
        ("soon", None),
        ("-3", None),
        ("1.5", None),
        ("\u0667", None),
        ("9" * 400, math.inf),
        ("Tue, 14 Nov 99999999999 22:13:20 GMT", None),
        ("Tue, 14 Nov 2023 22:13:20 +99999999999", None),
    ],
)
def test_a_pause_is_read_from_seconds_and_from_a_date(said: str, pause_seconds: float | None) -> None:
    assert pause_of(said, now_ms=lambda: NOW_MS) == pause_seconds
