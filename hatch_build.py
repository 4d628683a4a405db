"""The compiled loops: in this checkout, and in wheels for one platform.

    python hatch_build.py                    compile them into this checkout, for this machine
    python hatch_build.py wheels FOLDER      build a wheel for each platform of TARGETS, and the one without

A wheel is made without them unless `OFFLOAD_LOOPS_TARGET` names a platform, or is `native`. So whoever
installs from source needs no compiler, and gets the loops of NumPy. `wheels` compiles for all platforms with
one compiler, zig, which is a package: `pip install ziglang`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from sysconfig import get_platform
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
SOURCE, LIBRARY = "offload/ground/loops.c", "offload/ground/_loops.so"
TARGETS = {
    "x86_64-linux-gnu.2.17": "manylinux_2_17_x86_64",
    "aarch64-linux-gnu.2.17": "manylinux_2_17_aarch64",
    "x86_64-macos.11.0": "macosx_11_0_x86_64",
    "aarch64-macos.11.0": "macosx_11_0_arm64",
}
"""The targets of zig, and the tags of their wheels."""

NATIVE = "native"
"""This machine. Its wheel is for machines like it."""

FLAGS = ["-O3", "-std=c11", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]


def compiler(target: str | None) -> list[str] | None:
    """Return the command of a compiler, or None if this machine has none."""
    if find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc", *([] if target is None else ["-target", target])]
    found = shutil.which("cc") if target is None else None
    return None if found is None else [found]


def compile_loops(library: Path, target: str | None = None, *, flags: list[str] = FLAGS) -> bool:
    """Compile the loops into a library. Return False if this machine has no compiler."""
    command = compiler(None if target == NATIVE else target)
    if command is None:
        return False
    # A process that runs may have the old one open.
    beside = library.with_name(f"{library.name}.{os.getpid()}")
    subprocess.run([*command, *flags, "-o", str(beside), str(ROOT / SOURCE)], check=True)  # noqa: S603 - our source, and a compiler of this machine
    beside.rename(library)
    return True


class LoopsHook(BuildHookInterface):
    """Adds the pages of `offload help` to each wheel, and the loops to a wheel for one platform."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile for the platform that is asked for, and name it in the wheel's tag."""
        if version == "editable":
            return
        for page in (ROOT / "docs").glob("*.md"):
            build_data["force_include"][str(page)] = f"offload/pages/{page.name}"
        target = os.environ.get("OFFLOAD_LOOPS_TARGET")
        if not target:
            return
        self._folder = TemporaryDirectory()
        library = Path(self._folder.name) / "_loops.so"
        if not compile_loops(library, target):
            raise RuntimeError(f"no compiler for the loops of {target}: pip install ziglang")
        here = get_platform().replace("-", "_").replace(".", "_")
        build_data["force_include"][str(library)] = LIBRARY
        build_data["tag"] = f"py3-none-{TARGETS.get(target, here)}"
        build_data["pure_python"] = False

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()


def build_wheels(folder: Path) -> None:
    """Build all wheels into a folder."""
    pip = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--quiet",
        "--wheel-dir",
        str(folder),
    ]
    for target in ("", *TARGETS):
        asked = os.environ | {"OFFLOAD_LOOPS_TARGET": target}
        subprocess.run([*pip, str(ROOT)], env=asked, check=True)  # noqa: S603 - our own folder


if __name__ == "__main__":
    if sys.argv[1:2] == ["wheels"]:
        build_wheels(Path(sys.argv[2]))
    elif compile_loops(ROOT / LIBRARY):
        print(f"compiled {LIBRARY}")
    else:
        print("no C compiler: records are walked by NumPy, which is slower")
