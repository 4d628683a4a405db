"""`offload demo`: it shows the idea in a few seconds to somebody who has never seen it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command_line import bodies, contents, finish, formula, offload, start, verify
from offload_rabbitmq import sample_path


def test_the_demo_explains_itself_within_ten_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds of processor time: other work of the machine does not count."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = os.times()

    ran = finish(start("demo"))

    after = os.times()
    taken = after.children_user + after.children_system - before.children_user - before.children_system
    assert 0 < taken < 10
    assert (ran.code, ran.stderr) == (0, "")
    for number in range(1, 7):
        assert f"\n{number}. " in ran.text
    for said in (
        "copy it to a tier",
        "10 messages in offsets [0, 10)",
        "reads back from any offset",
        "from any time",
        "offset 5 at 20",
        "0 damaged",
        "One bit of a fragment flips",
        "found: stream ",
        "offload sync rabbitmq://",
    ):
        assert said in ran.text, said


def test_the_demo_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("home", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "home")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    before = contents(sample_path())

    assert finish(start("demo")).code == 0

    assert not list((tmp_path / "home").iterdir())
    assert not list((tmp_path / "temporary").iterdir())
    assert contents(sample_path()) == before


def test_the_demo_keeps_a_sound_tier_in_a_given_folder(tmp_path: Path) -> None:
    ran = offload("demo", tmp_path / "tier")

    assert ran.code == 0
    assert str(tmp_path / "tier") in ran.text
    assert verify(tmp_path / "tier") == (0, verify(tmp_path / "tier")[1])
    [row] = offload("ls", tmp_path / "tier", "--json").objects
    assert bodies(tmp_path / "tier", row["stream"]) == formula(10)


def test_the_demo_refuses_a_folder_that_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("years of work")
    offload("demo", tmp_path / "tier")
    for folder in (tmp_path / "home", tmp_path / "tier"):
        before = contents(folder)

        ran = offload("demo", folder)

        assert (ran.code, ran.stdout) == (1, b"")
        assert ran.error == f"offload: {folder} is not empty; name a new folder for the demo"
        assert contents(folder) == before


def test_the_demo_refuses_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("hello")

    ran = offload("demo", tmp_path / "file")

    assert (ran.code, ran.stdout) == (1, b"")
    assert str(tmp_path / "file") in ran.error
