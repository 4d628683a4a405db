"""The folders are the architecture: who may import whom, read from the code itself."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
BACKENDS = sorted(folder.name for folder in (ROOT / "backends").iterdir() if folder.name[0] not in "._")
FOUND_BY_SPARK = "pyspark_offload"
"""What Spark finds by its name: no plugin of ours, and nothing but a way to one."""
SHARED = "offload_cloud"
"""What the backends of distant stores share: no backend and no plugin itself."""
PLUGINS = sorted(folder.name for folder in (ROOT / "plugins").iterdir() if folder.name[0] not in "._")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DECLARING = {module.partition(".")[0] for module in PROJECT["entry-points"]["offload"].values()}
"""The packages that discovery asks for declarations."""
HOMES = {
    "offload": ROOT,
    "offload_conformance": ROOT / "conformance",
    **dict.fromkeys(BACKENDS, ROOT / "backends"),
    **dict.fromkeys(PLUGINS, ROOT / "plugins"),
}


class Import(NamedTuple):
    """One import: which file does it, on which line, of which module."""

    file: str
    line: int
    module: str

    @property
    def top(self) -> str:
        """The distribution's own name for it, or the library's."""
        return self.module.partition(".")[0]


def imports_of(package: str, below: str = "") -> Iterator[Import]:
    """Every import in a package: inside functions and for type checkers too."""
    for path in sorted((HOMES[package] / package / below).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: imports are absolute"
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (Import(str(path.relative_to(ROOT)), node.lineno, name) for name in names)


def ours(found: Import) -> bool:
    return found.top == "offload" or found.top.startswith("offload_")


def test_there_is_something_to_look_at() -> None:
    assert {"offload_posix", "offload_rabbitmq"} <= {*BACKENDS, *PLUGINS}
    for package in HOMES:
        assert any(ours(found) for found in imports_of(package)), package


def test_the_core_knows_no_backend_no_plugin_and_no_conformance() -> None:
    assert [found for found in imports_of("offload") if ours(found) and found.top != "offload"] == []


@pytest.mark.parametrize("package", [*BACKENDS, *PLUGINS])
def test_backends_and_plugins_know_the_core_what_they_share_and_themselves(package: str) -> None:
    allowed = {"offload", package} | ({SHARED} if package in BACKENDS else set())
    if package == FOUND_BY_SPARK:
        allowed = {"offload_spark"}
    found = [each for each in imports_of(package) if ours(each)]

    assert [each for each in found if each.top not in allowed] == []


def test_conformance_knows_contracts_and_never_a_backend() -> None:
    allowed = {"offload", "offload_conformance", "pytest", "hypothesis", "typer", *sys.stdlib_module_names}

    assert [found for found in imports_of("offload_conformance") if found.top not in allowed] == []


def test_formats_do_no_input_and_output() -> None:
    """Bytes in, bytes out: they know no files, no event loop, no store and no tier."""
    worlds = ("os", "io", "pathlib", "asyncio", "socket", "threading", "tempfile", "shutil", "time")
    rooms = ("store", "tier", "manifest", "cli", "offloader", "source", "plugins", "blocking", "env")

    found = [
        each
        for each in imports_of("offload", "formats")
        if each.top in worlds or each.module.split(".")[:2] in [["offload", room] for room in rooms]
    ]

    assert found == []


def test_the_contract_knows_no_tier() -> None:
    """Whoever writes a backend from the contract alone needs nothing of ours but formats and errors."""
    contract = (
        "offload/catalogue.py",
        "offload/offloader.py",
        "offload/source.py",
        "offload/errors.py",
        "offload/store/",
    )
    rooms = ("offload.tier", "offload.cli", "offload.plugins", "offload.blocking")

    found = [
        each
        for each in imports_of("offload")
        if each.file.startswith(contract) and each.module.startswith(rooms)
    ]

    assert found == []


@pytest.mark.parametrize("package", sorted({*BACKENDS, *PLUGINS} & DECLARING))
def test_entry_points_import_declarations_and_nothing_else(package: str) -> None:
    """What discovery imports is the module `plugin`, and that may name code but not import it."""
    allowed = {"__future__", "collections", "typing", "offload"}

    found = [each for each in imports_of(package) if each.file.endswith("/plugin.py")]

    assert found
    assert [each for each in found if each.top not in allowed] == []
