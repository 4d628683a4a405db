"""Where a test leaves what it found of a capability, for the report of the black box."""

from __future__ import annotations

from typing import Final

import pytest

FINDINGS: Final = pytest.StashKey[dict[str, dict[str, object]]]()
"""In the stash of a test: by capability, what is said, declared, found and seen."""
