"""Helpers that run `offload`, in this process or a separate one, and inspect the files that it leaves.

In this process a run takes milliseconds. A separate process is for signals, pipes, limits and terminals.
"""

from __future__ import annotations

import io
import json
import os
import pty
import random
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import typer.main
from osiris_data import DATA, MANIFEST, body_of
from ready import ReadyCommand

from offload.cli.app import run

# The library reads the annotations of each command four times in every run, a tenth of the CPU of tests that
# run commands. What it finds depends on the command alone.
typer.main.get_params_from_function = lru_cache(64)(typer.main.get_params_from_function)

PROGRAM: Final = (sys.executable, "-W", "error", "-c", "from offload.cli.main import main; main()")
"""The program as a command that another process can run."""

SEED: Final = int(os.environ.get("OFFLOAD_SEED", random.SystemRandom().randrange(2**32)))
"""The seed of everything that a test draws at random; such a test prints it."""


STREAM_TOTALS: Final = frozenset(
    {"stream", "ledgers", "fragments", "records", "messages", "bytes"}
    | {"first_offset", "next_offset", "version"}
)
"""The totals that `sync` and `ls` report of a stream."""


@dataclass(frozen=True, slots=True)
class Ran:
    """The exit code and the output of one command line."""

    code: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        """Return stdout as text."""
        return self.stdout.decode()

    @property
    def lines(self) -> list[str]:
        """Return the lines of stdout, and assert that the last one ends."""
        assert not self.stdout or self.stdout.endswith(b"\n")
        return self.text.split("\n")[:-1]

    @property
    def objects(self) -> list[dict[str, Any]]:
        """Return the lines of stdout, each parsed as a JSON object."""
        return [json.loads(line) for line in self.lines]

    @property
    def document(self) -> Any:
        """Return stdout, parsed as one JSON document."""
        return json.loads(self.stdout)

    @property
    def error(self) -> str:
        """Return the only line of stderr."""
        assert self.stderr.count("\n") == 1, self.stderr
        assert self.stderr.endswith("\n")
        return self.stderr[:-1]


def offload(*arguments: object, encoding: str = "utf-8") -> Ran:
    """Run a command line in this process, with a stdout of this encoding."""
    stdout = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="", write_through=True)
    stderr = io.StringIO()
    with redirect_stdout(stdout), redirect_stderr(stderr):
        code = run([str(argument) for argument in arguments])
        stdout.flush()
    assert isinstance(stdout.buffer, io.BytesIO)
    return Ran(code, stdout.buffer.getvalue(), stderr.getvalue())


def start(*arguments: object, **options: Any) -> subprocess.Popen[bytes]:
    """Start a command line in a separate process, with its output on pipes unless `options` differ."""
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*PROGRAM, *map(str, arguments)], **piped | options)


def start_dying(number: int, command: str, tier: Path, *arguments: object) -> ReadyCommand:
    """Start a command that SIGKILL ends before its n-th call to the file system below `tier`; 0 is never."""
    return start_dying_below(tier, number, command, tier, *arguments)


def start_dying_below(folder: Path, number: int, *words: object) -> ReadyCommand:
    """Start a command line that SIGKILL ends before its n-th call to the file system below `folder`."""
    return ReadyCommand(*words, folder=folder, dies_at=number)


def calls_of(ran: Ran) -> int:
    """Return how many such calls a successful run made."""
    assert ran.code == 0, ran.stderr
    return int(ran.stderr.rpartition("calls: ")[2])


def finish(process: subprocess.Popen[bytes] | ReadyCommand, *, timeout_seconds: float = 60) -> Ran:
    """Wait for a process that was started, and return what it did."""
    stdout, stderr = process.communicate(timeout=timeout_seconds)
    assert process.returncode is not None
    return Ran(process.returncode, stdout or b"", (stderr or b"").decode())


def sync(source: Path, tier: Path, *options: str) -> Ran:
    """Run `offload sync --json` from a RabbitMQ folder, which must succeed."""
    ran = offload("sync", f"rabbitmq://{source}", tier, "--json", *options)
    assert ran.code == 0, ran.stderr
    return ran


def read(tier: Path, stream: str, *options: object) -> Ran:
    """Run `offload read`, which must succeed."""
    ran = offload("read", tier, stream, *options)
    assert ran.code == 0, ran.stderr
    return ran


def bodies(tier: Path, stream: str) -> list[bytes]:
    """Return the body of every message of a stream, read from the tier."""
    return read(tier, stream, "--decode", "amqp", "--format", "body").stdout.split(b"\n")[:-1]


def verify(tier: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the document of `offload verify --json`."""
    ran = offload("verify", tier, *options, "--json")
    return ran.code, ran.document


def formula(messages: int) -> list[bytes]:
    """Return the bodies of the messages in the test data, by the formula of its manifest."""
    return [*_formula(messages)]


@lru_cache(4)  # some modules keep the bodies of a stream, and all processes import them
def _formula(messages: int) -> Sequence[bytes]:
    return [body_of(i) for i in range(messages)]


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return bytes and modification time of every file below `folder`, to prove that nothing changed."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def keys(tier: Path) -> set[str]:
    """Return the keys of the objects of a folder tier, found without the program under test."""
    return {key for key in contents(tier) if not key.startswith(".staging/")}


def stored_chunk_bytes(stream: str) -> int:
    """Return the size of all chunks of an intact test stream: its segments without their 8-byte heads."""
    files = MANIFEST["streams"][stream]["files"]
    return sum(file["bytes"] - 8 for file in files if file["file"].endswith(".segment"))


def expected_totals(stream: str) -> dict[str, object]:
    """Return the totals that `sync` must report of an intact test stream, from the manifest alone."""
    known = MANIFEST["streams"][stream]
    return {
        "stream": stream,
        "messages": known["messages"],
        "records": known["next_offset"] - known["first_offset"],
        "first_offset": known["first_offset"],
        "next_offset": known["next_offset"],
        "ledgers": len(known["segments"]),
        "fragments": len(known["segments"]),  # none is large enough to be cut
        "bytes": stored_chunk_bytes(stream),
    }


SOURCE: Final = f"rabbitmq://{DATA}"


def on_a_terminal(typed: str, *arguments: object) -> Ran:
    """Run a command on a terminal at which a user types this line."""
    ours, theirs = pty.openpty()
    try:
        process = start(*arguments, stdin=theirs)
        os.write(ours, f"{typed}\n".encode())
        return finish(process)
    finally:
        os.close(ours)
        os.close(theirs)
