"""How to install an extra that is missing, in the way in which its distribution was installed.

Pip, uv and pipx leave a record of that: `direct_url.json` names a folder, a repository or a file that the
distribution came from, and is absent if it came from an index; `INSTALLER` names the program; pipx and
`uv tool` put a file of theirs into the environment that they made.
"""

from __future__ import annotations

import json
import shlex
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

__all__ = ["install_command", "missing_text"]


PIPX_FILE: Final = "pipx_metadata.json"
UV_TOOL_FILE: Final = "uv-receipt.toml"


def install_command(requirement: str) -> str:
    """Return the command that installs `requirement`, for example `ledger-offload[s3]`, where this runs.

    It is one line for a shell. It never fails: without any record, it is pip's with the running Python.
    """
    name, bracket, extra = requirement.partition("[")
    try:
        found = distribution(name)
    except PackageNotFoundError:  # run from a folder that nobody installed
        return _pip(["install", requirement])
    origin = _origin(found)
    words = ["install", *_specifier(name, bracket + extra, origin)]
    prefix = Path(sys.prefix)
    if (prefix / PIPX_FILE).exists():
        return shlex.join(["pipx", "runpip", prefix.name, *words])
    if (prefix / UV_TOOL_FILE).exists():
        return shlex.join(["uv", "tool", *words])
    if (found.read_text("INSTALLER") or "").strip() == "uv" or find_spec("pip") is None:
        return shlex.join(["uv", "pip", *words[:1], "--python", sys.executable, *words[1:]])
    return _pip(words)


def missing_text(who: str, what: str, requirement: str) -> str:
    """Return the sentence of an error: `who` needs `what`, and the command that installs `requirement`."""
    return f"{who} needs {what}, which is not installed: {install_command(requirement)}"


def _pip(words: list[str]) -> str:
    return shlex.join([sys.executable, "-m", "pip", *words])


def _origin(found: Distribution) -> dict[str, Any]:
    """Where a distribution came from; empty if from an index, or if the record cannot be read."""
    try:
        origin = json.loads(found.read_text("direct_url.json") or "{}")
        return origin if isinstance(origin.get("url"), str) else {}
    except (ValueError, AttributeError):
        return {}


def _specifier(name: str, extras: str, origin: dict[str, Any]) -> list[str]:
    """The words that name a distribution with extras, as pip and uv take them."""
    url = origin.get("url")
    if url is None:
        return [f"{name}{extras}"]
    if "dir_info" in origin:
        folder = f"{unquote(urlsplit(url).path)}{extras}"
        return ["-e", folder] if origin["dir_info"].get("editable") else [folder]
    if vcs := origin.get("vcs_info"):
        url = f"{vcs['vcs']}+{url}@{vcs.get('requested_revision') or vcs['commit_id']}"
    return [f"{name}{extras} @ {url}"]
