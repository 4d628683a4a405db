"""The jar in the tree is what its sources make, and needs only what Spark ships."""

from __future__ import annotations

import importlib.util
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
from offload_spark.java_plans import PLAN_VERSION
from offload_spark.session import EXTENSION, JAR, java_reader
from servers.javac import javac
from servers.session import REQUIRED

ROOT = Path(__file__).parents[2]


def builder() -> Any:
    """Return the module of the script that builds the jar."""
    found = importlib.util.spec_from_file_location("make_java_reader", ROOT / "docs" / "make_java_reader.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def classes_of(jar: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(jar) as opened:
        return {name: opened.read(name) for name in opened.namelist() if name.endswith(".class")}


def test_the_jar_has_the_classes_of_its_sources() -> None:
    """Rebuild it by `python docs/make_java_reader.py` after a change."""
    compiler = javac()
    if compiler is None:
        failing = pytest.fail if os.environ.get(REQUIRED) == "1" else pytest.skip
        failing("it needs a javac of version 17: run `make servers`, or install openjdk-17-jdk-headless")
    assert builder().classes_by(compiler) == classes_of(JAR)


def test_the_same_classes_make_the_same_jar(tmp_path: Path) -> None:
    classes = classes_of(JAR)
    one, other = tmp_path / "one.jar", tmp_path / "other.jar"

    builder().jar_of(classes, one)
    builder().jar_of(dict(reversed(classes.items())), other)

    assert one.read_bytes() == other.read_bytes()
    assert classes_of(one) == classes


def test_the_jar_and_the_package_agree_on_the_plans() -> None:
    source = (JAR.parent / "ledgeroffload" / "spark" / "PythonPlans.java").read_text()

    assert re.search(r"int VERSION = (\d+);", source)[1] == str(PLAN_VERSION)  # type: ignore[index]
    assert EXTENSION.replace(".", "/") + ".class" in classes_of(JAR)


def test_settings_of_the_user_stay() -> None:
    given = {"spark.jars": "/opt/more.jar", "spark.sql.extensions": "a.B", "spark.ui.enabled": "true"}

    assert java_reader(given) == {
        "spark.jars": f"/opt/more.jar,{JAR}",
        "spark.sql.extensions": f"a.B,{EXTENSION}",
    }
    assert java_reader({}) == {"spark.jars": str(JAR), "spark.sql.extensions": EXTENSION}
