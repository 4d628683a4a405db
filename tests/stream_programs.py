"""The programs of docs/serve-streams.md, made and run as a reader of the page would do it.

A block whose first line is a comment with the name of a file is that file. The first block of `sh` below the
heading of a language has its commands: the last one runs the program, and the others prepare it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from servers.processes import process
from servers.session import REQUIRED

PAGE: Final = Path(__file__).parent.parent / "docs" / "serve-streams.md"
BLOCKS: Final = re.DOTALL | re.MULTILINE
FILE: Final = re.compile(r"^```\w+\n((?:// |# |<!-- )([\w.]+\.\w+)(?: -->)?\n.*?)^```$", BLOCKS)
COMMANDS: Final = re.compile(r"^```sh\n(.*?)^```$", BLOCKS)
CODEC: Final = re.compile(r"^```java\n( *Environment environment =.*?)^```$", BLOCKS)
MESSAGE: Final = re.compile(rb"^\d+ .*$", re.MULTILINE)
"""A line of a program. The others are what its client logs."""

TOOLS: Final[Mapping[str, Sequence[str]]] = {"Java": ("java", "mvn"), "Go": ("go",), "Python": ()}
ADDRESS: Final = "localhost:5552"
PREPARED_SECONDS: Final = 900.0
READ_SECONDS: Final = 120.0
SURPLUS_SECONDS: Final = 1.0


@dataclass(frozen=True)
class StreamProgram:
    """A program that prints the offset and the body of each message of a stream, and then waits."""

    argv: Sequence[str]
    folder: Path

    def read(self, port: int, stream: str, messages: int) -> list[str]:
        """Return its lines as soon as there are so many, and those that it still prints soon after."""
        words = [each.replace(ADDRESS, f"127.0.0.1:{port}") for each in self.argv]
        words[-1] = stream
        log, deadline = self.folder / "output", time.monotonic() + READ_SECONDS
        env = {"PYTHONUNBUFFERED": "1"}
        with process(*words, log=log, cwd=self.folder, env=env) as running:
            while len(MESSAGE.findall(log.read_bytes())) < messages and running.poll() is None:
                assert time.monotonic() < deadline, log.read_text(errors="replace")[-2000:]
                time.sleep(0.25)
            time.sleep(SURPLUS_SECONDS)
        return [line.decode() for line in MESSAGE.findall(log.read_bytes())]


def program_in(language: str, folder: Path, page: str | None = None) -> StreamProgram:
    """Make the program of the page in an empty folder. Skips the test if a tool is missing."""
    lacking = " and ".join(tool for tool in TOOLS[language] if shutil.which(tool) is None)
    if lacking:
        pytest.skip(f"the client for {language} cannot be run here: {lacking} is not installed")
    [section] = re.findall(rf"^## {language}\n(.*?)(?=^## )", page or PAGE.read_text(), BLOCKS)
    for content, name in FILE.findall(section):
        (folder / name).write_text(content)
    *prepare, run = COMMANDS.findall(section)[0].strip().splitlines()
    if language == "Go":  # `go run` starts a child, and does not end it
        prepare, run = [*prepare, "go build -o reader ."], run.replace("go run .", "./reader")
    for line in prepare:
        _prepare(line, folder)
    words = shlex.split(run)
    return StreamProgram([sys.executable if words[0] == "python" else words[0], *words[1:]], folder)


def _prepare(line: str, folder: Path) -> None:
    """Run a command of the page. If it fails, the registry is not reached, or the page is wrong."""
    argv = shlex.split(line)
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=PREPARED_SECONDS)
    if done.returncode:
        said = (done.stdout + done.stderr).strip()[-1000:]
        (pytest.fail if os.environ.get(REQUIRED) == "1" else pytest.skip)(f"`{line}` failed: {said}")


def with_simple_codec(page: str) -> str:
    """Return the page with the change that it describes for bodies that are no AMQP 1.0."""
    [environment] = CODEC.findall(page)
    changed = re.sub(r"^ *Environment environment = .*\n", environment, page, count=1, flags=re.MULTILINE)
    first = "import com.rabbitmq.stream.Environment;\n"
    return changed.replace(first, f"{first}import com.rabbitmq.stream.codec.SimpleCodec;\n", 1)
