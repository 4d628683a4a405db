"""Tests that run on each server and on a folder too: `EVERYWHERE` of the rig, for `running_server`."""

from __future__ import annotations

import pytest
from servers import Running
from servers.session import Session


@pytest.fixture(scope="session")
def running_server(request: pytest.FixtureRequest, running_servers: Session) -> Running | None:
    """The server of this name; None stands for a folder."""
    return None if request.param is None else running_servers.running(request.param)
