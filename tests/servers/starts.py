"""Functions that start each single-process server on loopback, with its files in a scratch folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from servers.places import ACCESS_KEY, SECRET_KEY
from servers.processes import free_port, process, wait_until_it_answers

FEW_COLLECTIONS = {"GOMEMLIMIT": "1GiB", "GOGC": "400"}
"""For a server in Go: it has little to keep, and would collect garbage all the time."""

Start = Callable[[Path, Path], AbstractContextManager[str]]
"""A function that starts a program from its folder and a scratch folder, and yields its URL once
it answers.
"""


@contextmanager
def moto(program: Path, scratch: Path) -> Iterator[str]:
    """Start moto. Objects are in its memory. A layer of ours in front makes its creates atomic."""
    del program  # a module of this environment
    port = free_port()
    with _answering(port, scratch, sys.executable, Path(__file__).parent / "moto_in_turn.py", port) as url:
        yield url


@contextmanager
def minio(program: Path, scratch: Path) -> Iterator[str]:
    """Objects are files below the scratch folder."""
    port = free_port()
    env = {
        "MINIO_ROOT_USER": ACCESS_KEY,
        "MINIO_ROOT_PASSWORD": SECRET_KEY,
        "MINIO_BROWSER": "off",
        "MINIO_UPDATE": "off",  # do not look for updates on the network
        **FEW_COLLECTIONS,
    }
    argv = (program / "bin" / "minio", "server", "--address", f"127.0.0.1:{port}", scratch / "data")
    certificates = ("--certs-dir", scratch / "certificates")  # not the certificates of the user
    with _answering(port, scratch, *argv, *certificates, env=env, ready="/minio/health/ready") as url:
        yield url


@contextmanager
def fake_gcs_server(program: Path, scratch: Path) -> Iterator[str]:
    """Start fake-gcs-server. Objects are in its memory, because as files `a` and `a/b` could not
    both exist.
    """
    port = free_port()
    argv = (program / "bin" / "fake-gcs-server", "-scheme", "http", "-host", "127.0.0.1", "-port", port)
    names = ("-public-host", f"127.0.0.1:{port}", "-external-url", f"http://127.0.0.1:{port}")
    argv += (*names, "-backend", "memory", "-log-level", "warn")
    with _answering(port, scratch, *argv, env=FEW_COLLECTIONS) as url:
        yield url


@contextmanager
def gcp_storage_emulator(program: Path, scratch: Path) -> Iterator[str]:
    """Start gcp-storage-emulator. Objects are in its memory."""
    port = free_port()
    python = program / "bin" / "python"
    where = ("--host", "127.0.0.1", "--port", port, "--in-memory")
    with _answering(port, scratch, python, "-m", "gcp_storage_emulator", "start", *where) as url:
        yield url


@contextmanager
def azurite(program: Path, scratch: Path) -> Iterator[str]:
    """Start Azurite without telemetry. Objects are in its memory: with files it takes twice the time."""
    port = free_port()
    argv = (program / "node_modules" / ".bin" / "azurite-blob", "--silent", "--disableTelemetry")
    where = ("--blobHost", "127.0.0.1", "--blobPort", port, "--inMemoryPersistence")
    with _answering(port, scratch, *argv, *where, "--skipApiVersionCheck") as url:
        yield url


@contextmanager
def _answering(
    port: int, scratch: Path, *argv: str | int | Path, env: Mapping[str, str] | None = None, ready: str = "/"
) -> Iterator[str]:
    log = scratch / "server.log"
    with process(*map(str, argv), log=log, env=env, cwd=scratch) as running:
        url = f"http://127.0.0.1:{port}"
        wait_until_it_answers(url + ready, running, log=log)
        yield url
