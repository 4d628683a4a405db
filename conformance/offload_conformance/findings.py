"""Where a test leaves what it found of a capability, and how much it asked, for the black box's report."""

from __future__ import annotations

from typing import Final

import pytest

FINDINGS: Final = pytest.StashKey[dict[str, dict[str, object]]]()
"""In the stash of a test: by capability, what is said, declared, found and seen."""

NOTE: Final = pytest.StashKey[str]()
"""In the stash of a test: how much was asked, if an option makes it more or less."""
