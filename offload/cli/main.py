"""The entry point of the `offload` process, and its exit codes.

    0      success; also if the reader of stdout closed the pipe
    1      the operation failed, found damage, or names something that does not exist
    2      the arguments alone are wrong
    3      a verify found no damage, and could not check everything: the key service refuses keys
    130    Ctrl-C
    143    SIGTERM; only `offload run` ends with 0 after it, once it follows its streams

An error is one line on stderr. A traceback is printed only with `--debug`.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Run the command line and end the process."""
    _end_at_sigterm()  # before everything else: the imports below take a second, on a busy machine several
    if (
        not sys.stdout
    ):  # the parent process closed it: discard the output instead of failing at the first line
        nowhere = os.open(os.devnull, os.O_WRONLY)
        sys.stdout = open(nowhere, "w", closefd=False)  # noqa: SIM115 - open as long as the process lives
    try:
        # Imported here, so that Ctrl-C during imports ends the process like any later Ctrl-C.
        from offload.cli.app import run
        from offload.cli.kit.ending import ClosedPipe, Interrupted
    except KeyboardInterrupt:
        sys.exit(_stopped())
    try:
        code = run(sys.argv[1:])
        _ignore_ctrl_c()
    except (Interrupted, KeyboardInterrupt) as stop:
        _ignore_ctrl_c()
        code = _stopped(*stop.args)
    except ClosedPipe:
        code = 0
    _let_go_of_stdout()
    sys.exit(code)


def _end_at_sigterm() -> None:
    """Let SIGTERM end the process also if it is the first of a container.

    The kernel drops a signal for process 1 that has no handler, and nobody sends it again. Any other process
    keeps the kernel's own way, which waits for no step of Python. Nothing is lost either way: what is
    committed is safe, and the next process continues behind it.
    """
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(128 + number))


def _ignore_ctrl_c() -> None:
    """Ignore Ctrl-C from here on: only a last line and the interpreter's exit are left to do."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _let_go_of_stdout() -> None:
    """Flush stdout. If that fails, discard the rest: Python flushes once more at exit and must not fail."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _stopped(so_far: str = "what is committed is safe; run the same command again to continue") -> int:
    print(f"offload: stopped; {so_far}", file=sys.stderr)
    return 130
