"""Tests of folders in a tier's place that this process may not read: `lost+found`, and a stranger's."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from command_line import PROGRAM, SOURCE, Ran, finish

TINY: Final = f"{SOURCE}/tiny"


def not_root() -> Sequence[str]:
    """Return the beginning of a command whose process cannot read a folder of mode 0."""
    return ("unshare", "--user", "--map-user=1000", "--") if os.geteuid() == 0 else ()


def offload(*arguments: object) -> Ran:
    command = [*not_root(), *PROGRAM, *map(str, arguments)]
    return finish(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE))


def locked(folder: Path) -> Path:
    folder.mkdir(parents=True, mode=0)
    return folder


def test_the_lost_and_found_of_a_volume_is_passed_over(tmp_path: Path) -> None:
    """The tier is the mount point of an ext4 volume, and the user is not root."""
    tier = tmp_path / "tier"
    tier.mkdir()
    locked(tier / "lost+found")

    assert offload("sync", TINY, tier).code == 0
    for command in ("ls", "verify"):
        ran = offload(command, tier)
        assert ran.code == 0, ran.stderr


def test_a_strangers_folder_is_named_and_hides_no_stream(tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    assert offload("sync", TINY, tier).code == 0
    secret = locked(tier / "secret")

    listed, read, verified = (
        offload("ls", tier),
        offload("read", tier, "tiny", "--limit", 1),
        offload("verify", tier),
    )

    assert (listed.code, read.code, verified.code) == (1, 0, 1)
    assert b"tiny" in listed.stdout
    for ran in (listed, verified):
        assert f"{secret}" in ran.stderr
        assert "Permission denied; grant access to it" in ran.stderr


def test_no_tier_is_made_beside_a_folder_that_cannot_be_read(tmp_path: Path) -> None:
    secret = locked(tmp_path / "tier" / "secret")

    ran = offload("sync", TINY, tmp_path / "tier")

    assert ran.code == 1
    assert f"listing {secret}: Permission denied" in ran.stderr
    assert os.listdir(tmp_path / "tier") == ["secret"]
