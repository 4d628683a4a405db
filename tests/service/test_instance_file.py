"""Tests of the file of an identity: who holds it, what makes it, and what a copy of it is."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path
from uuid import uuid4

import pytest

from offload.ground.env import Env
from offload.ground.errors import Conflict
from offload.service import instance_file
from offload.service.instance_file import held_instance, instance_path


def tag_of(path: Path) -> bytes:
    with held_instance(path) as instance:
        return instance.tag


def test_the_next_holder_knows_the_writers_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "run.toml.instance"
    with held_instance(path) as before:
        writer = before.fresh_writer(uuid4())

    with held_instance(path) as after:
        assert after.is_of_another(writer)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_second_holder_is_refused_until_the_first_one_ends(tmp_path: Path) -> None:
    path = tmp_path / "run.toml.instance"
    with held_instance(path), pytest.raises(Conflict, match=r"run.toml.instance runs already: end it"):
        tag_of(path)

    tag_of(path)


def test_a_file_that_was_replaced_while_its_lock_was_waited_for_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise two processes hold locks of two files with one name."""
    path = tmp_path / "run.toml.instance"
    path.write_text("old")
    locked, flock = list[int](), instance_file.fcntl.flock

    def replaced(descriptor: int, how: int) -> None:
        if not locked:
            path.rename(tmp_path / "away")
        locked.append(os.fstat(descriptor).st_ino)
        flock(descriptor, how)

    monkeypatch.setattr(instance_file.fcntl, "flock", replaced)

    with held_instance(path):
        assert locked[-1] == path.stat().st_ino
    assert path.read_text() != "old"


@pytest.mark.parametrize("text", [b"", b"\0" * 33, b"\n"])
def test_a_file_that_a_power_cut_left_without_its_text_gets_one(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "run.toml.instance"
    path.write_bytes(text)

    assert tag_of(path) == tag_of(path)
    assert len(path.read_bytes().strip(b"\0\n")) == 32


def test_the_text_is_a_secret_of_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "run.toml.instance"

    with held_instance(path, env=Env(secret=lambda size_bytes: b"\x07" * size_bytes)):
        assert path.read_bytes() == b"07" * 16 + b"\n"


class TestACopy:
    """Each copy is another identity, so that two processes do not believe each other dead."""

    def test_another_place_of_the_same_text_is_another_identity(self, tmp_path: Path) -> None:
        first, copy = tmp_path / "first", tmp_path / "copy"
        tag = tag_of(first)
        shutil.copy(first, copy)
        assert tag_of(copy) != tag

        shutil.copy(first, tmp_path / "third")
        (tmp_path / "third").replace(first)  # the same path and text, and another inode
        assert tag_of(first) != tag

    def test_another_path_to_the_same_inode_is_another_identity(self, tmp_path: Path) -> None:
        tag = tag_of(tmp_path / "first")
        (tmp_path / "first").rename(tmp_path / "second")

        assert tag_of(tmp_path / "second") != tag

    @pytest.mark.parametrize("fact", ["its id", "its name", "no id"])
    def test_the_same_disk_in_another_machine_is_another_identity(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fact: str
    ) -> None:
        (tmp_path / "id").write_text("4a7b\n")
        monkeypatch.setattr(instance_file, "MACHINE_IDS", (tmp_path / "absent", tmp_path / "id"))
        tag = tag_of(tmp_path / "instance")

        if fact == "its name":
            monkeypatch.setattr(socket, "gethostname", lambda: "another")
        elif fact == "its id":
            (tmp_path / "id").write_text("4a7c\n")
        else:
            (tmp_path / "id").unlink()

        assert tag_of(tmp_path / "instance") != tag


@pytest.mark.parametrize(
    ("given", "config", "state", "place"),
    [
        (None, "/etc/run.toml", "", "/etc/run.toml.instance"),
        (None, "run.toml", "", "run.toml.instance"),
        (None, "/etc/run.toml", "/var/lib/offload:/var/lib/other", "/var/lib/offload/run.toml.instance"),
        ("/state/me", "/etc/run.toml", "/var/lib/offload", "/state/me"),
        ("me", "/etc/run.toml", "", "/etc/me"),
        ("me", None, "", "me"),
        ("off", "/etc/run.toml", "/var/lib/offload", None),
        (None, None, "/var/lib/offload", None),
    ],
)
def test_its_place(given: str | None, config: str | None, state: str, place: str | None) -> None:
    """It is what is given, or else in the folder of the service manager, or else beside the configuration."""
    found = instance_path(given, None if config is None else Path(config), {"STATE_DIRECTORY": state})

    assert found == (None if place is None else Path(place))
