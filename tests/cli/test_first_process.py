"""Tests of the first process of a container: the kernel gives it only signals that it handles."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

UNTIL_IMPORTS: Final = """
import os, signal, sys
from offload.cli import main

class SendsSigterm:
    def find_spec(self, name, *_):
        if name == "offload.cli.app":
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, SendsSigterm())
sys.argv = ["offload", "ls", "/nowhere"]
main.main()
"""
"""A program that gets SIGTERM when the command line begins to import the rest of itself."""

UNTIL_IT_RUNS: Final = """
import asyncio, os, signal
from offload.cli import main
from offload.service.process import signals

main._end_at_sigterm()

async def follow():
    with signals(asyncio.Event()):
        pass
    os.kill(os.getpid(), signal.SIGTERM)

asyncio.run(follow())
print("deaf")
"""
"""A program that gets SIGTERM after it has followed its streams."""

AS_PROCESS_1: Final = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]


@pytest.mark.parametrize("program", [UNTIL_IMPORTS, UNTIL_IT_RUNS], ids=["imports", "ends"])
def test_sigterm_ends_the_first_process_of_a_container_at_any_moment(program: str) -> None:
    ran = subprocess.run(
        [*AS_PROCESS_1, sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )

    assert "unshare" not in ran.stderr, f"this test needs namespaces of users and processes: {ran.stderr}"
    assert (ran.returncode, ran.stdout, ran.stderr) == (143, "", "")
