"""Bugs of newcomers: backends with one mistake each, by people who had not read the suite's clauses.

Two sets were written blind, at different times: 183, and 49 (`store_late_*`, `offloader_late_*`). Of a
third and a fourth set only the bugs are here that the suite missed at first, and that it was then widened to
catch (`store_third`, `offloader_third_*`, `offloader_fourth`). A few beside them, of the same kinds, show
that the kind is asked and not the case.

The fourth set (`fourth_*`) and the fifth (`fifth_*`) are kept whole too, with odd but correct backends.
`newcomers.fourth` and `newcomers.fifth` are their commands.

`registry.bug` registers one, with a proof that shows it without the suite. `everything` imports them all, and
`run` runs the real command on one.
"""

from __future__ import annotations

import sys
from pathlib import Path

# The SQLite store and ledgers are examples, and nothing installs them here.
for example in ("offload-sqlite", "offload-sqlite-ledger"):
    sys.path.append(str(Path(__file__).parents[2] / "examples" / example))
