"""The fifth set, written blind from the contracts. `newcomers.fourth` says how to prove and to run it."""

from __future__ import annotations

import sys

from newcomers.fourth import main

if __name__ == "__main__":
    sys.exit(main("fifth"))
