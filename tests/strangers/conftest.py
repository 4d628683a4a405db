"""The entry points of this checkout, even if the installation is older than its `pyproject.toml`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conformance_box.installed import Site


@pytest.fixture(scope="package", autouse=True)
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Put the entry points of this checkout before all installed ones.

    `suites.environment` passes them on.
    """
    folder = tmp_path_factory.mktemp("checkout")
    Site(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield
