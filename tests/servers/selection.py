"""The servers that a test runs on, as parameters of the fixture `running_server`.

`make test` asks one server of each protocol; the campaign asks every server.
"""

from __future__ import annotations

from typing import Any

import pytest
from campaign import campaign

from servers.catalogue import SERVERS, Server


def servers_of(protocol: str, *, honours_create: bool = True, chosen: str | None = None) -> list[Any]:
    """Return every server of the catalogue that speaks `protocol`, for `running_server`:

        @pytest.mark.parametrize("running_server", servers_of("s3"), indirect=True)

    All but one are marked for the campaign: `chosen` is the name of that one, `one_server_of` by default. The
    tests of a server that is missing on this machine are skipped, and the closing table says so.
    """
    chosen = chosen or one_server_of(protocol, honours_create=honours_create)
    return [
        pytest.param(each.name, id=each.name, marks=() if each.name == chosen else _left(each))
        for each in _speakers(protocol, honours_create)
    ]


def one_server_of(protocol: str, *, honours_create: bool = True) -> str:
    """Return the name of the server that `make test` asks.

    A fake is asked only if the catalogue has nothing better, a missing server only if none is installed. Of
    the rest, the catalogue's first is asked.
    """
    speakers = _speakers(protocol, honours_create)
    return min(speakers, key=lambda each: (each.kind == "fake", each.missing() is not None)).name


def servers() -> list[Any]:
    """Return `servers_of` each protocol."""
    protocols = dict.fromkeys(each.protocol for each in SERVERS if each.honours_create)
    return [each for protocol in protocols for each in servers_of(protocol)]


def servers_at_risk() -> list[Any]:
    """Return `servers`, for long tests of faults, races and kills: `make test` asks the S3 server alone.

    What these tests need of a store, the conformance suite asks of a server of each protocol.
    """
    chosen = one_server_of("s3")
    left = campaign("faults, races and kills: make test has them on one S3 server and on a folder")
    return [
        each if each.id == chosen else pytest.param(*each.values, id=each.id, marks=left)
        for each in servers()
    ]


def _speakers(protocol: str, honours_create: bool) -> list[Server]:
    speakers = [
        each for each in SERVERS if (each.protocol, each.honours_create) == (protocol, honours_create)
    ]
    assert speakers, f"the catalogue has no server for {protocol}"
    return speakers


def _left(server: Server) -> pytest.MarkDecorator:
    return campaign(f"{server.name}: make test asks another {server.protocol} server")
