"""Importing this makes the SQLite examples importable, which nothing installs here."""

from __future__ import annotations

import sys
from pathlib import Path

for example in ("offload-sqlite", "offload-sqlite-ledger"):
    sys.path.append(str(Path(__file__).parents[1] / "examples" / example))
