"""What is public is what a package's `__all__` names: complete, in order, and explained."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from types import ModuleType

import pytest

PACKAGES = (
    "offload",
    "offload_conformance",
    "offload_azure",
    "offload_gcs",
    "offload_posix",
    "offload_rabbitmq",
    "offload_s3",
    "offload_spark",
)


def module_and_tree(package: str) -> tuple[ModuleType, ast.Module]:
    module = importlib.import_module(package)
    return module, ast.parse(inspect.getsource(module))


def reexported(tree: ast.Module) -> dict[str, str]:
    """The public names that a module imports at its head, for type checkers too, with their homes."""

    def heads(body: list[ast.stmt]) -> Iterator[ast.ImportFrom]:
        for statement in body:
            if isinstance(statement, ast.If):
                yield from heads(statement.body)
            elif isinstance(statement, ast.ImportFrom):
                yield statement

    return {
        alias.asname or alias.name: node.module or ""
        for node in heads(tree.body)
        if (node.module or "").startswith("offload") and node.module != "offload.late"
        for alias in node.names
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_all_is_what_is_reexported(package: str) -> None:
    """Written where type checkers read it, and there when it is asked for."""
    module, tree = module_and_tree(package)

    assert set(module.__all__) == set(reexported(tree))
    for name in module.__all__:
        assert getattr(module, name) is not None


@pytest.mark.parametrize("package", PACKAGES)
def test_names_are_sorted_and_said_once(package: str) -> None:
    module, _ = module_and_tree(package)

    assert list(module.__all__) == sorted(set(module.__all__))


@pytest.mark.parametrize("package", PACKAGES)
def test_names_are_public(package: str) -> None:
    module, _ = module_and_tree(package)

    assert [name for name in module.__all__ if name.startswith("_")] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_explained(package: str) -> None:
    """Classes and functions by their own docstrings, not by a base's and not by a generated one."""
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
def test_public_methods_are_explained(package: str) -> None:
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
def test_names_that_come_late_come_from_where_type_checkers_see_them(package: str) -> None:
    """A package that imports its names on first use says twice where they live: the same, both times."""
    module, tree = module_and_tree(package)

    assert reexported(tree) == module._HOMES
    assert set(module.__all__) <= set(dir(module))


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="NoSuchName"):
        _ = importlib.import_module("offload").NoSuchName
