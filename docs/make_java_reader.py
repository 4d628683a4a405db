"""Builds the jar of Spark's Java reader from its sources: the same bytes from the same compiler.

    python docs/make_java_reader.py [--javac JAVAC]

It needs a javac of version 17, such as Debian's `openjdk-17-jdk-headless` (`make servers` unpacks one), and
PySpark, whose jars are the class path. `tests/spark/test_java_reader_jar.py` compares the jar with what this
makes.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path
from typing import Final

import pyspark

ROOT: Final = Path(__file__).parents[1]
SOURCES: Final = ROOT / "plugins" / "offload_spark" / "jvm"
JAR: Final = SOURCES / "offload-spark.jar"
RELEASE: Final = 17
MANIFEST: Final = b"Manifest-Version: 1.0\r\n\r\n"
ANY_TIME: Final = (1980, 1, 1, 0, 0, 0)
"""The time of every file in the jar: the least that the format can hold."""


def version_of(javac: str) -> int:
    """Return the major version of a compiler; 0 if it cannot be run."""
    try:
        said = subprocess.run([javac, "-version"], capture_output=True, text=True, check=True)  # noqa: S603 - the compiler that the caller names
    except (OSError, subprocess.CalledProcessError):
        return 0
    found = re.search(r"javac (\d+)", said.stdout + said.stderr)
    return int(found[1]) if found else 0


def classes_by(javac: str) -> dict[str, bytes]:
    """Return the compiled classes by their names in the jar. A warning of the compiler is an error."""
    jars = Path(pyspark.__file__).parent / "jars"
    sources = sorted(map(str, SOURCES.rglob("*.java")))
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(  # noqa: S603 - the compiler that the caller names
            [
                *(javac, "-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC"),  # half the time, the same bytes
                *("--release", str(RELEASE), "-encoding", "UTF-8", "-proc:none", "-g:source,lines"),
                # Spark's jars name others that are not there, and have annotations of others.
                *("-Xlint:all,-path,-classfile,-serial", "-Werror"),
                *("-cp", f"{jars}/*", "-d", folder, *sources),
            ],
            check=True,
        )
        found = sorted(Path(folder).rglob("*.class"))
        return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def jar_of(classes: dict[str, bytes], target: Path) -> None:
    """Write a jar: its files are sorted, and have one time."""
    with zipfile.ZipFile(target, "w") as jar:
        for name, data in {"META-INF/MANIFEST.MF": MANIFEST, **dict(sorted(classes.items()))}.items():
            about = zipfile.ZipInfo(name, date_time=ANY_TIME)
            about.compress_type, about.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            jar.writestr(about, data)


def main() -> None:
    """Build the jar in its place in the tree."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--javac", default=shutil.which("javac") or "javac")
    javac = parser.parse_args().javac
    if version_of(javac) != RELEASE:
        raise SystemExit(f"{javac} is no javac of version {RELEASE}")
    jar_of(classes_by(javac), JAR)
    print(f"{JAR.relative_to(ROOT)}: {JAR.stat().st_size} bytes")


if __name__ == "__main__":
    main()
