"""Which servers a test runs on: as parameters of the fixture `running_server`."""

from __future__ import annotations

from typing import Any

import pytest

from servers.catalogue import SERVERS


def servers_of(protocol: str, *, honours_create: bool = True) -> list[Any]:
    """Every server of the catalogue that speaks `protocol`, for `running_server`:

        @pytest.mark.parametrize("running_server", servers_of("s3"), indirect=True)

    Also those that are missing on this machine: the closing table says so.
    """
    chosen = [each for each in SERVERS if (each.protocol, each.honours_create) == (protocol, honours_create)]
    assert chosen, f"the catalogue has no server for {protocol}"
    return [pytest.param(each.name, id=each.name) for each in chosen]
