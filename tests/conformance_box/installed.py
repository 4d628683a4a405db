"""The black box in this process, and backends that are installed for one test."""

from __future__ import annotations

import json
import sys
import textwrap
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

from command_line import Ran, offload
from kit.installed import declare

ROOT = Path(__file__).parents[2]


class Site:
    """A folder of installed distributions, with the entry points of this checkout.

    An installation that is older than the checkout's `pyproject.toml` therefore does no harm.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        points = project["entry-points"]["offload"]
        declare(folder, project["name"], points, version=version(project["name"]))

    def install(self, name: str, source: str) -> None:
        """Install a distribution of one module, whose `open_url` opens the scheme of the same name."""
        (self.folder / f"{name}_code.py").write_text(textwrap.dedent(source))
        (self.folder / f"{name}.py").write_text(
            "from offload import Capabilities\nfrom offload.contracts.plugin import Backend, hookimpl\n"
            f"@hookimpl\ndef offload_backends():\n"
            f"    import {name}_code as code\n"
            f"    return [Backend(name={name!r}, target='{name}_code:open_url', schemes=({name!r},),\n"
            f"                    **getattr(code, 'DECLARES', {{}}))]\n"
        )
        declare(self.folder, name, {name: name}, version="1.5")

    def objects(self, name: str) -> dict[str, bytes]:
        """Return the objects that the backend `name` keeps in memory."""
        return sys.modules[f"{name}_code"].OBJECTS  # type: ignore[no-any-return]


def box(*arguments: object) -> Ran:
    """Run `offload conformance` in this process."""
    return offload("conformance", *arguments)


def outcomes(report: dict[str, Any]) -> dict[str, str]:
    """Return the outcome of each clause that was selected."""
    return {each["id"]: each["outcome"] for each in report["clauses"] if each["message"] != "not selected"}


def report_in(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document
