"""The compiled loops for tests: made from the source of this checkout, and switched on or off."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from offload.ground import loops
from offload.ground.loops import Loops

ROOT = Path(__file__).parent.parent


def build() -> Any:
    """Return the module that compiles the loops."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def library() -> Path:
    """Return the library. Without a compiler, fail if all servers are required, else skip the test."""
    path = Path(tempfile.mkdtemp(prefix="offload-loops-")) / "_loops.so"
    if not build().compile_loops(path):
        say = pytest.fail if os.environ.get("OFFLOAD_SERVERS_REQUIRED") else pytest.skip
        say("no C compiler: install one, or `pip install ziglang`")
    return path


def use_loops(patch: pytest.MonkeyPatch, *, compiled: bool) -> None:
    """Use the compiled loops, or those of NumPy, until the patch ends."""
    found = Loops(library()) if compiled else None
    patch.setattr(loops, "_loaded", lambda: (found, ""))
