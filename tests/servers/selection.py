"""Which servers a test runs on: as parameters of the fixture `running_server`."""

from __future__ import annotations

import os
from typing import Any

import pytest

from servers.catalogue import SERVERS

CAMPAIGN = bool(os.environ.get("OFFLOAD_CAMPAIGN"))


def servers_of(protocol: str, *, honours_create: bool = True) -> list[Any]:
    """Every server of the catalogue that speaks `protocol`, for `running_server`:

        @pytest.mark.parametrize("running_server", servers_of("s3"), indirect=True)

    Also those that are missing on this machine: the closing table says so.
    """
    chosen = [each for each in SERVERS if (each.protocol, each.honours_create) == (protocol, honours_create)]
    assert chosen, f"the catalogue has no server for {protocol}"
    return [pytest.param(each.name, id=each.name) for each in chosen]


def real_servers_of(protocol: str) -> list[Any]:
    """Those of `servers_of` that are no fakes, for what takes long; all of them in the campaign, or where
    none but fakes can be run here.
    """
    real = {each.name for each in SERVERS if each.kind != "fake" and each.missing() is None}
    chosen = servers_of(protocol)
    return chosen if CAMPAIGN else [each for each in chosen if each.id in real] or chosen


def real_servers() -> list[Any]:
    """`real_servers_of` each protocol."""
    protocols = dict.fromkeys(each.protocol for each in SERVERS if each.honours_create)
    return [each for protocol in protocols for each in real_servers_of(protocol)]
