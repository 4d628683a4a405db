"""Tests of `offload serve`: ports first, then one cache for all, and an end within its bound."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import chunk_listener
import pytest
from command_line import PROGRAM, offload, stored_chunk_bytes, sync
from kit.installed import on_path
from osiris_data import DATA


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of distributions that has the listener of the tests."""
    chunk_listener.install(tmp_path / "site")
    return tmp_path / "site"


@pytest.fixture
def environ(site: Path) -> dict[str, str]:
    """The environment of a process with that folder."""
    return {**os.environ, "PYTHONPATH": str(site)}


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    shutil.copytree(DATA / "tiny", tmp_path / "source" / "tiny")
    sync(tmp_path / "source", tmp_path / "tier")
    return tmp_path / "tier"


@contextmanager
def serving(
    tier: Path, environ: dict[str, str], *options: str, listen: str = "chunks://127.0.0.1:0"
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run the command until it says where it serves. Yield it with its port."""
    command = [*PROGRAM, "serve", str(tier), "--listen", listen, "--log-format", "json", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ) as running:
        assert running.stderr is not None
        try:
            told = next(json.loads(line)["message"] for line in running.stderr if " serves " in line)
            yield running, int(told.rpartition(":")[2])
        finally:
            running.kill()


def received(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = peer.recv(size - len(data))
        assert more, f"the connection ended behind {data!r}"
        data += more
    return data


def chunks(port: int, name: str, size_bytes: int) -> socket.socket:
    """Connect, and receive chunks of so many bytes in all. Return the open connection."""
    peer = socket.create_connection(("127.0.0.1", port), timeout=20)
    peer.sendall(name.encode() + b"\n")
    while size_bytes > 0:
        size_bytes -= len(received(peer, int.from_bytes(received(peer, 4), "big")))
    assert size_bytes == 0
    return peer


def test_a_tier_is_served_until_sigterm_which_says_goodbye(tier: Path, environ: dict[str, str]) -> None:
    with serving(tier, environ) as (running, port):
        with chunks(port, "tiny", stored_chunk_bytes("tiny")) as peer:
            running.send_signal(signal.SIGTERM)

            assert received(peer, 4) == bytes(4)
            assert peer.recv(1) == b""
        assert running.wait(timeout=20) == 0


def test_what_only_the_disk_has_is_served_with_a_source(
    tier: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    shutil.copytree(DATA / "batches", tmp_path / "source" / "batches")
    beside = ["--source", f"rabbitmq://{tmp_path}/source", "--hold-back", "0s"]
    with serving(tier, environ, *beside) as (_, port):
        chunks(port, "batches", stored_chunk_bytes("batches")).close()
        chunks(port, "tiny", stored_chunk_bytes("tiny")).close()


def test_the_routes_show_what_the_listener_counts(tier: Path, environ: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port_of_routes = free.getsockname()[1]
    routes = f"http://127.0.0.1:{port_of_routes}"
    with serving(tier, environ, "--metrics", str(port_of_routes)) as (_, port):
        with (
            chunks(port, "tiny", stored_chunk_bytes("tiny")),
            urllib.request.urlopen(f"{routes}/metrics", timeout=20) as numbers,
            urllib.request.urlopen(f"{routes}/readyz", timeout=20) as health,
        ):
            metrics, ready = numbers.read().decode(), health.read().decode()

        assert f'offload_serve_connections{{listener="chunks://127.0.0.1:{port}"}} 1.0' in metrics
        size = float(stored_chunk_bytes("tiny"))
        assert f'offload_serve_bytes_total{{listener="chunks://127.0.0.1:{port}"}} {size}' in metrics
        assert 'offload_store_requests_total{operation="get",outcome="ok"}' in metrics
        assert ready == "ready\nserves connections: 1, subscriptions: 0\n"


def test_every_port_is_taken_before_anything_starts(tier: Path, environ: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [*PROGRAM, "serve", str(tier), "--listen", "chunks://127.0.0.1:0"]
        command += ["--listen", f"chunks://127.0.0.1:{port}"]

        ran = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=60, check=False)

    assert ran.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in ran.stderr
    assert "serves" not in ran.stderr


def test_connections_that_do_not_end_are_closed_at_the_bound(tier: Path, environ: dict[str, str]) -> None:
    deaf = "chunks://127.0.0.1:0?stays"
    with serving(tier, environ, "--stop-seconds", "0.5", listen=deaf) as (running, port):
        with chunks(port, "tiny", stored_chunk_bytes("tiny")):
            began = time.monotonic()
            running.send_signal(signal.SIGTERM)

            assert running.wait(timeout=20) == 0
        assert 0.5 <= time.monotonic() - began < 10


def test_a_listener_that_fails_ends_the_process(tier: Path, environ: dict[str, str]) -> None:
    with serving(tier, environ) as (running, port):
        chunks(port, "fail", 0).close()

        assert running.wait(timeout=20) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--listen", "chunks://127.0.0.1:0?colour=red"], "has no option 'colour=red'"),
        (["--listen", "strange://127.0.0.1:1"], "no plugin knows the listener 'strange'"),
        (["--listen", "chunks://me:secret@127.0.0.1:1"], "the URL of a listener has no login"),
        (["--listen", "chunks://127.0.0.1:0", "--cache", "much"], "--cache takes bytes"),
        (["--listen", "chunks://127.0.0.1:0", "--broker", "x://"], "--broker needs --source"),
        (["--listen", "chunks://127.0.0.1:0", "--metrics", "here"], '--metrics: expected "HOST:PORT"'),
        ([], "Missing option '--listen'"),
    ],
)
def test_a_wrong_option_is_one_line(tier: Path, site: Path, options: list[str], said: str) -> None:
    with on_path(site):
        ran = offload("serve", tier, *options)

    assert ran.code == 2
    assert said in ran.stderr
    assert "secret" not in ran.stderr
