"""The compiler of Spark's Java reader: a javac of version 17, of this machine or of Debian."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from servers.recipes import CannotBeHad, DebianPackages

VERSION: Final = "javac 17."


class Compiler(DebianPackages):
    """The packages of Debian, unpacked only if this machine has no javac of the version."""

    def install(self) -> None:
        """Install the program unless there is one. Raises `CannotBeHad`; then nothing of it is left."""
        if javac() is None:
            super().install()

    def make(self, folder: Path) -> None:
        """Unpack the packages. Their links to settings in `/etc` are made links to those beside them."""
        super().make(folder)
        for link in folder.rglob("*"):
            if link.is_symlink() and link.readlink().is_absolute():
                beside = folder / link.readlink().relative_to("/")
                if beside.exists():  # not the settings of a Java that this machine may have, or not
                    link.unlink()
                    link.symlink_to(os.path.relpath(beside, link.parent))


RECIPE: Final = Compiler("javac", ("openjdk-17-jdk-headless", "openjdk-17-jre-headless"))


def javac() -> str | None:
    """Return a compiler that can be run; None if there is none."""
    ours = RECIPE.folder / "usr" / "lib" / "jvm"
    for each in (shutil.which("javac"), *map(str, sorted(ours.glob("java-17-openjdk-*/bin/javac")))):
        if each is not None and _version_of(each).startswith(VERSION):
            return each
    return None


def _version_of(program: str) -> str:
    try:
        return subprocess.run([program, "-version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


@contextmanager
def compiler() -> Iterator[str]:
    """Yield a compiler that can be run. Raises `CannotBeHad` if there is none."""
    found = javac()
    if found is None:
        raise CannotBeHad("it needs a javac of version 17, which is not here")
    yield found
