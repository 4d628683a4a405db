"""A plugin of pytest for authors of backends: assertions of the clauses say what they expected and found.

Pytest rewrites assertions while a module is imported, so the clauses are registered before anything imports
them. The entry point `pytest11` does that in an author's tests, `-p` in `offload conformance`. A wheel lists
its files and would be rewritten without this module; an editable installation lists none.
"""

from __future__ import annotations

from typing import Final

import pytest

REWRITTEN: Final = ("contenders", "end_to_end", "offloader", "opened", "protocol", "race", "store")
"""The modules and packages of this package whose assertions are about a backend."""

pytest.register_assert_rewrite(*(f"offload_conformance.{name}" for name in REWRITTEN))
