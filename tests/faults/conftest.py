"""The fixture of tests that run on each server and on a folder (`EVERYWHERE` of the rig)."""

from __future__ import annotations

import pytest
from servers import Running
from servers.session import Session


@pytest.fixture(scope="session")
def running_server(request: pytest.FixtureRequest, running_servers: Session) -> Running | None:
    """Return the server of this name, or None for a folder."""
    return None if request.param is None else running_servers.running(request.param)
