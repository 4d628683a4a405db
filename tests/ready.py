"""Processes that begin with the program imported: they fork from one process that has done it.

A new interpreter takes 0.4 s of CPU until a command begins, a fork some hundredths. The process from which
they fork has one thread, no client and nothing of a test. So a command here is as alone as one that a shell
starts. Tests of what a start itself does use `command_line.start`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from multiprocessing.connection import wait
from pathlib import Path
from typing import Final

FORKING: Final = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(
    ["hypothesis", "pytest", "offload.cli.main", "offload.cli.app", "offload_s3.store"]
    + [f"offload.cli.{name}" for name in ("copy", "delete", "encryption", "sweep", "sync", "trim")]
)


class ReadyCommand:
    """A command line in such a process, with what tests use of `subprocess.Popen`.

    If `dies_at` is given, SIGKILL ends it before that call to the file system below `folder`; 0 is never.
    """

    def __init__(self, *words: object, folder: Path | None = None, dies_at: int = 0) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="offload-command-")
        self._outputs = [Path(self._scratch.name, name) for name in ("stdout", "stderr")]
        self._lock = threading.Lock()
        self._process = FORKING.Process(
            target=_live,
            args=([*map(str, words)], self._outputs, {**os.environ}, os.getcwd(), folder, dies_at),
        )
        self._process.start()

    @property
    def returncode(self) -> int | None:
        """The exit code, or the signal that ended it as a negative number; None while it runs."""
        with self._lock:  # the system reports the end of a process once, and another thread may ask
            return self._process.exitcode

    def poll(self) -> int | None:
        """Return `returncode`."""
        return self.returncode

    def kill(self) -> None:
        """Send SIGKILL."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGKILL)

    @property
    def pid(self) -> int:
        """The number of the process."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def stderr(self) -> str:
        """The text that it has written to stderr so far."""
        return self._outputs[1].read_text() if self._outputs[1].exists() else ""

    def terminate(self) -> None:
        """Send SIGTERM."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGTERM)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until it has ended. Raises `subprocess.TimeoutExpired`."""
        if not wait([self._process.sentinel], timeout):
            raise subprocess.TimeoutExpired("offload", timeout or 0)

    def communicate(self, *, timeout: float) -> tuple[bytes, bytes]:
        """Wait until it has ended. Return stdout and stderr. Raises `subprocess.TimeoutExpired`."""
        self.wait(timeout)
        stdout, stderr = (path.read_bytes() if path.exists() else b"" for path in self._outputs)
        self._scratch.cleanup()
        return stdout, stderr


def _live(
    words: list[str], outputs: list[Path], env: dict[str, str], cwd: str, folder: Path | None, dies_at: int
) -> None:
    from faults.dying import calls_told

    from offload.cli.main import main

    for descriptor, path in enumerate(outputs, start=1):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - open as long as the process
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115 - as above
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    warnings.simplefilter("error")
    sys.argv = ["offload", *words]
    if folder is None:
        main()
        return
    with calls_told(str(folder), dies_at):
        main()
