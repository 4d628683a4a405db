"""Vault's transit engine behind a front of ours (`main.go`), for the tests of key services.

OpenBao has the same engine, and was not to be had as a Go module when this was written. Vault 1.14 is the
last release under the Mozilla Public License. `python -m servers.transit` builds the program, within
minutes. It is no part of `make servers`, because only the campaign asks it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from servers.processes import free_port, process, wait_until_it_answers
from servers.recipes import GoFolder

RECIPE: Final = GoFolder("github.com/hashicorp/vault", "v1.14.8", Path(__file__).parent)


@contextmanager
def running_engine(scratch: Path, token: str) -> Iterator[str]:
    """Run the engine, and yield its address. Skip the test if it is not built, or tell how."""
    if RECIPE.missing() is not None:
        pytest.skip("Vault's transit engine is not built: run PYTHONPATH=tests python -m servers.transit")
    where, log = f"127.0.0.1:{free_port()}", scratch / "engine.log"
    with process(RECIPE.folder / "bin" / "transit", where, token, log=log) as running:
        wait_until_it_answers(f"http://{where}/", running, log=log)
        yield f"http://{where}"
