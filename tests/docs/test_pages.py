"""The pages keep up with the code, with each other and with the house's words."""

import importlib
import re
import runpy
import tomllib
from pathlib import Path

import pytest

import offload

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
UNWANTED = (
    "blazing", "cutting-edge", "effortless", "leverage", "powerful", "robust", "seamless", "simply",
    "state-of-the-art", "unlock", "utilize", "world-class",  # slogans
)  # fmt: skip


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """What a link may name within a page, by GitHub's rule."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page):
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page

        assert target.exists(), f"{named(page)} links to {link}"
        assert target.is_relative_to(ROOT)
        assert not anchor or anchor in anchors(target), f"{named(page)} links to {link}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_words_are_those_of_the_house(page):
    text = page.read_text(encoding="utf-8").lower()

    assert [word for word in UNWANTED if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text)] == []


def test_every_page_is_linked_from_another():
    linked = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in PAGES
        for link in LINK.findall(page.read_text(encoding="utf-8"))
        if not link.startswith(("https://", "#"))
    }

    assert [named(page) for page in PAGES if page not in linked and page.name != "README.md"] == []


def test_pages_named_in_the_code_exist():
    folders = ("offload", "backends", "plugins", "conformance", "benchmarks", "examples")
    for path in [path for folder in folders for path in ROOT.glob(f"{folder}/**/*.py")]:
        for page in re.findall(r"docs/[\w./-]+\.md", path.read_text(encoding="utf-8")):
            assert (ROOT / page).exists(), f"{named(path)} names {page}"


def test_the_format_page_is_what_the_code_says():
    made = runpy.run_path(str(DOCS / "make_format.py"))["page"]()

    assert (DOCS / "format.md").read_text(encoding="utf-8") == made, "run: python docs/make_format.py"


def test_the_api_page_lists_every_public_name_once():
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)

    assert sorted(listed) == sorted(offload.__all__)


def test_names_with_a_module_on_the_api_page_exist():
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    names = re.findall(r"^\| `(offload\w*(?:\.\w+)+)` \|", page, re.MULTILINE)

    assert names
    for name in names:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name


def test_every_dependency_is_explained_and_nothing_else():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [
        *project["build-system"]["requires"],
        *project["project"]["dependencies"],
        *(each for extra in project["project"]["optional-dependencies"].values() for each in extra),
    ]
    names = {re.split(r"[\[<>=!~; ]", each)[0] for each in wanted} - {project["project"]["name"]}
    page = (DOCS / "dependencies.md").read_text(encoding="utf-8")

    assert set(re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)) == names


def test_the_readme_lists_every_extra_and_all_is_all_of_them_but_the_tests():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    users = {*extras} - {"test"}
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    section = page.partition("## Install")[2].partition("\n## ")[0]

    assert {*re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)} == users
    assert extras["all"] == [f"ledger-offload[{','.join(sorted(users - {'all'}))}]"]
    assert "ledger-offload[all]" in extras["test"]


def test_the_words_of_the_glossary_are_used():
    page = (DOCS / "glossary.md").read_text(encoding="utf-8")
    terms = re.findall(r"^\| \*\*([\w -]+)\*\* \|", page, re.MULTILINE)
    others = "\n".join(
        path.read_text(encoding="utf-8")
        for path in (*PAGES, *ROOT.glob("offload/**/*.py"))
        if path.name != "glossary.md"
    ).lower()

    assert len(terms) > 15
    assert [term for term in terms if not re.search(rf"\b{term.lower()}s?\b", others)] == []


def test_decisions_are_numbered_without_gaps_and_built_alike():
    pages = sorted((DOCS / "adr").glob("0*.md"))

    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    for page in pages:
        heads = re.findall(r"^## (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert heads == ["Context", "Decision", "Consequences", "Rejected"], page.name
