"""`offload run`: its arguments, its configuration, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pytest
from command_line import PROGRAM, offload
from osiris_data import DATA
from osiris_writer import append_chunks, write_stream

from offload import build_chunk
from offload.formats.anchor import TierAnchor
from offload.formats.keys import TIER_ANCHOR


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("rabbitmq:///data",), "TIER is missing"),
        (("run.toml", "tier"), "a configuration names the tier itself: leave tier out"),
        (("/",), "/ is a folder, not a configuration: give SOURCE and then TIER"),
        (("absent.toml",), "absent.toml: cannot read this configuration"),
        (("absent.toml", "--max-lag", "5s"), "--max-lag belongs in the configuration"),
        (("rabbitmq:///data", "tier", "--max-lag", "5"), "--max-lag: takes a number"),
        (("rabbitmq:///data", "tier", "--compress", "gzip"), "--compress: 'gzip' is no compression"),
        (("rabbitmq:///data", "tier", "--option", "x"), "--option takes NAME=VALUE"),
        (("rabbitmq:///data", "tier", "--source-option", "x=1"), "source 'rabbitmq' has no option 'x'"),
        (("rabbitmq:///data", "tier", "--encrypt", "label"), "encryption needs a key service"),
    ],
)
def test_a_wrong_argument_is_one_line(arguments: tuple[str, ...], said: str) -> None:
    ran = offload("run", *arguments)

    assert ran.code == 2
    assert said in ran.error


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("offload.service.config", "offload.service.config_file"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "pydantic", None)

    ran = offload("run", "rabbitmq:///data", "tier")

    assert ran.code == 1
    assert "offload run needs pydantic, which is not installed: " in ran.error
    assert "[run]" in ran.error


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (TimeoutError(), "stopped after 20 s, before the uploads in flight were committed"),
        (asyncio.CancelledError(), "stopped at once; what is committed is safe"),
    ],
)
def test_an_end_that_is_not_clean_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: BaseException, said: str
) -> None:
    async def serve(*args: object) -> None:
        raise raised

    monkeypatch.setattr("offload.service.process.serve", serve)
    monkeypatch.setattr("offload.cli.run.log_events", lambda *args, **kwargs: None)

    ran = offload("run", f"rabbitmq://{DATA}/tiny", tmp_path / "tier")

    assert ran.code == 1
    assert said in ran.error


@pytest.mark.parametrize(
    ("place", "said"), [("absent/me", "No such file or directory"), (".", "Is a directory")]
)
def test_an_identity_that_was_asked_for_and_cannot_be_kept_is_one_line(
    tmp_path: Path, place: str, said: str
) -> None:
    ran = offload("run", f"rabbitmq://{DATA}/tiny", tmp_path / "tier", "--instance", tmp_path / place)

    assert (ran.code, len(ran.error.splitlines())) == (2, 1)
    assert f"{said}; name a file that it can write, or `off`" in ran.error


def test_a_process_whose_identity_cannot_be_kept_works_and_says_so(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(f'source = "rabbitmq://{DATA}/tiny"\ntier = "{tmp_path}/tier"\n')
    (tmp_path / "run.toml.instance").mkdir()
    with subprocess.Popen([*PROGRAM, "run", str(config)], stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        line = next(line for line in running.stderr if "cannot keep the identity" in line)
        running.kill()
    assert 'instance = \\"/var/lib/offload/instance\\"' in line


def test_a_process_that_was_killed_goes_on_before_takeover_is_over(tmp_path: Path) -> None:
    """And a second process with its configuration is refused with one line as long as it lives."""
    folder, config, tier = tmp_path / "source" / "orders", tmp_path / "run.toml", tmp_path / "tier"
    write_stream(folder, [chunk(0)])
    config.write_text(
        f'source = "rabbitmq://{folder.parent}"\ntier = "{tier}"\n'
        '[streams."*"]\nmax_lag = "1s"\ntakeover = "1h"\n'
    )
    command = [*PROGRAM, "run", str(config), "--log-format", "json"]
    for epoch in (1, 2):
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
            assert running.stderr is not None
            lines = (json.loads(line) for line in running.stderr)
            assert next(line for line in lines if line["event"] == "took_over")["epoch"] == epoch
            if epoch == 1:
                second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            running.kill()
        append_chunks(folder, [chunk(10 * epoch)])

    assert (second.returncode, len(second.stderr.splitlines())) == (1, 1)
    assert "run.toml.instance runs already" in second.stderr
    assert [each["value"] for each in offload("read", tier, "orders").objects] == [f"{n}" for n in range(20)]


def chunk(offset: int) -> bytes:
    return build_chunk([b"%d" % (offset + i) for i in range(10)], offset=offset, timestamp_ms=1, epoch=1)


def shown(url: str) -> str:
    """Return the body at a URL."""
    with urllib.request.urlopen(url, timeout=20) as reply:
        return str(reply.read().decode())


def test_a_configuration_is_followed_until_sigterm(tmp_path: Path) -> None:
    """Each stream is stored as its table says, the routes answer, and the end leaves nothing running.

    The service manager hears of its start and its end.
    """
    for name in ("one", "two"):
        shutil.copytree(DATA / "tiny", tmp_path / "source" / name)
    config, tier = tmp_path / "run.toml", tmp_path / "tier"
    config.write_text(
        f'source = "rabbitmq://{tmp_path}/source"\ntier = "{tier}"\nlisten = "0"\n'
        '[streams.one]\nmax_lag = "1s"\ncompress = "zstd"\n[streams."*"]\nmax_lag = "1s"\ncompress = "lz4"\n'
    )
    command = [*PROGRAM, "run", str(config), "--log-format", "json"]
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "manager"))
    environ = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "manager")}
    with manager, subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ) as running:
        assert running.stderr is not None
        lines = (json.loads(line) for line in running.stderr)
        url = next(x["message"] for x in lines if "answering" in x.get("message", "")).split()[-1]
        taken = {line["stream"] for line in islice((x for x in lines if x["event"] == "took_over"), 2)}
        metrics, ready = shown(f"{url}/metrics"), shown(f"{url}/readyz")
        running.send_signal(signal.SIGTERM)
        rest = list(lines)
        manager.setblocking(False)
        told: list[bytes] = []
        with suppress(BlockingIOError):
            while True:
                told.append(manager.recv(4096))
    assert running.returncode == 0
    assert told[0].startswith(b"READY=1\nWATCHDOG=1\nSTATUS=")
    assert told[-1].startswith(b"STOPPING=1\nWATCHDOG=1\nSTATUS=leads 2 of 2 streams")
    assert taken == {"one", "two"}
    assert 'offload_stream_state{state="leading",stream="one"}' in metrics
    assert 'offload_store_requests_total{operation="put",outcome="ok"} 2.0' in metrics
    assert 'offload_commits_total{outcome="accepted"}' in metrics
    assert ready.startswith("ready\n")
    assert [line["level"] for line in rest] == ["warning"]
    listed = offload("ls", tier, "--json").objects

    stored = [(each["stream"], each["messages"], each["codecs"]) for each in listed]
    assert stored == [("one", 10, ["zstd"]), ("two", 10, ["lz4"])]
    anchor = TierAnchor.decode((tier / TIER_ANCHOR).read_bytes(), where="the anchor")
    assert str(anchor.compression) == "lz4"
