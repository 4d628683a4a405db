"""The fixture of the contract suite: each key service in turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from campaign import campaign
from key_services import rigs
from key_services.rigs import Rig
from servers.session import Session

BREAKABLE = {
    "awskms-moto": rigs.aws,
    "gcpkms-imitation": rigs.google,
    "azurekeyvault-imitation": rigs.azure,
    "vault-imitation": rigs.vault,
}
EVERY = {"keyfile": rigs.folder, **BREAKABLE, "vault-engine": rigs.engine}
"""The engine of Vault takes minutes to build."""

LEFT = campaign("vault-engine: make test asks an imitation of Vault's transit engine")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes `rig` on every service, and one that takes `breakable` on those we can break."""
    for name, table in (("rig", EVERY), ("breakable", BREAKABLE)):
        if name in metafunc.fixturenames:
            each = [
                pytest.param(made, id=id_, marks=LEFT if id_ == "vault-engine" else ())
                for id_, made in table.items()
            ]
            metafunc.parametrize(name, each, indirect=True)


@pytest.fixture
def rig(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    running_servers: Session,
) -> Iterator[Rig]:
    with request.param(tmp_path, monkeypatch, running_servers) as made:
        yield made


breakable = rig
