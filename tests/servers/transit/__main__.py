"""`python -m servers.transit`: build Vault's transit engine for the tests of key services."""

from __future__ import annotations

from servers.transit import RECIPE

RECIPE.install()
print(f"in {RECIPE.folder}")
