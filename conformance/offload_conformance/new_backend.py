"""`offload new-backend NAME`: the skeleton of a distribution that installs, is found, and lacks only code.

The files are the templates in `skeleton/`, with the names filled in; what is left to write raises
`NotImplementedError` and says what it is, so that each clause of the suite fails for just that.

Invariant: the folder is made here or nothing is; what exists is never written to.
"""

from __future__ import annotations

import re
from enum import StrEnum
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Annotated, Final

import typer

from offload.cli.kit.ending import Usage
from offload.errors import Misuse
from offload.plugins import Plugins

NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
NAME_LENGTH_MAX: Final = 40

FILES: Final = {
    "pyproject.toml.template": "pyproject.toml",
    "README.md.template": "README.md",
    "gitignore.template": ".gitignore",
    "init.py.template": "$module/__init__.py",
    "py.typed.template": "$module/py.typed",
    "plugin.py.template": "$module/plugin.py",
    "$kind/code.py.template": "$module/$kind.py",
    "$kind/test_conformance.py.template": "tests/test_conformance.py",
}
"""Each template, and the file that is made of it."""


class BackendKind(StrEnum):
    """What the backend implements."""

    STORE = "store"
    OFFLOADER = "offloader"


def new_backend(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the backend, and its URL scheme.")],
    kind: Annotated[BackendKind, typer.Option(help="What the backend implements.")] = BackendKind.STORE,
    into: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the new folder is made.")] = Path(),
) -> None:
    """Write the skeleton of the backend NAME, in a new folder `offload-NAME`."""
    check_name(name, Plugins.find())
    folder = into / f"offload-{name}"
    write_skeleton(folder, name, kind)
    print(f"{folder} is made. Write what is missing in {module_of(name)}/{kind}.py, then:")
    print(f"  pip install -e '{folder}[test]' && pytest {folder}")


def check_name(name: str, found: Plugins) -> None:
    """Raise where `name` makes no distribution, module and URL scheme, or is taken in this environment."""
    if not NAME.fullmatch(name) or len(name) > NAME_LENGTH_MAX:
        raise Usage(
            f"{name!r} is no name for a backend: a lowercase letter, then lowercase letters and digits, "
            f"with single hyphens between them, {NAME_LENGTH_MAX} characters at most"
        )
    taken = {plugin.name for plugin in found.plugins}
    for each in found.of_kind("backend"):
        taken |= {each.declaration.name, *each.declaration.schemes}
    if name in taken or find_spec(module_of(name)) is not None:
        raise Misuse(f"the name {name!r} is taken by a plugin or package that is installed here")


def write_skeleton(folder: Path, name: str, kind: BackendKind) -> None:
    """Make `folder` with all its files. Raises `Misuse` where it exists, or has nowhere to be."""
    names = {
        "name": name,
        "module": module_of(name),
        "kind": kind.value,
        "Class": "".join(map(str.capitalize, name.split("-"))) + kind.value.capitalize(),
    }
    try:
        folder.mkdir()  # refuses whatever is there
    except FileExistsError as exc:
        raise Misuse(f"{folder} exists; nothing was written") from exc
    except FileNotFoundError as exc:
        raise Misuse(f"there is no folder {folder.parent}; nothing was written") from exc
    templates = files("offload_conformance") / "skeleton"
    for source, target in FILES.items():
        text = (templates / Template(source).substitute(names)).read_text(encoding="utf-8")
        path = folder / Template(target).substitute(names)
        path.parent.mkdir(exist_ok=True)
        path.write_text(Template(text).substitute(names), encoding="utf-8")


def module_of(name: str) -> str:
    """The Python package of the backend `name`."""
    return "offload_" + name.replace("-", "_")
