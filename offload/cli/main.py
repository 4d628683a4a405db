"""Where the `offload` process begins and how it ends.

Exit codes: 0 fine; 1 the operation failed, found damage, or names something that is not there; 2
what the arguments alone show to be wrong; 130 after Ctrl-C. A closed pipe ends quietly with 0. An
error is one line on stderr, never a traceback unless `--debug` is given.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Run the command line and end the process."""
    if not sys.stdout:  # closed by whoever started us: what is printed goes nowhere
        nowhere = os.open(os.devnull, os.O_WRONLY)
        sys.stdout = open(nowhere, "w", closefd=False)  # noqa: SIM115 - as long as the process lives
    try:
        from offload.cli.app import run  # here, so that Ctrl-C during imports ends as it does later
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


def _ignore_ctrl_c() -> None:
    """The work is done, or stopped; only a last word and the interpreter's end are left."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _let_go_of_stdout() -> None:
    """Python flushes stdout once more at exit; where that cannot succeed, it goes nowhere."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _stopped(so_far: str = "what is committed is safe, run again to go on") -> int:
    print(f"offload: stopped; {so_far}", file=sys.stderr)
    return 130
