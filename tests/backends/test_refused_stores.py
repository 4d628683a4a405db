"""Tests of stores that overwrite on create: they get no commit, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import bodies, keys, offload, sync
from osiris_data import DATA
from servers import Place, Running, servers_of

pytestmark = pytest.mark.parametrize("running_server", servers_of("gcs", honours_create=False), indirect=True)


@pytest.fixture
def place(running_server: Running) -> Place:
    return running_server.place()


def options_of(place: Place) -> list[str]:
    return [word for name, value in place.options.items() for word in ("-o", f"{name}={value}")]


def test_a_sync_ends_with_a_plain_error_and_writes_nothing(place: Place) -> None:
    place.put("of/somebody/else", b"kept")

    synced = offload("sync", f"rabbitmq://{DATA}/tiny", f"{place.url}/tier", *options_of(place))

    assert synced.code == 1
    assert synced.stdout == b""
    assert "cannot hold a tier: its create overwrites existing objects" in synced.error
    assert place.keys() == {"of/somebody/else"}
    assert place.get("of/somebody/else") == b"kept"


def test_every_stream_of_a_sync_is_refused_and_nothing_is_written(place: Place) -> None:
    synced = offload("sync", f"rabbitmq://{DATA}", place.url, *options_of(place), "--json")

    assert synced.code == 1
    assert place.keys() == set()


def test_a_tier_that_was_copied_there_can_be_read(place: Place, tmp_path: Path) -> None:
    """Only commits need create-if-absent. Reading does not probe the store, and writes nothing."""
    sync(DATA / "tiny", tmp_path)
    committed = {key: (tmp_path / key).read_bytes() for key in keys(tmp_path)}
    for key, data in committed.items():
        place.put(key, data)

    told = ("--decode", "amqp", "--format", "body")
    read = offload("read", place.url, "tiny", *options_of(place), *told)

    assert (read.code, read.stderr) == (0, "")
    assert read.stdout.split(b"\n")[:-1] == bodies(tmp_path, "tiny")
    assert place.keys() == set(committed)
