"""Entries for the next release are files in `changes`. towncrier makes a section of the changelog of them."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENTRIES = sorted(path for path in (ROOT / "changes").iterdir() if path.name != "README.md")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def changelog_sections() -> dict[str, str]:
    """Return the sections of the changelog by their headings, the newest first."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_every_entry_has_a_name_that_towncrier_reads():
    kinds = "|".join(kind["directory"] for kind in PROJECT["tool"]["towncrier"]["type"])

    name = re.compile(rf"\+[a-z0-9-]+\.({kinds})\.md")
    assert [path.name for path in ENTRIES if not name.fullmatch(path.name)] == []


def test_links_of_an_entry_lead_from_the_root_of_the_repository():
    for path in ENTRIES:
        for link in re.findall(r"\]\(([^)\s#]+)", path.read_text(encoding="utf-8")):
            assert "://" in link or (ROOT / link).exists(), f"{path.name} links to {link}"


def test_towncrier_prints_every_entry():
    command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "99.0.0"]

    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert "## 99.0.0" in printed
    lines = {line.strip(" -") for line in printed.splitlines()}
    for path in ENTRIES:
        written = {line.strip(" -") for line in path.read_text(encoding="utf-8").splitlines()}
        assert written <= lines, f"{path.name} is not printed"


def test_the_changelog_has_no_entries_that_are_not_released():
    lines = changelog_sections()["Unreleased"].splitlines()

    assert [line for line in lines if line.startswith(("-", "#"))] == []


def test_the_newest_section_of_the_changelog_is_that_of_the_version_of_the_package():
    unreleased, newest, *_ = changelog_sections()

    assert (unreleased, newest) == ("Unreleased", PROJECT["project"]["version"])
