"""docs/write-a-backend.md, step by step: the skeleton with the code of the page keeps the contracts."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from campaign import CAMPAIGN
from strangers.suites import ROOT, environment, outcomes, run

GUIDE = ROOT / "docs" / "write-a-backend.md"
BLOCK = re.compile(r"^```py\n# (\S+?)(?:, continued)?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SLOW = ("page_after_page", "keys_change", "between_processes", "at_every_border", "any_calls")
"""Clauses that take most of the time here. `make test` asks them of a folder."""

ASKED = () if CAMPAIGN else ("-k", " and not ".join(["TestStore", *SLOW]))
"""The clauses that the store of the page must keep: those of stores, and in the campaign all."""

OFFLOAD = ("-c", "from offload.cli.main import main; main()")


def files_of_the_guide() -> dict[str, str]:
    """Return each file that the page shows, with its pieces in order."""
    found: dict[str, str] = {}
    for name, code in BLOCK.findall(GUIDE.read_text(encoding="utf-8")):
        found[name] = f"{found[name]}\n{code}" if name in found else code
    return found


def test_the_guide_leads_from_an_empty_folder_to_a_backend_that_passes(tmp_path: Path) -> None:
    """The test follows the steps of the page: make the skeleton, install and list it, write and test the
    code, use it.
    """
    env = environment()
    python = tmp_path / "venv" / "bin" / "python"
    folder, place = tmp_path / "offload-attic", f"attic://{tmp_path}/tier.db"
    pip = ("-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--disable-pip-version-check")

    run(sys.executable, *OFFLOAD, "new-backend", "attic", cwd=tmp_path, env=env)
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path, env=env)
    run(sys.executable, *pip, "--no-deps", "--no-build-isolation", "-e", folder, cwd=tmp_path, env=env)
    listed = json.loads(run(python, *OFFLOAD, "plugins", "--json", cwd=tmp_path, env=env))["plugins"]
    for name, code in files_of_the_guide().items():
        assert (folder / name).exists(), f"the skeleton has no {name}"
        (folder / name).write_text(code)
    found = outcomes(folder, *ASKED, paths=[folder])
    box = (*OFFLOAD, "conformance", place, "--select", "store/puts_are_whole", "--badge", "badge.svg")
    run(python, *box, cwd=tmp_path, env=env)
    checked = run(python, *OFFLOAD, "check", place, cwd=tmp_path, env=env)

    [attic] = [plugin for plugin in listed if plugin["plugin"] == "attic"]
    assert (attic["distribution"], attic["error"]) == ("offload-attic", None)
    assert attic["declares"][0]["schemes"] == ["attic"]
    assert {name: error for name, error in found.items() if error} == {}
    assert len(found) > 120
    assert "FAILS" not in checked
    assert "1 of " in (tmp_path / "badge.svg").read_text()


def test_the_guide_shows_each_file_that_has_code_to_write() -> None:
    shown = files_of_the_guide()

    assert list(shown) == ["tests/test_conformance.py", "offload_attic/store.py"]
    assert len(shown["offload_attic/store.py"].splitlines()) < 150
    assert len(shown["tests/test_conformance.py"].splitlines()) < 30
