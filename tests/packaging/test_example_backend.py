"""Tests of a third-party backend: as a separate distribution it works wherever a built-in one does.

The distribution is built and installed once, without network, into a folder of its own, and used
by this and other processes that have this folder on their path.
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
from campaign import campaign
from command_line import offload as offload_here
from osiris_data import DATA, body_of

from offload.ground.loops import loops_in_use

EXAMPLE = Path(__file__).parents[2] / "examples" / "offload-sqlite"

Python = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder into which pip installed the distribution."""
    source = tmp_path_factory.mktemp("source") / "offload-sqlite"
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("__pycache__", "tests"))
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    offline = ["--no-index", "--disable-pip-version-check"]
    subprocess.run([*pip, *offline, "--target", str(target), str(source)], check=True, timeout=120)
    return target


@pytest.fixture
def python(installed: Path, tmp_path: Path) -> Python:
    """Return a function that runs Python in an empty folder, with the distribution on its path."""

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
def offload(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a function that runs the command line in this process and returns its output."""
    monkeypatch.syspath_prepend(installed)

    def run(*arguments: object) -> str:
        ran = offload_here(*arguments)
        assert (ran.code, ran.stderr) == (0, "")
        return ran.text

    return run


def test_the_backend_passes_some_of_its_own_tests(python: Python) -> None:
    """They run on the installed distribution: its tests of errors, and one clause of each contract."""
    wanted = ("-k", "TestErrors or absence_is_an_error or streams_come_out_as_they_went_in")

    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", EXAMPLE / "tests", *wanted)

    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout


@campaign("the whole suite over the installed example; the guide's store is asked those of stores")
def test_the_backend_keeps_the_contracts(python: Python) -> None:
    """Its own tests, the conformance classes, pass on the installed distribution."""
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", EXAMPLE / "tests")

    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout


def test_the_test_file_of_the_backend_is_short() -> None:
    """An author needs few lines to test a backend against both contracts."""
    lines = (EXAMPLE / "tests" / "test_conformance.py").read_text().splitlines()

    assert len(lines) < 30


def test_discovery_of_the_backend_imports_no_database(python: Python) -> None:
    script = (
        "import sys; from offload.opening.plugins import Plugins; Plugins.find(); "
        "print('sqlite3' in sys.modules)"
    )

    assert python("-c", script).stdout == "False\n"


def test_another_process_lists_the_backend_as_json(python: Python) -> None:
    done = python("-c", "from offload.cli.main import main; main()", "plugins", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    listed = json.loads(done.stdout)["plugins"]

    [sqlite] = [plugin for plugin in listed if plugin["plugin"] == "sqlite"]
    assert (sqlite["distribution"], sqlite["version"], sqlite["error"]) == ("offload-sqlite", "0.1.0", None)
    [declared] = sqlite["declares"]
    assert (declared["kind"], declared["name"], declared["schemes"]) == ("backend", "sqlite", ["sqlite"])
    assert declared["capabilities"]["atomic_create"] is True
    assert declared["capabilities"]["put_size_bytes_max"] == 1_000_000_000
    assert {"ledger-offload"} == {p["distribution"] for p in listed if p["plugin"] in ("posix", "rabbitmq")}
    assert {version("ledger-offload")} == {p["version"] for p in listed if p["plugin"] == "posix"}


def test_plugins_lists_the_backend_as_a_table(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(installed)

    ran = offload_here("plugins")

    assert (ran.code, ran.error) == (0, f"note: loops over records: {loops_in_use()}")
    [line] = [line for line in ran.lines if line.startswith("sqlite")]
    assert line.split("\t")[:5] == ["sqlite", "offload-sqlite", "0.1.0", "backend sqlite", "sqlite://"]
    assert "atomic_create" in line


def test_data_of_a_broker_is_synced_and_read_back(offload: Callable[..., str], tmp_path: Path) -> None:
    """RabbitMQ files are synced into the SQLite file, verified there and read back."""
    shutil.copytree(DATA / "tiny", tmp_path / "broker" / "tiny")
    source, tier = f"rabbitmq://{tmp_path / 'broker'}", f"sqlite://{tmp_path / 'tier.db'}"

    first = json.loads(offload("sync", source, tier, "--json"))
    second = json.loads(offload("sync", source, tier, "--json"))

    assert (first["stream"], first["messages"], first["next_offset"]) == ("tiny", 10, 10)
    assert (first["uploaded_bytes"] > 0, second["uploaded_bytes"]) == (True, 0)
    bodies = offload("read", tier, "tiny", "--decode", "amqp", "--format", "body")
    assert bodies.splitlines() == [body_of(n).decode() for n in range(10)]
    offload("verify", tier)
