"""Distributions that are installed for one test: modules in a folder, and the files that pip would write."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest


def declare(folder: Path, name: str, points: Mapping[str, str], *, version: str = "1.0") -> Path:
    """Declare that the folder has a distribution with these entry points. Return the folder."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = "".join(f"{point} = {module}\n" for point, module in points.items())
    (info / "entry_points.txt").write_text(f"[offload]\n{lines}")
    return folder


@contextmanager
def on_path(folder: Path) -> Iterator[Path]:
    """Import from the folder. Afterwards forget its modules: the next test has others of the same names."""
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield folder
    for name in set(sys.modules) - before:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
