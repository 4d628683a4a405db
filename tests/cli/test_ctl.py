"""`offload ctl` with a real process of `offload run`."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from command_line import PROGRAM, offload
from osiris_data import DATA


@contextmanager
def process(config: Path) -> Iterator[tuple[subprocess.Popen[str], Iterator[dict[str, Any]]]]:
    """Run `offload run`, and return it with the lines of its log. Kills it at the end."""
    command = [*PROGRAM, "run", str(config), "--log-format", "json"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        try:
            yield running, (json.loads(line) for line in running.stderr)
        finally:
            running.send_signal(signal.SIGKILL)


def until(lines: Iterator[dict[str, Any]], event: str) -> dict[str, Any]:
    """Return the next line of this event."""
    return next(line for line in lines if line["event"] == event)


def test_a_stream_is_retried_paused_and_resumed_without_a_restart_and_a_pause_survives_a_kill(
    tmp_path: Path,
) -> None:
    """A gap pauses the stream. Somebody goes on in a new part, and does not wait for the next try."""
    source, tier, config = tmp_path / "source" / "orders", tmp_path / "tier", tmp_path / "run.toml"
    source.mkdir(parents=True)
    for each in (DATA / "filtered").glob("*00000000.*"):
        shutil.copy(each, source)
    config.write_text(
        f'source = "rabbitmq://{source.parent}"\ntier = "{tier}"\ncontrol = "{tmp_path}/run.sock"\n'
        '[streams."*"]\nmax_lag = "1s"\ntakeover = "2s"\n'
    )
    with process(config) as (_, lines):
        until(lines, "took_over")
        for each in source.iterdir():
            each.unlink()
        for each in (DATA / "filtered").glob("*12500.*"):
            shutil.copy(each, source)
        assert "there is a gap" in until(lines, "stream_paused")["error"]
        still = offload("ctl", "retry", "orders", "--config", config)
        offload("sync", f"rabbitmq://{source.parent}", tier, "--new-part")
        retried = offload("ctl", "retry", "--all", "--socket", tmp_path / "run.sock", "--json")
        paused = offload("ctl", "pause", "orders", "--config", config)
        unknown = offload("ctl", "pause", "nope", "--config", config)
        status = offload("status", config)

    assert (still.code, retried.code, paused.code, unknown.code) == (1, 0, 0, 1)
    assert "stream 'orders' is paused: " in still.error
    assert [(row["stream"], row["error"]) for row in retried.objects] == [("orders", None)]
    assert paused.text == "orders: paused until `offload ctl resume`\n"
    assert "stream 'nope' is not followed by this process" in unknown.error
    assert "Is it running? yes" in status.text
    with process(config) as (_, lines):
        until(lines, "message")
        while "ctl is answered" not in (line := until(lines, "message"))["message"]:
            assert line
        seen = offload("ctl", "retry", "orders", "--config", config)
        resumed = offload("ctl", "resume", "orders", "--config", config)

    assert seen.text == "orders: paused until `offload ctl resume`\n"
    assert (resumed.code, resumed.text.split(",")[0] in ("orders: copies", "orders: stands by")) == (0, True)


def test_a_command_to_nobody_is_one_line(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(f'source = "rabbitmq://{tmp_path}"\ntier = "{tmp_path}/tier"\n')

    nobody = offload("ctl", "retry", "orders", "--config", config)
    dead = offload("ctl", "retry", "orders", "--socket", tmp_path / "absent.sock")
    wrong = offload("ctl", "retry", "--config", config)

    assert (nobody.code, dead.code, wrong.code) == (1, 1, 2)
    assert f"no process of {config} answers `offload ctl` on this machine" in nobody.error
    assert "nobody answers" in dead.error
    assert "name streams, or give --all" in wrong.error
