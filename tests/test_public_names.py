"""Tests of public names: the `__all__` of a package is complete, sorted and documented."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from source_imports import imports_in

ROOT = Path(__file__).parent.parent
PACKAGES = (
    "offload",
    "offload_conformance",
    "offload_azure",
    "offload_gcs",
    "offload_keys",
    "offload_posix",
    "offload_pulsar",
    "offload_mqtt",
    "offload_queue",
    "offload_rabbitmq",
    "offload_rabbitmq_s3",
    "offload_rocketmq",
    "offload_s3",
    "offload_spark",
)


def module_and_tree(package: str) -> tuple[ModuleType, ast.Module]:
    module = importlib.import_module(package)
    return module, ast.parse(inspect.getsource(module))


def reexported(tree: ast.Module) -> dict[str, str]:
    """Return the public names that a module imports at its head, for type checkers too, with their homes."""

    def heads(body: list[ast.stmt]) -> Iterator[ast.ImportFrom]:
        for statement in body:
            if isinstance(statement, ast.If):
                yield from heads(statement.body)
            elif isinstance(statement, ast.ImportFrom):
                yield statement

    return {
        alias.asname or alias.name: node.module or ""
        for node in heads(tree.body)
        if (node.module or "").startswith("offload") and node.module != "offload.ground.late"
        for alias in node.names
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_all_lists_exactly_the_reexported_names(package: str) -> None:
    """Type checkers see every name, and it exists at run time."""
    module, tree = module_and_tree(package)

    assert set(module.__all__) == set(reexported(tree))
    for name in module.__all__:
        assert getattr(module, name) is not None


@pytest.mark.parametrize("package", PACKAGES)
def test_names_are_sorted_and_unique(package: str) -> None:
    module, _ = module_and_tree(package)

    assert list(module.__all__) == sorted(set(module.__all__))


@pytest.mark.parametrize("package", PACKAGES)
def test_names_are_public(package: str) -> None:
    module, _ = module_and_tree(package)

    assert [name for name in module.__all__ if name.startswith("_")] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_a_docstring(package: str) -> None:
    """Classes and functions have their own docstrings, not a base's and not a generated one."""
    module, _ = module_and_tree(package)
    public = {name: getattr(module, name) for name in module.__all__}
    explained = {name: each for name, each in public.items() if inspect.isclass(each) or callable(each)}

    unexplained = [
        name
        for name, each in explained.items()
        if not (each.__dict__.get("__doc__") if inspect.isclass(each) else each.__doc__)
        or (each.__doc__ or "").startswith(f"{name}(")
    ]

    assert unexplained == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_method_has_a_docstring(package: str) -> None:
    """Every public method and property that a public class defines says what it promises."""
    module, _ = module_and_tree(package)
    classes = [each for name in module.__all__ if inspect.isclass(each := getattr(module, name))]

    unexplained = [
        f"{each.__name__}.{name}"
        for each in classes
        for name, member in vars(each).items()
        if not name.startswith("_")
        and (inspect.isfunction(member) or isinstance(member, property | classmethod | staticmethod))
        and not member.__doc__
    ]

    assert unexplained == []


@pytest.mark.parametrize("package", [package for package in PACKAGES if package != "offload_conformance"])
def test_late_names_come_from_the_modules_that_type_checkers_see(package: str) -> None:
    """A package that imports names on first use names their homes twice, and both must agree."""
    module, tree = module_and_tree(package)

    assert reexported(tree) == module._HOMES
    assert set(module.__all__) <= set(dir(module))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="NoSuchName"):
        _ = importlib.import_module("offload").NoSuchName


CODE = [
    path
    for folder in ("offload", "backends", "plugins", "conformance", "examples")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "tests" not in path.relative_to(ROOT).parts
]
"""The distributed code and the examples: everything but tests and benchmarks."""

PLANTED = ROOT / "conformance" / "offload_conformance" / "bugs"
"""Planted bugs change the inside of a tier, which is nobody's API."""


def package_of(path: Path) -> str:
    """Return the top-level package of a file, or the program's own name."""
    parts = path.relative_to(ROOT).parts
    return next((part for part in parts[:-1] if part.startswith(("offload_", "pyspark_"))), parts[0])


@cache
def names_in(path: Path) -> list[str]:
    """Return the public names that a module defines at its head."""
    return [*_names_in(path)]


def _names_in(path: Path) -> Iterator[str]:
    # A name of one letter is a type variable.
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names = [node.name]
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        else:
            names = []
        yield from (name for name in names if not name.startswith("_") and len(name) > 1)


def defined_twice(paths: list[Path], pattern: str) -> dict[str, list[str]]:
    """Return the names of this pattern that more than one module defines, with their files."""
    homes: dict[str, list[str]] = {}
    for path in paths:
        for name in names_in(path):
            if re.fullmatch(pattern, name):
                homes.setdefault(name, []).append(str(path.relative_to(ROOT)))

    assert len(homes) > 200, "there is something to look at"
    return {name: files for name, files in homes.items() if len(files) > 1}


def test_no_two_public_classes_share_a_name() -> None:
    """This includes aliases of types, which are written like classes."""
    assert defined_twice(CODE, "[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*") == {}


def test_no_public_name_of_the_core_is_defined_twice() -> None:
    """Commands are an exception: each has the name of the function that it calls."""
    core = [path for path in CODE if package_of(path) == "offload" and "cli" not in path.parts]

    assert defined_twice(core, ".*") == {}


MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts[path.relative_to(ROOT).parts[0] != "offload" :])
    for path in CODE
}
"""Our modules, by their dotted names."""


@cache
def crossings() -> list[tuple[str, str, str]]:
    """Return every import of one of our packages by another: the file, the module and the name."""
    return [*_crossings()]


def _crossings() -> Iterator[tuple[str, str, str]]:
    for path in CODE:
        if PLANTED in path.parents:
            continue
        for node in imports_in(path):
            if isinstance(node, ast.ImportFrom):
                modules = [(node.module or "", alias.name) for alias in node.names]
            else:
                modules = [(alias.name, "") for alias in node.names]
            for module, name in modules:
                top = module.partition(".")[0]
                if top.startswith(("offload", "pyspark_offload")) and top != package_of(path):
                    yield str(path.relative_to(ROOT)), module, name


def test_names_that_cross_packages_are_public() -> None:
    """A name that another package imports is in the `__all__` of a module without underscore."""
    private = []
    for file, module, name in crossings():
        if (Path(file).parts[0] == "examples") and not module.startswith("offload."):
            continue  # an example's own package, outside our folders
        said = getattr(importlib.import_module(module), "__all__", ())
        if name not in said and f"{module}.{name}" in MODULES:
            said = (name,) if hasattr(importlib.import_module(f"{module}.{name}"), "__all__") else ()
        if name not in said or any(part.startswith("_") for part in module.split(".")):
            private.append(f"{file}: {module}.{name}")

    assert private == []


def test_the_api_page_lists_the_public_names_of_every_module_of_the_core() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (offload(?:\.\w+)+) \| (.*) \|$", page, re.MULTILINE)
    named = {
        f"{module}.{name}" if f"{module}.{name}" in MODULES else module for _, module, name in crossings()
    }
    crossed = {module for module in named if module.startswith("offload.")}

    assert {module: re.findall(r"`(\w+)`", names) for module, names in rows} == {
        module: sorted(importlib.import_module(module).__all__) for module in crossed
    }
