"""The fixtures of tests on each server and on a folder (`EVERYWHERE` of the rig), plain or over TLS."""

from __future__ import annotations

from pathlib import Path

import pytest
from certificates import certificate
from servers import Running
from servers.proxy_tls import Tls
from servers.session import Session


@pytest.fixture(scope="session")
def running_server(request: pytest.FixtureRequest, running_servers: Session) -> Running | None:
    """Return the server of this name, or None for a folder."""
    return None if request.param is None else running_servers.running(request.param)


@pytest.fixture
def tls(request: pytest.FixtureRequest, tmp_path: Path) -> Tls | None:
    """Return the TLS of a proxy, or None if the test's parameter is `plain`."""
    if getattr(request, "param", "TLS") == "plain":
        return None
    made = certificate(tmp_path)
    return Tls(made, trusted=made.path)
