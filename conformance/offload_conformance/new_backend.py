"""`offload new-backend NAME`: write the skeleton of a backend's distribution, which installs and is found.

The files are the templates in `skeleton/` with the names filled in. Each missing method raises
`NotImplementedError` with its name, so that clauses fail for exactly that reason.

Invariant: the command creates the folder or writes nothing. It never writes to an existing folder.
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
from offload.ground.errors import Misuse
from offload.opening.plugins import Plugins

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
"""Each template, and the file that is made from it."""


class BackendKind(StrEnum):
    """The contract that the backend implements."""

    STORE = "store"
    OFFLOADER = "offloader"


def new_backend(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name and URL scheme of the backend.")],
    kind: Annotated[BackendKind, typer.Option(help="The contract to implement.")] = BackendKind.STORE,
    into: Annotated[Path, typer.Option(metavar="FOLDER", help="The folder in which to create it.")] = Path(),
) -> None:
    """Create a folder `offload-NAME` with the skeleton of a new backend."""
    check_name(name, Plugins.find())
    folder = into / f"offload-{name}"
    write_skeleton(folder, name, kind)
    print(f"Created {folder}. Write the missing methods in {module_of(name)}/{kind}.py, then:")
    print(f"  pip install -e '{folder}[test]' && pytest {folder}")


def check_name(name: str, found: Plugins) -> None:
    """Raise `Usage` if `name` cannot name a distribution, module and scheme, and `Misuse` if it is taken."""
    if not NAME.fullmatch(name) or len(name) > NAME_LENGTH_MAX:
        raise Usage(
            f"{name!r} is no name for a backend: use a lowercase letter, then lowercase letters and digits, "
            f"with single hyphens between them, at most {NAME_LENGTH_MAX} characters"
        )
    taken = {plugin.name for plugin in found.plugins}
    for each in found.of_kind("backend"):
        taken |= {each.declaration.name, *each.declaration.schemes}
    if name in taken or find_spec(module_of(name)) is not None:
        raise Misuse(f"the name {name!r} is taken by an installed plugin or package: choose another")


def write_skeleton(folder: Path, name: str, kind: BackendKind) -> None:
    """Create `folder` with all its files. Raises `Misuse` if it exists or its parent does not."""
    names = {
        "name": name,
        "module": module_of(name),
        "kind": kind.value,
        "Class": "".join(map(str.capitalize, name.split("-"))) + kind.value.capitalize(),
    }
    try:
        folder.mkdir()  # raises if anything exists under this name
    except FileExistsError as exc:
        raise Misuse(f"{folder} already exists; nothing was written") from exc
    except FileNotFoundError as exc:
        raise Misuse(f"the folder {folder.parent} does not exist; nothing was written") from exc
    templates = files("offload_conformance") / "skeleton"
    for source, target in FILES.items():
        text = (templates / Template(source).substitute(names)).read_text(encoding="utf-8")
        path = folder / Template(target).substitute(names)
        path.parent.mkdir(exist_ok=True)
        path.write_text(Template(text).substitute(names), encoding="utf-8")


def module_of(name: str) -> str:
    """Return the name of the Python package of the backend `name`."""
    return "offload_" + name.replace("-", "_")
