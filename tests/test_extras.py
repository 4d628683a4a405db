"""Tests of the command that installs a missing extra: it fits the way in which the project was installed."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from offload.contracts.plugin import Backend
from offload.ground import extras
from offload.ground.errors import Misuse
from offload.ground.extras import install_command

REQUIREMENT = "some-tier[s3]"
PIP = f"{shlex.quote(sys.executable)} -m pip install"


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an environment without any installed distribution."""
    place = tmp_path / "an env"
    (place / "lib").mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(place))
    monkeypatch.syspath_prepend(str(place / "lib"))
    return place


def installed(prefix: Path, *, by: str = "pip", origin: Any = None) -> None:
    record = prefix / "lib" / "some_tier-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: some-tier\nVersion: 1.0\n")
    (record / "INSTALLER").write_text(f"{by}\n")
    if origin is not None:
        (record / "direct_url.json").write_text(origin if isinstance(origin, str) else json.dumps(origin))


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        (None, "'some-tier[s3]'"),
        ({"url": "file:///a/clone", "dir_info": {"editable": True}}, "-e '/a/clone[s3]'"),
        ({"url": "file:///a%20b/clone", "dir_info": {"editable": True}}, "-e '/a b/clone[s3]'"),
        ({"url": "file:///a/clone", "dir_info": {}}, "'/a/clone[s3]'"),
        (
            {"url": "https://host/x.git", "vcs_info": {"vcs": "git", "commit_id": "1234"}},
            "'some-tier[s3] @ git+https://host/x.git@1234'",
        ),
        (
            {
                "url": "https://host/x.git",
                "vcs_info": {"vcs": "git", "commit_id": "1234", "requested_revision": "main"},
            },
            "'some-tier[s3] @ git+https://host/x.git@main'",
        ),
        ({"url": "file:///a/x.whl", "archive_info": {}}, "'some-tier[s3] @ file:///a/x.whl'"),
        ("no JSON", "'some-tier[s3]'"),
        ("[]", "'some-tier[s3]'"),
    ],
)
def test_pip_installs_from_the_origin_of_the_distribution(prefix: Path, origin: Any, words: str) -> None:
    installed(prefix, origin=origin)

    assert install_command(REQUIREMENT) == f"{PIP} {words}"


def test_a_folder_without_installation_needs_the_index() -> None:
    assert install_command("never-heard-of[x]") == f"{PIP} 'never-heard-of[x]'"


@pytest.mark.parametrize(
    ("by", "record", "command"),
    [
        ("pip", "pipx_metadata.json", "pipx runpip 'an env' install 'some-tier[s3]'"),
        ("uv", "uv-receipt.toml", "uv tool install 'some-tier[s3]'"),
        ("uv", "", f"uv pip install --python {shlex.quote(sys.executable)} 'some-tier[s3]'"),
    ],
)
def test_the_program_that_installed_the_distribution_installs_its_extra(
    prefix: Path, by: str, record: str, command: str
) -> None:
    installed(prefix, by=by)
    if record:
        (prefix / record).touch()

    assert install_command(REQUIREMENT) == command


def test_an_environment_without_pip_uses_uv(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(prefix)
    monkeypatch.setattr(extras, "find_spec", lambda name: None)

    assert install_command(REQUIREMENT).startswith("uv pip install --python ")


def test_a_backend_without_its_extra_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "attic_store.py").write_text("import no_such_sdk\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    attic = Backend(name="attic", target="attic_store:open_url", needs="some-attic[sdk]")

    with pytest.raises(Misuse) as refused:
        attic.open("attic://x", {})

    assert str(refused.value) == (
        f"'attic' needs no_such_sdk, which is not installed: {install_command('some-attic[sdk]')}"
    )
