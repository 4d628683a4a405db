"""Where the `offload` process begins and how it ends.

Exit codes: 0 fine; 1 the operation failed, found damage, or names something that is not there; 2
what the arguments alone show to be wrong; 130 after Ctrl-C. A closed pipe ends quietly with 0. An
error is one line on stderr, never a traceback unless `--debug` is given.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line and end the process."""
    try:
        code = _run(sys.argv[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("stopped; what is committed is safe, run again to go on", file=sys.stderr)
        code = 130
    except BrokenPipeError:
        # Whoever read us has enough. Python flushes stdout once more at exit; let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    from offload.cli.app import run  # so that Ctrl-C during imports ends as it does later

    return run(arguments)
