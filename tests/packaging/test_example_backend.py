"""A stranger's backend, installed as its own distribution, works wherever a built-in one does.

The distribution is built and installed once, without network, into a folder of its own, and used
by other processes that have this folder on their path.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from osiris_data import DATA, body_of

pytestmark = pytest.mark.xdist_group("example backend")  # installed once

EXAMPLE = Path(__file__).parents[2] / "examples" / "offload-sqlite"

Python = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which pip put the distribution."""
    source = tmp_path_factory.mktemp("source") / "offload-sqlite"
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("__pycache__", "tests"))
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    offline = ["--no-index", "--disable-pip-version-check"]
    subprocess.run([*pip, *offline, "--target", str(target), str(source)], check=True, timeout=120)
    return target


@pytest.fixture
def python(installed: Path, tmp_path: Path) -> Python:
    """Runs Python in an empty folder, with the distribution on its path."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run


@pytest.fixture
def offload(python: Python) -> Callable[..., str]:
    """Runs the command line and returns what it printed."""

    def run(*arguments: object) -> str:
        done = python("-c", "from offload.cli.main import main; main()", *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


def test_it_keeps_the_contracts(python: Python) -> None:
    """Its own tests, which are the conformance classes, pass over what was installed."""
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", EXAMPLE / "tests")

    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout


def test_its_proof_is_short() -> None:
    """What a stranger writes to be held against both contracts."""
    lines = (EXAMPLE / "tests" / "test_conformance.py").read_text().splitlines()

    assert len(lines) < 30


def test_finding_it_imports_no_database(python: Python) -> None:
    script = (
        "import sys; from offload.plugins import Plugins; Plugins.find(); print('sqlite3' in sys.modules)"
    )

    assert python("-c", script).stdout == "False\n"


def test_it_is_listed(offload: Callable[..., str]) -> None:
    listed = json.loads(offload("plugins", "--json"))["plugins"]

    [sqlite] = [plugin for plugin in listed if plugin["plugin"] == "sqlite"]
    assert (sqlite["distribution"], sqlite["version"], sqlite["error"]) == ("offload-sqlite", "0.1.0", None)
    [declared] = sqlite["declares"]
    assert (declared["kind"], declared["name"], declared["schemes"]) == ("backend", "sqlite", ["sqlite"])
    assert declared["capabilities"]["atomic_create"] is True
    assert declared["capabilities"]["put_size_bytes_max"] == 1_000_000_000
    assert {"ledger-offload"} == {p["distribution"] for p in listed if p["plugin"] in ("posix", "rabbitmq")}
    assert {version("ledger-offload")} == {p["version"] for p in listed if p["plugin"] == "posix"}


def test_it_is_listed_for_people(offload: Callable[..., str]) -> None:
    [line] = [line for line in offload("plugins").splitlines() if line.startswith("sqlite")]

    assert line.split("\t")[:5] == ["sqlite", "offload-sqlite", "0.1.0", "backend sqlite", "sqlite://"]
    assert "atomic_create" in line


def test_a_brokers_data_goes_in_and_comes_out(offload: Callable[..., str], tmp_path: Path) -> None:
    """RabbitMQ's files are synced into the SQLite file, verified there and read back."""
    shutil.copytree(DATA / "tiny", tmp_path / "broker" / "tiny")
    source, tier = f"rabbitmq://{tmp_path / 'broker'}", f"sqlite://{tmp_path / 'tier.db'}"

    first = json.loads(offload("sync", source, tier, "--json"))
    second = json.loads(offload("sync", source, tier, "--json"))

    assert (first["stream"], first["messages"], first["next_offset"]) == ("tiny", 10, 10)
    assert (first["uploaded_bytes"] > 0, second["uploaded_bytes"]) == (True, 0)
    bodies = offload("read", tier, "tiny", "--decode", "amqp", "--format", "body")
    assert bodies.splitlines() == [body_of(n).decode() for n in range(10)]
    offload("verify", tier)
