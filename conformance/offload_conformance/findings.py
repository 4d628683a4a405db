"""The stash keys under which a test leaves its findings and its limits, for the black box's report."""

from __future__ import annotations

from typing import Final

import pytest

FINDINGS: Final = pytest.StashKey[dict[str, dict[str, object]]]()
"""In the stash of a test, by capability: what is said, declared, found and seen."""

NOTE: Final = pytest.StashKey[str]()
"""In the stash of a test: what limited it, if an option can change that."""
