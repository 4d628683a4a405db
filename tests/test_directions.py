"""Tests of the directions of imports between packages and rooms, read from the code itself."""

from __future__ import annotations

import ast
import re
import runpy
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from source_imports import imports_in

from offload.opening.plugins import Plugins

ROOT = Path(__file__).parent.parent
BACKENDS = sorted(folder.name for folder in (ROOT / "backends").iterdir() if folder.name[0] not in "._")
FOUND_BY_SPARK = "pyspark_offload"
"""The package that Spark finds by its name. It is not a plugin of ours, and only leads to one."""
SHARED = "offload_cloud"
"""The package that cloud backends share. It is neither a backend nor a plugin."""
PLUGINS = sorted(folder.name for folder in (ROOT / "plugins").iterdir() if folder.name[0] not in "._")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DECLARING = {module.partition(".")[0] for module in PROJECT["entry-points"]["offload"].values()}
"""The packages whose declarations discovery imports."""
HOMES = {
    "offload": ROOT,
    "offload_conformance": ROOT / "conformance",
    **dict.fromkeys(BACKENDS, ROOT / "backends"),
    **dict.fromkeys(PLUGINS, ROOT / "plugins"),
}
ROOMS: dict[str, str] = runpy.run_path(str(ROOT / "docs" / "make_file_map.py"))["rooms"]()
"""The rooms of the core, each with the rooms that it may import, from the table of decision 20."""


class Import(NamedTuple):
    """One import, with its file, its line and the imported module."""

    file: str
    line: int
    module: str

    @property
    def top(self) -> str:
        """Return the top-level package of the module."""
        return self.module.partition(".")[0]


def imports_of(package: str, below: str = "") -> Iterator[Import]:
    """Yield every import in a package, also inside functions and for type checkers."""
    for path in sorted((HOMES[package] / package / below).rglob("*.py")):
        yield from modules_in(path)


@cache
def modules_in(path: Path) -> list[Import]:
    """Return every import in a file. Most tests here read the same files."""
    found = list[Import]()
    for node in imports_in(path):
        names = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names = [f"{node.module}.{name}" for name in names]
        found += (Import(str(path.relative_to(ROOT)), node.lineno, name) for name in names)
    return found


def python_in(folder: str) -> list[Path]:
    """Return the modules and scripts in a folder of the checkout."""
    return sorted((ROOT / folder).rglob("*.py"))


def ours(found: Import) -> bool:
    return found.top == "offload" or found.top.startswith("offload_")


def room_of(module: str) -> str:
    """Return the room of a module of the core, or of a name in it. `offload` itself has the public names."""
    name = module.split(".")[1] if "." in module else "__init__"
    return name if name in ROOMS else "opening"


def test_the_search_finds_imports() -> None:
    assert {"offload_posix", "offload_rabbitmq"} <= {*BACKENDS, *PLUGINS}
    for package in HOMES:
        assert any(ours(found) for found in imports_of(package)), package


def test_the_core_knows_no_backend_no_plugin_and_no_conformance() -> None:
    assert [found for found in imports_of("offload") if ours(found) and found.top != "offload"] == []


def test_every_module_of_the_core_is_in_a_room() -> None:
    core = ROOT / "offload"

    assert {path.parent.name for path in core.glob("*/*.py")} == set(ROOMS)
    assert [path.name for path in core.glob("*.py")] == ["__init__.py"]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_the_rooms_of_its_row(room: str) -> None:
    allowed = {room, *ROOMS[room].split(", ")}
    imports = [found for found in imports_of("offload", room) if found.top == "offload"]

    assert [found for found in imports if room_of(found.module) not in allowed] == []


def test_imports_between_rooms_have_no_cycle() -> None:
    """Each room imports only rooms above it in the table."""
    order = list(ROOMS)

    for room, others in ROOMS.items():
        assert all(order.index(each) < order.index(room) for each in others.split(", ") if each), room


@pytest.mark.parametrize("package", [*BACKENDS, *PLUGINS])
def test_backends_and_plugins_import_only_the_core_shared_code_and_themselves(package: str) -> None:
    allowed = {"offload", package} | ({SHARED} if package in BACKENDS else set())
    if package == FOUND_BY_SPARK:
        allowed = {"offload_spark"}
    found = [each for each in imports_of(package) if ours(each)]

    assert [each for each in found if each.top not in allowed] == []


@pytest.mark.parametrize("plugin", [each for each in PLUGINS if each != FOUND_BY_SPARK])
def test_no_plugin_names_another_one_or_its_decoder(plugin: str) -> None:
    """What it needs of another one is declared there, as a capability (`DecoderType.java`)."""
    declared = [each.declaration for each in Plugins.find().of_kind("decoder")]
    decoders = [each.name for each in declared if not each.target.startswith(f"{plugin}.")]
    packages = {*PLUGINS, *BACKENDS} - {plugin, FOUND_BY_SPARK, SHARED}
    # A decoder's name as a value: not as a part of other names, such as the symbol `amqp:header:list`.
    named = re.compile(rf"""\b(?:{"|".join(packages)})\b|["'`=](?:{"|".join(decoders)})(?![\w:-])""")
    files = [path for suffix in ("*.py", "*.java") for path in (HOMES[plugin] / plugin).rglob(suffix)]
    lines = [(path, line) for path in files for line in path.read_text(encoding="utf-8").splitlines()]

    assert decoders
    assert [f"{path}: {line.strip()}" for path, line in lines if named.search(line)] == []


def test_conformance_imports_contracts_and_never_a_backend() -> None:
    allowed = {"offload", "offload_conformance", "pytest", "hypothesis", "typer", *sys.stdlib_module_names}
    allowed |= {"numpy"}  # a table of chunks is an array, and planted bugs make wrong ones
    contract = "offload_queue.backing_queue."  # of queues, which the core does not know

    found = [each for each in imports_of("offload_conformance") if not each.module.startswith(contract)]
    assert [each for each in found if each.top not in allowed] == []


def test_nothing_imports_by_a_folder_of_the_checkout() -> None:
    """The lint has these bans too, but tests and benchmarks are let off its other ones, and so off these."""
    by_folder = re.compile(r"^\s*(?:from|import) (?:backends|plugins|conformance|tests)\b", re.MULTILINE)
    files = [
        path for folder in ("tests", "benchmarks", "conformance", "examples") for path in python_in(folder)
    ]

    assert len(files) > 100
    assert [str(path) for path in files if by_folder.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("room", ["model", "formats"])
def test_the_model_and_formats_do_no_input_or_output(room: str) -> None:
    """They convert bytes and know no files, no event loop and no clock."""
    worlds = ("os", "io", "pathlib", "asyncio", "socket", "threading", "tempfile", "shutil", "time")

    assert [each for each in imports_of("offload", room) if each.top in worlds] == []


@pytest.mark.parametrize("package", sorted({*BACKENDS, *PLUGINS} & DECLARING))
def test_entry_points_import_only_declarations(package: str) -> None:
    """Discovery imports the module `plugin`, which may name code but not import it."""
    allowed = {"__future__", "collections", "typing", "offload"}

    found = [each for each in imports_of(package) if each.file.endswith("/plugin.py")]

    assert found
    assert [each for each in found if each.top not in allowed] == []
