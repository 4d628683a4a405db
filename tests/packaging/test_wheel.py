"""Tests of the wheel as a user gets it: built, and installed in an empty environment."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

import pytest
from fresh_loops import library
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
UNWANTED = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE"}
"""Variables with which these processes would find this checkout, or compile everything at each start."""

LOOPS = "offload/ground/_loops.so"
BACKENDS = [folder.name for folder in (ROOT / "backends").glob("offload_*")]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheel and the source distribution of this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT))
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the `bin` of a fresh virtual environment that holds the wheel and its dependencies.

    The dependencies are those of this environment, by links, because pip takes long to unpack them. It checks
    that they are complete and of versions that the wheel allows.
    """
    folder = tmp_path_factory.mktemp("clean")
    python = folder / "bin" / "python"
    _run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    pip = (sys.executable, "-m", "pip", "--python", str(python))
    _run(*pip, "install", "--quiet", "--no-compile", "--no-deps", "--no-index", str(wheel))
    [site] = folder.glob("lib/python*/site-packages")
    [installed] = (each for each in distributions(path=[str(site)]) if each.name == "ledger-offload")
    for name in sorted(_dependencies(installed)):
        _link(distribution(name), site)
    _run(*pip, "check")
    return folder / "bin"


def _dependencies(of: Distribution) -> set[str]:
    """Return the names of all distributions that this one needs without any extra, and those need."""
    found, todo = set[str](), [of]
    while todo:
        for text in todo.pop().requires or ():
            wanted = Requirement(text)
            asked = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
            if asked and wanted.name not in found:
                assert not wanted.extras, text
                found.add(wanted.name)
                todo.append(distribution(wanted.name))
    return found


def _link(installed: Distribution, site: Path) -> None:
    """Make the packages and modules of a distribution importable from `site`."""
    tops = {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}
    assert tops, installed.name
    for top in tops:
        (site / top).symlink_to(installed.locate_file(top))


def test_a_wheel_for_a_platform_has_the_compiled_loops_and_the_other_one_has_not(
    wheel: Path, tmp_path: Path
) -> None:
    library()  # fails or skips without a compiler
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--wheel",
        "--outdir",
        str(tmp_path),
        str(ROOT),
    ]
    subprocess.run(
        command, env=os.environ | {"OFFLOAD_LOOPS_TARGET": "native"}, check=True, capture_output=True
    )
    [native] = tmp_path.glob("*.whl")

    used = [_loops_of(each, tmp_path / str(number)) for number, each in enumerate((native, wheel))]

    assert used == ["compiled", "NumPy: this installation has no compiled loops"]
    assert native.name.split("-")[2:4] == ["py3", "none"]
    assert not native.name.endswith("-any.whl")
    assert wheel.name.endswith("py3-none-any.whl")


def _loops_of(wheel: Path, folder: Path) -> str:
    """Return which loops the unpacked wheel uses."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    code = "from offload.ground.loops import loops_in_use; print(loops_in_use())"
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
    ).stdout.strip()


def test_the_wheel_takes_no_generic_names(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}

    packages = {top for top in tops if not top.endswith(".dist-info")}

    assert packages == {
        "offload",
        *BACKENDS,
        "offload_conformance",
        "offload_keys",
        "offload_mqtt",
        "offload_pulsar",
        "offload_queue",
        "offload_rabbitmq",
        "offload_rabbitmq_s3",
        "offload_rocketmq",
        "offload_spark",
        "pyspark_offload",
    }


def test_the_wheel_passes_check_wheel_contents(wheel: Path) -> None:
    _run(sys.executable, "-m", "check_wheel_contents", "--config", str(ROOT / "pyproject.toml"), str(wheel))


def test_every_file_of_the_packages_is_in_the_wheel(wheel: Path) -> None:
    """Also the sample data and the markers of typed packages: hatchling omits files that git ignores.

    Of these, the compiled loops must stay out: the wheel is for all platforms.
    """
    plugins = "mqtt", "pulsar", "queue", "rabbitmq", "rabbitmq_s3", "rocketmq"
    folders = {"offload": ROOT} | dict.fromkeys((f"offload_{name}" for name in plugins), ROOT / "plugins")
    folders["offload_conformance"] = ROOT / "conformance"
    folders |= dict.fromkeys(BACKENDS, ROOT / "backends")
    wanted = {
        path.relative_to(base).as_posix()
        for name, base in folders.items()
        for path in (base / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    with zipfile.ZipFile(wheel) as archive:
        found = set(archive.namelist())

    assert wanted - {LOOPS} <= found
    assert LOOPS not in found
    assert any(name.endswith(".segment") for name in wanted)
    assert {f"offload/pages/{path.name}" for path in (ROOT / "docs").glob("*.md")} <= found


def test_the_source_distribution_can_run_the_tests(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert {"README.md", "Makefile", "constraints.txt", "tests/data/osiris/MANIFEST.json"} <= names


def test_the_demo_runs_from_the_wheel(clean: Path, tmp_path: Path) -> None:
    said = _run(str(clean / "offload"), "demo", cwd=tmp_path)

    assert "committed" in said
    assert "0 damaged" in said
    assert "found:" in said


def test_every_package_imports_from_the_wheel(clean: Path, tmp_path: Path) -> None:
    modules = ["offload_posix", "offload_rabbitmq", "offload"]
    script = "".join(f"import {module}; print({module}.__file__)\n" for module in modules)

    found = _run(str(clean / "python"), "-c", script, cwd=tmp_path).splitlines()

    assert [Path(file).parent.name for file in found] == modules
    assert all(Path(file).is_relative_to(clean.parent) for file in found)


def test_the_conformance_suite_needs_its_extra_and_says_so(clean: Path, tmp_path: Path) -> None:
    for argv, says in (
        ([clean / "python", "-c", "from offload_conformance import StoreConformance"], "pytest"),
        ([clean / "offload", "conformance", f"file://{tmp_path}/place"], "ledger-offload[conformance]"),
    ):
        done = subprocess.run([*map(str, argv)], cwd=tmp_path, capture_output=True, text=True)

        assert done.returncode in (1, 2)
        assert says in done.stderr


def _run(*argv: str, cwd: Path | None = None) -> str:
    env = {name: value for name, value in os.environ.items() if name not in UNWANTED}
    done = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
