"""The recipes of `examples/metadata`, found by this process and its children as an installed plugin is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

POINT = "[offload]\nmetadata = offload_metadata.plugin\n"


@contextmanager
def recipes_installed(folder: Path) -> Iterator[Path]:
    """Put a distribution with the entry point of the recipes on the path. Yield its folder."""
    info = folder / "offload_metadata-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: offload-metadata\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(POINT)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder
