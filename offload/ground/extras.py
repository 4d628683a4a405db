"""Commands that install a missing extra, with the same program and from the same origin as its distribution.

Pip, uv and pipx record how they installed a distribution:

- `direct_url.json` names the folder, repository or file that it came from. The file is absent if it came from
  an index.
- `INSTALLER` names the program.
- pipx and `uv tool` put a file of their own into each environment that they make.
"""

from __future__ import annotations

import shlex
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from offload.ground.outside import json_outside

__all__ = ["install_command", "missing_text"]


PIPX_FILE: Final = "pipx_metadata.json"
UV_TOOL_FILE: Final = "uv-receipt.toml"


def install_command(requirement: str) -> str:
    """Return the shell command that installs `requirement`, such as `ledger-offload[s3]`, for this program.

    It is one line. The function never fails: without any record it returns the command of pip, run by the
    present Python.
    """
    name, bracket, extra = requirement.partition("[")
    try:
        found = distribution(name)
    except PackageNotFoundError:  # the program runs from a folder that was never installed
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
    """Return an error text: `who` needs `what`, and the command that installs `requirement`."""
    return f"{who} needs {what}, which is not installed: {install_command(requirement)}"


def _pip(words: list[str]) -> str:
    return shlex.join([sys.executable, "-m", "pip", *words])


def _origin(found: Distribution) -> dict[str, Any]:
    """Return the record of a distribution's origin. It is empty for an index, or if it cannot be read."""
    try:
        origin = json_outside(found.read_text("direct_url.json") or "{}")
        return origin if isinstance(origin.get("url"), str) else {}
    except (ValueError, AttributeError):
        return {}


def _specifier(name: str, extras: str, origin: dict[str, Any]) -> list[str]:
    """Return the arguments by which pip and uv install a distribution with its extras."""
    url = origin.get("url")
    if url is None:
        return [f"{name}{extras}"]
    if "dir_info" in origin:
        folder = f"{unquote(urlsplit(url).path)}{extras}"
        return ["-e", folder] if origin["dir_info"].get("editable") else [folder]
    if vcs := origin.get("vcs_info"):
        url = f"{vcs['vcs']}+{url}@{vcs.get('requested_revision') or vcs['commit_id']}"
    return [f"{name}{extras} @ {url}"]
