"""183 bugs of newcomers: backends with one mistake each, by somebody who had not read the suite's clauses.

`registry.bug` registers one, with a proof that shows it without the suite. `everything` imports them all, and
`run` runs the real command on one.
"""

from __future__ import annotations

import sys
from pathlib import Path

# The SQLite store is an example, and nothing installs it here.
sys.path.append(str(Path(__file__).parents[2] / "examples" / "offload-sqlite"))
