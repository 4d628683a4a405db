"""Running `offload`, in this process or in one of its own, and looking at what it left on disk.

In this process it takes milliseconds; a process of its own is for signals, pipes, limits and terminals.
"""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from osiris_data import DATA, MANIFEST, body_of

from offload.cli.app import run

PROGRAM: Final = (sys.executable, "-W", "error", "-c", "from offload.cli.main import main; main()")
"""The program as a command that another process can run."""

SEED: Final = int(os.environ.get("OFFLOAD_SEED", random.SystemRandom().randrange(2**32)))
"""Of whatever a test draws; a test that draws prints it."""

CAMPAIGN: Final = bool(os.environ.get("OFFLOAD_CAMPAIGN"))
"""Whether there is time for many more."""

DYING: Final = Path(__file__).parent / "faults" / "dying.py"

STREAM_TOTALS: Final = frozenset(
    {"stream", "ledgers", "fragments", "records", "messages", "bytes"}
    | {"first_offset", "next_offset", "version"}
)
"""What `sync` and `ls` say of a stream."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How one command line ended and what it printed."""

    code: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        """What stdout got, as text."""
        return self.stdout.decode()

    @property
    def lines(self) -> list[str]:
        """The lines of stdout: all of them end."""
        assert not self.stdout or self.stdout.endswith(b"\n")
        return self.text.split("\n")[:-1]

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The lines of stdout, each a JSON object."""
        return [json.loads(line) for line in self.lines]

    @property
    def document(self) -> Any:
        """All of stdout as one JSON document."""
        return json.loads(self.stdout)

    @property
    def error(self) -> str:
        """The one line that stderr got."""
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
    """Start a command line in a process of its own, its output on pipes unless `options` say otherwise."""
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*PROGRAM, *map(str, arguments)], **piped | options)


def start_dying(number: int, command: str, tier: Path, *arguments: object) -> subprocess.Popen[bytes]:
    """Start a command that SIGKILL ends before its n-th call to the file system below `tier`; 0 is never."""
    return start_dying_below(tier, number, command, tier, *arguments)


def start_dying_below(folder: Path, number: int, *words: object) -> subprocess.Popen[bytes]:
    """Start a command line that SIGKILL ends before its n-th call to the file system below `folder`."""
    argv = [sys.executable, "-W", "error", DYING, folder, number, *words]
    return subprocess.Popen([*map(str, argv)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def calls_of(ran: Ran) -> int:
    """How many such calls it made, where it ended well."""
    assert ran.code == 0, ran.stderr
    return int(ran.stderr.rpartition("calls: ")[2])


def finish(process: subprocess.Popen[bytes], *, timeout_seconds: float = 60) -> Ran:
    """Wait for a process that `start` began."""
    stdout, stderr = process.communicate(timeout=timeout_seconds)
    return Ran(process.returncode, stdout or b"", (stderr or b"").decode())


def sync(source: Path, tier: Path, *options: str) -> Ran:
    """`offload sync --json` from a RabbitMQ folder, which must end well."""
    ran = offload("sync", f"rabbitmq://{source}", tier, "--json", *options)
    assert ran.code == 0, ran.stderr
    return ran


def read(tier: Path, stream: str, *options: object) -> Ran:
    """`offload read`, which must end well."""
    ran = offload("read", tier, stream, *options)
    assert ran.code == 0, ran.stderr
    return ran


def bodies(tier: Path, stream: str) -> list[bytes]:
    """The body of every message of a stream, through the tier."""
    return read(tier, stream, "--decode", "amqp", "--format", "body").stdout.split(b"\n")[:-1]


def verify(tier: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the document of `offload verify --json`."""
    ran = offload("verify", tier, *options, "--json")
    return ran.code, ran.document


def formula(messages: int) -> list[bytes]:
    """The bodies that the test data's messages have, by the formula of its manifest."""
    return [body_of(i) for i in range(messages)]


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Bytes and time of change of every file below `folder`, by path: what "changes nothing" is held to."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def keys(tier: Path) -> set[str]:
    """The keys of a folder tier's objects, found without the program under test."""
    return {key for key in contents(tier) if not key.startswith(".staging/")}


def stored_chunk_bytes(stream: str) -> int:
    """The bytes of all chunks of an intact test stream: its segments without their heads of 8 bytes."""
    files = MANIFEST["streams"][stream]["files"]
    return sum(file["bytes"] - 8 for file in files if file["file"].endswith(".segment"))


def expected_totals(stream: str) -> dict[str, object]:
    """What `sync` must say of an intact test stream, from the manifest alone."""
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
