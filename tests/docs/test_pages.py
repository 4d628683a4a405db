"""The pages agree with the code and with each other, and avoid unwanted words."""

import ast
import importlib
import re
import runpy
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

import offload
from offload.cli.commands import BUILT_IN

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
    """Return the anchors of the headings of a page, by GitHub's rule."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_has_a_target(page):
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page

        assert target.exists(), f"{named(page)} links to {link}"
        assert target.is_relative_to(ROOT)
        assert not anchor or anchor in anchors(target), f"{named(page)} links to {link}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_pages_contain_no_advertising_words(page):
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


@pytest.mark.parametrize("name", ["format", "pulsar"])
def test_a_format_page_matches_the_code(name):
    made = runpy.run_path(str(DOCS / "make_format.py"))["page"](name)

    assert (DOCS / f"{name}.md").read_text(encoding="utf-8") == made, "run: python docs/make_format.py"


@pytest.mark.parametrize("name", ["how-it-works.md", "adr/0020-rooms-of-the-core.md"])
def test_the_lists_of_files_match_the_tree(name):
    made = runpy.run_path(str(DOCS / "make_file_map.py"))["PAGES"][DOCS / name]()

    assert (DOCS / name).read_text(encoding="utf-8") == made, "run: python docs/make_file_map.py"


def test_the_file_map_has_every_folder_of_the_code():
    mapped = re.findall(
        r"^\| `([\w/]+)/` \|", (DOCS / "how-it-works.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    packages = {
        str(init.parent.relative_to(ROOT))
        for top in ("offload", "backends", "plugins", "conformance")
        for init in (ROOT / top).rglob("__init__.py")
    }

    assert sorted(mapped) == sorted(packages - {"offload"})


def test_the_files_that_a_change_belongs_to_exist():
    page = (DOCS / "how-it-works.md").read_text(encoding="utf-8")
    section = page.partition("## Where a change belongs")[2].partition("\n## ")[0]
    paths = re.findall(r"`((?:offload|backends|plugins|examples)/[\w./]+)`", section)

    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_api_page_lists_every_public_name_once():
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)

    assert sorted(listed) == sorted(offload.__all__)


def test_the_api_page_lists_only_names_that_their_modules_make_public():
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    names = re.findall(r"^\| `(offload\w*(?:\.\w+)+)` \|", page, re.MULTILINE)

    assert names
    for name in names:
        module, _, attribute = name.rpartition(".")
        assert attribute in importlib.import_module(module).__all__, name


@pytest.mark.parametrize("package", sorted(path.parent.name for path in ROOT.glob("*/offload_*/__init__.py")))
def test_the_api_page_lists_every_public_name_of_the_other_packages(package):
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    public = getattr(importlib.import_module(package), "__all__", ())

    assert sorted(re.findall(rf"^\| `{package}\.(\w+)` \|", page, re.MULTILINE)) == sorted(public)


def exists(name: str) -> bool:
    """Return whether a module, or an attribute in a module or a class, has this full name."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part, None)
        return found is not None
    return False


def test_the_page_of_old_names_has_names_of_this_release():
    page = (DOCS / "old-names.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| `[^|]* \| ([^|]*) \|$", page, re.MULTILINE)
    names = {name for cell in cells for name in re.findall(r"`(offload\w*\.[\w.]+)`", cell)}

    assert len(names) > 200
    assert [name for name in sorted(names) if not exists(name)] == []


def test_the_readme_is_short():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").count("\n")

    assert lines < 200


def test_the_list_of_documents_names_every_page():
    text = (DOCS / "README.md").read_text(encoding="utf-8")
    linked = {(DOCS / link.partition("#")[0]).resolve() for link in LINK.findall(text)}

    assert [
        named(page) for page in DOCS.glob("*.md") if page not in linked and page.name != "README.md"
    ] == []


def test_the_list_of_documents_has_one_row_for_each_page():
    rows = re.findall(r"^\| (.*?) \|", (DOCS / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    pages = [link for row in rows for link in LINK.findall(row)]

    assert len(pages) == len({*pages})


def test_each_line_of_the_readme_that_says_where_to_begin_has_four_pages_and_each_leads_to_the_next():
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Where to begin")[2]
    lines = [LINK.findall(row) for row in re.findall(r"^\| \*\*You .*$", section, re.MULTILINE)]

    assert [len(line) for line in lines] == [4, 4, 4, 4]
    for line in lines:
        for page, following in pairwise(line):
            links = LINK.findall((ROOT / page).read_text(encoding="utf-8"))
            assert Path(following).name in links, f"{page} does not lead to {following}"


def test_task_pages_say_when_what_you_will_see_and_what_to_do_if_it_fails():
    tasks = (DOCS / "README.md").read_text(encoding="utf-8").partition("## Tasks")[2].partition("\n## ")[0]
    code = {"embedding.md", "programs.md", "queues.md", "sources.md", "write-a-backend.md"}
    pages = {*re.findall(r"\]\(([\w-]+\.md)\)", tasks)} - code
    parts = ("**When you need it.**", "**The command.**", "**What you will see.**", "f it fails")

    assert len(pages) == 23
    for page in pages:
        text = (DOCS / page).read_text(encoding="utf-8")
        assert [part for part in parts if part not in text] == [], page


NOT_OURS = {
    "externally-managed-environment", "No matching distribution found for ledger-offload",
    "user_id property set to ...",
    "requires a different Python", "offload: command not found", "No space left", "Permission denied",
    "object: expected present, found absent", "stream.anchor ... expected present, found absent",
}  # fmt: skip
"""Texts of pip, shells, operating systems and a broker, and two that `Corrupt` makes of values alone."""


TASK_PAGES = (
    "install", "copy-a-rabbitmq-stream", "copy-rocketmq-queues", "read-it-back", "a-sync-stopped",
    "retention-and-sweeping", "upkeep",
    "compress", "encrypt", "lost-roots", "run", "restore", "capacity-and-cost", "move-a-tier", "upgrade",
    "find-by-key", "rescue-classic-queues", "archive-mqtt", "replay-by-topic",
)  # fmt: skip


def texts_of_the_code() -> str:
    """Return every string of the code, a line for each, with `...` for values."""
    found = []
    for path in (path for top in ("offload", "backends", "plugins") for path in (ROOT / top).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "..." for part in node.values]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def longest_run(words: list[str], text: str) -> int:
    """Return the length of the longest run of consecutive words that occurs in the text."""
    lengths = range(len(words), 0, -1)
    return next(
        (n for n in lengths for i in range(len(words) - n + 1) if " ".join(words[i : i + n]) in text), 0
    )


def test_error_texts_on_task_pages_occur_in_the_code():
    """An operator searches the first column of a table for the words of an error line.

    Values are part of some texts, so most of the words must be in the code, not all.
    """
    rows = re.compile(r"^\| (?:the error says|it says|you see) \|.*\n\|.*\n((?:\|.*\n)+)", re.MULTILINE)
    code = texts_of_the_code()
    unknown = []
    for page in TASK_PAGES:
        tables = rows.findall((DOCS / f"{page}.md").read_text(encoding="utf-8"))
        assert tables, page
        for row in "".join(tables).splitlines():
            for shown in {*re.findall(r"`([^`]+)`", row.split("|")[1])} - NOT_OURS:
                parts = [part.split() for part in shown.split("...")]
                unknown += [(page, part) for part in parts if 2 * longest_run(part, code) < len(part)]

    assert unknown == []


def test_the_dependencies_page_explains_exactly_the_dependencies():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [
        *project["build-system"]["requires"],
        *project["project"]["dependencies"],
        *(each for extra in project["project"]["optional-dependencies"].values() for each in extra),
    ]
    names = {re.split(r"[\[<>=!~; ]", each)[0] for each in wanted} - {project["project"]["name"]}
    page = (DOCS / "dependencies.md").read_text(encoding="utf-8")

    assert set(re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)) == names


def test_the_install_page_lists_every_extra_and_all_has_all_but_the_tests():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    users = {*extras} - {"test"}
    page = (DOCS / "install.md").read_text(encoding="utf-8")
    section = page.partition("## Install with pip")[2].partition("\n## ")[0]

    assert {*re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)} == users
    assert extras["all"] == [f"ledger-offload[{','.join(sorted(users - {'all'}))}]"]
    assert "ledger-offload[all]" in extras["test"]


def test_the_page_on_security_has_the_permissions_of_every_command():
    page = (DOCS / "security.md").read_text(encoding="utf-8")
    section = page.partition("## The permissions that each command needs")[2].partition("\n\n`repair`")[0]
    known = set(re.findall(r"`([a-z]+)[ `]", section))

    assert {*BUILT_IN} - known == {"demo", "ctl", "help", "plugins"}, "these use no store of a tier"


def test_the_glossary_has_one_row_for_each_word_that_is_used():
    page = (DOCS / "glossary.md").read_text(encoding="utf-8").partition("\n## ")[0]
    terms = re.findall(r"^\| \*\*([\w -]+)\*\* \|", page, re.MULTILINE)
    others = "\n".join(
        path.read_text(encoding="utf-8")
        for path in (*PAGES, *ROOT.glob("offload/**/*.py"))
        if path.name != "glossary.md"
    ).lower()

    assert len(terms) > 15
    assert len(set(terms)) == len(terms) == len(re.findall(r"^\| .* \| .* \|$", page, re.MULTILINE)) - 1
    assert [term for term in terms if not re.search(rf"\b{term.lower()}s?\b", others)] == []


def test_decisions_are_numbered_without_gaps_and_have_the_same_sections():
    pages = sorted((DOCS / "adr").glob("0*.md"))

    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    for page in pages:
        heads = re.findall(r"^## (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert heads == ["Context", "Decision", "Consequences", "Rejected"], page.name
