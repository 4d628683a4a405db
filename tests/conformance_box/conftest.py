"""The fixture `site`: distributions that are installed for one test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance_box.installed import Site
from kit.installed import on_path


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    folder = tmp_path / "site"
    folder.mkdir()
    with on_path(folder):
        yield Site(folder)
