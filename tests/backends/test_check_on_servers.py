"""Tests of `offload check` on every server: working features are reported, and each fault has its
sentence.
"""

from __future__ import annotations

import socket
from typing import Any

import pytest
from command_line import Ran, offload
from servers import Running, servers_of

HONEST = [each for protocol in ("s3", "gcs", "azure") for each in servers_of(protocol)]
WITH_USERS = [each for each in HONEST if each.id in ("rgw", "minio", "azurite")]
"""Servers that check credentials."""

WRONG_AZURE_KEY = "d3Jvbmc="


def checked(url: str, options: dict[str, Any], *more: str) -> Ran:
    given = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return offload("check", url, *given, *more)


def failures(ran: Ran) -> dict[str, str]:
    """Return the failures by the name of the trial."""
    findings = ran.document["stores"][0]["findings"]
    return {f["name"]: f["says"] for f in findings if f["verdict"] == "fails"}


@pytest.mark.parametrize("running_server", HONEST, indirect=True)
def test_everything_works_and_nothing_is_left(running_server: Running) -> None:
    place = running_server.place()

    ran = checked(f"{place.url}/tier", place.options, "--json")

    assert (ran.code, failures(ran)) == (0, {})
    assert ran.document["can"] == {"read": True, "write": True, "commit": True}
    assert ran.document["advice"]
    assert place.keys() == set()


@pytest.mark.parametrize("running_server", HONEST, indirect=True)
def test_check_reports_a_missing_bucket(running_server: Running) -> None:
    place = running_server.place()

    ran = checked(f"{place.url}-not", place.options, "--json")

    assert ran.code == 1
    assert "does not exist" in failures(ran)["list"]


@pytest.mark.parametrize("running_server", WITH_USERS, indirect=True)
def test_check_reports_a_wrong_secret(running_server: Running) -> None:
    place = running_server.place()
    options = dict(place.options)
    if "connection_string" in options:
        parts = dict(part.split("=", 1) for part in options["connection_string"].split(";") if part)
        parts["AccountKey"] = WRONG_AZURE_KEY
        options["connection_string"] = ";".join(f"{name}={value}" for name, value in parts.items())
    else:
        options["secret"] = "not-the-secret-at-all"

    ran = checked(place.url, options, "--json")

    assert ran.code == 1
    says = failures(ran)["list"]  # Azurite does not distinguish a wrong key from a missing permission
    assert "key" in says or "credentials are wrong" in says
    assert "not-the-secret" not in ran.text + ran.stderr
    assert WRONG_AZURE_KEY not in ran.text + ran.stderr


@pytest.mark.parametrize("running_server", WITH_USERS[:2], indirect=True)
def test_check_reports_an_unknown_key(running_server: Running) -> None:
    place = running_server.place()

    ran = checked(place.url, {**place.options, "key": "NOBODYSKEY"}, "--json")

    assert "the access key is not known" in failures(ran)["list"]


@pytest.mark.parametrize("running_server", HONEST, indirect=True)
def test_check_names_an_endpoint_that_does_not_answer(running_server: Running) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # the port is bound and not listening, so every connection is refused
        nowhere = f"127.0.0.1:{taken.getsockname()[1]}"
        place = running_server.place()
        there = running_server.endpoint.removeprefix("http://")
        options = {name: value.replace(there, nowhere) for name, value in place.options.items()}

        ran = checked(place.url, options, "--json")

    assert ran.code == 1
    assert nowhere in failures(ran)["list"]


@pytest.mark.parametrize("running_server", ["gcp-storage-emulator"], indirect=True)
def test_a_store_that_overwrites_may_hold_data_and_no_commits(running_server: Running) -> None:
    place = running_server.place()

    ran = checked(place.url, place.options, "--json")

    assert ran.code == 1
    assert "--commit-store" in failures(ran)["create"]
    assert ran.document["can"]["commit"] is False
