"""The commands of this checkout are found, also where the installation is older than its `pyproject.toml`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conformance_box.installed import Site


@pytest.fixture(scope="package", autouse=True)
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Its entry points, before all that is installed; `suites.environment` hands them on."""
    folder = tmp_path_factory.mktemp("checkout")
    Site(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield
