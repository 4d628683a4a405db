"""Bugs of newcomers: backends with one mistake each, by people who had not read the suite's clauses.

Five sets were written blind, at different times. Of bugs of one clause and one mechanism one stays, here or
in `offload_conformance.bugs`. `newcomers.fourth` and `newcomers.fifth` run the last two sets, and have odd
but correct backends beside them.

`registry.bug` registers one, with a proof that shows it without the suite. `everything` imports them all, and
`run` runs the real command on one.
"""

from __future__ import annotations

import sys
from pathlib import Path

# The SQLite store and ledgers are examples, and nothing installs them here.
for example in ("offload-sqlite", "offload-sqlite-ledger"):
    sys.path.append(str(Path(__file__).parents[2] / "examples" / example))
