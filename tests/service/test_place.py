"""Tests of the look at the place of a tier: what a person mends shows, and a tier's own work does not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from offload.service.place import look_at_place


def test_rights_and_room_show_and_what_is_written_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimpleNamespace(f_bavail=100, f_frsize=4096, f_favail=1000)
    monkeypatch.setattr("offload.service.place.os.statvfs", lambda folder: disk)
    (tmp_path / "orders" / "data").mkdir(parents=True)

    def seen(url: str = str(tmp_path)) -> object:
        return asyncio.run(look_at_place(url)("orders"))

    before = seen()
    (tmp_path / "orders" / "data" / "x.fragment").write_bytes(b"x")
    disk.f_bavail = 101
    assert seen() == seen(f"file://{tmp_path}") == before

    disk.f_bavail = 1000
    roomy = seen()
    (tmp_path / "orders" / "data").chmod(0o500)
    assert len({before, roomy, seen()}) == 3
    assert seen("s3://bucket/tier") is None


def test_a_folder_that_is_gone_shows_and_raises_nothing(tmp_path: Path) -> None:
    look = look_at_place(str(tmp_path / "tier"))
    before = asyncio.run(look("orders"))
    (tmp_path / "tier").mkdir()

    assert asyncio.run(look("orders")) != before
    assert asyncio.run(look_at_place(str(tmp_path / "tier"))("a\0b")) is not None
