"""The recipes of `examples/metadata`, found by this process and its children as an installed plugin is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kit.installed import declare


@contextmanager
def recipes_installed(folder: Path) -> Iterator[Path]:
    """Put a distribution with the entry point of the recipes on the path. Yield its folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(declare(folder, "offload-metadata", {"metadata": "offload_metadata.plugin"}))
        yield folder
