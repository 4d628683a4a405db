"""`offload new-backend` writes a distribution that lacks only code, and overwrites nothing."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from campaign import few
from command_line import contents, offload
from strangers.suites import environment, outcomes, run

KINDS = ("store", "offloader")


@few("the skeleton of a store, clause by clause; make test has that of an offloader", 2, start=1)
@pytest.mark.parametrize("kind", KINDS)
def test_each_clause_fails_because_of_the_missing_code(tmp_path: Path, kind: str) -> None:
    """Only capabilities, the URL and uploads pass. The skeleton has the first two, and declares uploads
    absent.
    """
    assert offload("new-backend", "attic", "--kind", kind, "--into", tmp_path).code == 0
    folder = tmp_path / "offload-attic"

    found = outcomes(folder, paths=[folder])

    failed = {name: error for name, error in found.items() if error}
    assert {name: error for name, error in failed.items() if "is not written yet" not in error} == {}
    assert len(failed) > 40
    passed = {name.partition("::")[2].partition("[")[0] for name in found.keys() - failed.keys()}
    assert {
        name for name in passed if not re.search("capabilities|url|upload|parts?_|checksum|unreachable", name)
    } == set()


@pytest.mark.parametrize("kind", KINDS)
def test_the_skeleton_is_linted_and_its_test_is_short(tmp_path: Path, kind: str) -> None:
    offload("new-backend", "my-attic2", "--kind", kind, "--into", tmp_path)
    folder = tmp_path / "offload-my-attic2"

    env = environment(folder)
    ruff = (sys.executable, "-m", "ruff")
    options = ("--isolated", "--line-length=110")
    run(*ruff, "check", *options, "--select=E,F,UP,B,RUF", folder, cwd=folder, env=env)
    run(*ruff, "format", *options, "--check", folder, cwd=folder, env=env)
    assert len((folder / "tests/test_conformance.py").read_text().splitlines()) < 30


NO_NAMES = "|.|..|../x|a/b|/etc|-x-|a--b|A|é|1a|a b|a\nb|$name|a_b|0; import os"


@pytest.mark.parametrize("name", ["a" * 41, *NO_NAMES.split("|")])
def test_a_name_that_cannot_be_a_distribution_is_refused(tmp_path: Path, name: str) -> None:
    ran = offload("new-backend", "--into", tmp_path, "--", name)

    assert ran.code == 2
    assert "is no name for a backend" in ran.error
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("name", ["s3", "file", "rabbitmq", "conformance"])
def test_a_name_that_is_taken_is_refused(tmp_path: Path, name: str) -> None:
    ran = offload("new-backend", name, "--into", tmp_path)

    assert (ran.code, "is taken" in ran.error) == (1, True)
    assert contents(tmp_path) == {}


def test_nothing_that_exists_is_overwritten(tmp_path: Path) -> None:
    """A folder, a file and a link without a target stay unchanged."""
    (tmp_path / "offload-folder").mkdir()
    (tmp_path / "offload-folder" / "README.md").write_text("mine")
    (tmp_path / "offload-scroll").write_text("mine")
    (tmp_path / "offload-link").symlink_to(tmp_path / "nowhere")
    before = contents(tmp_path)

    for name in ("folder", "scroll", "link"):
        ran = offload("new-backend", name, "--into", tmp_path)
        assert (ran.code, "exists; nothing was written" in ran.error) == (1, True)

    assert contents(tmp_path) == before
    assert not (tmp_path / "nowhere").exists()


def test_the_folder_to_write_into_must_exist(tmp_path: Path) -> None:
    ran = offload("new-backend", "attic", "--into", tmp_path / "none")

    assert (ran.code, "does not exist; nothing was written" in ran.error) == (1, True)


def test_the_command_is_found_without_pytest() -> None:
    """Every `offload` lists the command, so it must be quick and need no extra."""
    script = (
        "import sys; from offload.opening.plugins import Plugins; Plugins.find(); "
        "print('pytest' in sys.modules)"
    )

    assert run(sys.executable, "-c", script, cwd=Path.cwd(), env=environment()) == "False\n"
