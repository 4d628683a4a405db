"""The log of `offload run`: one line for each event."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from offload.cli.kit.log_lines import EventFormatter, log_event, log_events
from offload.contracts.events import Skipped, StreamPaused, Waiting
from offload.ground.errors import Denied

HOSTILE = 'or"ders\n\x1b[2J\u202e\u2028 x=1'


def line_of(caplog: pytest.LogCaptureFixture, *, is_json: bool) -> str:
    (record,) = caplog.records
    return EventFormatter(is_json=is_json).format(record)


def test_an_event_is_one_json_object(caplog: pytest.LogCaptureFixture) -> None:
    log_event(StreamPaused(stream=HOSTILE, error=Denied("no right")))

    line = line_of(caplog, is_json=True)
    assert line.isprintable()
    shown = json.loads(line)
    assert shown.pop("time").endswith("Z")
    assert shown == {"level": "error", "event": "stream_paused", "stream": HOSTILE, "error": "no right"}


def test_an_event_is_one_line_of_text(caplog: pytest.LogCaptureFixture) -> None:
    log_event(Skipped(stream=HOSTILE, from_offset=3, to_offset=5))

    line = line_of(caplog, is_json=False)
    assert line.isprintable()
    assert line.split(" ", 1)[1].startswith('warning skipped stream="or\\"ders\\n\\u001b[2J')
    assert line.endswith("from_offset=3 to_offset=5")


def test_libraries_log_only_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their debug logs hold signatures of requests."""
    root, ours = logging.getLogger(), logging.getLogger("offload")
    for each in (root, ours, logging.getLogger("offload.opening.session")):
        monkeypatch.setattr(each, "level", each.level)
    monkeypatch.setattr(root, "handlers", [])

    log_events("debug", is_json=True)

    library, framework = logging.getLogger("aiobotocore.test"), logging.getLogger("offload.test")
    assert [each.isEnabledFor(logging.INFO) for each in (library, framework)] == [False, True]
    assert len(root.handlers) == 1
    logging.getLogger().manager._clear_cache()  # type: ignore[attr-defined]  # the levels are set back


def test_numbers_are_short(caplog: pytest.LogCaptureFixture) -> None:
    log_event(Waiting(url="s3://x", error=Denied("no"), waited_seconds=1 / 3, patience_seconds=120.0))

    assert "waited_seconds=0.333 " in line_of(caplog, is_json=False)


def test_a_message_of_the_log_is_a_line_too() -> None:
    try:
        raise ValueError("bad\nnews")
    except ValueError:
        record = logging.LogRecord("offload.x", logging.ERROR, "", 1, "it %s", ("failed",), sys.exc_info())

    line = EventFormatter(is_json=False).format(record)

    assert line.isprintable()
    assert 'error message logger="offload.x" message="it failed" trace="Traceback' in line
