"""The suite as its users run it: the real command, and an author's tests, each in its own process.

Messages, deadlines and Ctrl-C depend on the first imports of a process and on the way it ends. So no test
within pytest's own process can show them.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest
from campaign import few
from conformance_box.installed import ROOT, Site
from offload_conformance import pytest_plugin

COMMAND = (str(Path(sys.executable).with_name("offload")), "conformance")

STORE = """
    import asyncio
    import threading

    from offload.store.memory import MemoryStore

    OBJECTS, LOCK = {}, threading.Lock()

    def open_url(url):
        return Store(objects=OBJECTS, name=url.partition("://")[2])

    class Store(MemoryStore):
        async def create(self, key, data):
            await self.acquire()
            await super().create(key, data)
            LOCK.release()  # not after an error

        async def get(self, key, span=None):
            data = await super().get(key, span)
            return data if span is None else data[:-1]

        async def acquire(self):
"""

HANGS = {
    "a coroutine that nobody resumes": "while not LOCK.acquire(blocking=False): await asyncio.Event().wait()",
    "a call that blocks the event loop": "LOCK.acquire()",
    "a thread that does not end": "await asyncio.to_thread(LOCK.acquire)",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder for distributions, to put on the path of a process."""
    made = tmp_path / "installed"
    made.mkdir()
    return made


def install(folder: Path, acquire: str = "LOCK.acquire(blocking=False)") -> None:
    Site(folder).install("attic", dedent(STORE) + f"        {acquire}\n")


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Yield the running command. It ends with the test."""
    env = os.environ | {"PYTHONPATH": str(folder)}
    with subprocess.Popen(
        [*COMMAND, "attic://here", *arguments],
        env=env,
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_message_of_a_failure_states_the_expected_and_the_found_value(folder: Path) -> None:
    install(folder)

    with started(folder, "--select", "store/ranges_are_exact") as process:
        out, _ = process.communicate(timeout=120)

    assert process.returncode == 1
    assert "Span(start=0, length=10, follows=0) of b'0123456789'" in out
    assert "assert b'012345678' == b'0123456789'" in out


@few("other ways to hang; make test has a call that blocks the event loop", 3, start=1)
@pytest.mark.parametrize("hang", HANGS.values(), ids=HANGS)
def test_a_clause_that_hangs_fails_by_name_and_the_command_ends(folder: Path, hang: str) -> None:
    install(folder, hang)

    with started(folder, "--select", "store/create_never_replaces", "--deadline", "1") as process:
        out, errors = process.communicate(timeout=120)

    assert (process.returncode, errors) == (1, "")
    failed, found, *_ = out.splitlines()
    assert failed.startswith("FAILED store/create_never_replaces: ")
    assert "expected an answer within 1 s; found the backend still waiting, " in found
    assert f"in `acquire` at {folder / 'attic_code.py'}:" in found


def test_after_five_clauses_that_hang_no_other_clause_runs(folder: Path) -> None:
    install(folder, "await asyncio.Event().wait()")

    with started(
        folder, "--select", "store/create*", "--deadline", "1", "--markdown", "report.md"
    ) as process:
        out, errors = process.communicate(timeout=120)

    why = "5 other clauses had exceeded their deadlines"
    page = (folder / "report.md").read_text()
    assert out.count("expected an answer within 1 s") == 5
    assert re.search(f"^note: [0-9]+ clauses did not run to the end: {why}$", errors, re.MULTILINE)
    assert re.search(f"^\\| [0-9]+ clauses \\| {why} \\|$", page, re.MULTILINE)


def test_a_note_names_the_clause_that_ctrl_c_interrupted(folder: Path) -> None:
    install(
        folder, "print('waiting', flush=True, file=__import__('sys').stderr); await asyncio.Event().wait()"
    )

    with started(folder, "--select", "store/create_never_replaces") as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)

    assert process.returncode == 130
    assert "store/create_never_replaces: Ctrl-C ended the run " in errors
    assert "clauses did not run to the end" in errors
    assert "offload: stopped; the report has the results so far; another run starts" in errors


AUTHOR = """
    from attic_code import Store
    from offload_conformance import Limits, StoreBackend

    class TestAttic(StoreBackend):
        limits = Limits(clause_seconds_max=1)

        def open_backend(self):
            return Store(objects=self.__dict__.setdefault("objects", {}))

        def keys_in_store(self):
            return set(self.objects)
"""


@few("an author's tests on a wheel; make test has them on an editable installation", 2)
@pytest.mark.parametrize("how", ["editable", "wheel"])
def test_an_author_s_own_tests_give_the_same_message(
    folder: Path, tmp_path: Path, wheel_site: Path, how: str
) -> None:
    """The checkout is installed as editable, and pytest itself rewrites the modules that a wheel lists."""
    install(folder, HANGS["a thread that does not end"])
    (tmp_path / "test_attic.py").write_text(dedent(AUTHOR))
    path = [str(folder), *([str(wheel_site)] if how == "wheel" else [])]

    pytest_ = (
        sys.executable,
        "-W",
        "error",
        "-m",
        "pytest",
        "-q",
        "-c",
        os.devnull,
        "--import-mode=importlib",
    )
    ran = subprocess.run(
        [*pytest_, "--rootdir", tmp_path, "-k", "ranges_are_exact or create_never_replaces", tmp_path],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert ran.returncode == 1, ran.stderr
    assert "assert b'012345678' == b'0123456789'" in ran.stdout
    assert "expected an answer within 1 s; found the backend still waiting, in `acquire` at" in ran.stdout


@pytest.fixture(scope="module")
def wheel_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with this checkout as pip installs it from its wheel."""
    target = tmp_path_factory.mktemp("wheel")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    subprocess.run([*pip, "--target", str(target), str(ROOT)], check=True, timeout=120)
    return target


def test_a_run_executes_no_conftest_of_a_folder_above_the_suite(tmp_path: Path) -> None:
    """The suite may be installed below somebody's tests. Their `conftest.py` could change the clauses."""
    shutil.copytree(ROOT / "conformance", tmp_path / "site", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "site" / "conftest.py").write_text("raise SystemExit('ran')")
    (tmp_path / "place").mkdir()

    done = subprocess.run(
        [*COMMAND, tmp_path / "place", "--select", "store/absence_is_an_error"],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert (done.returncode, "ran" in done.stdout + done.stderr) == (0, False), done.stderr


def test_every_module_that_asserts_about_a_backend_is_rewritten() -> None:
    """Otherwise a clause in a new module would fail with a bare `AssertionError`."""
    package = Path(pytest_plugin.__file__).parent
    modules = {path.relative_to(package).with_suffix("").parts[0]: path for path in package.rglob("*.py")}
    asserting = {
        path.relative_to(package).with_suffix("").parts[0]
        for path in package.rglob("*.py")
        if any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(path.read_text())))
    }

    own = {
        "asynchronous",
        "box",
        "boxed",
        "bugs",
        "command",
        "contender",
        "report",
        "running",
    }  # assertions about the suite itself
    assert asserting <= {*pytest_plugin.REWRITTEN, *own}
    assert set(pytest_plugin.REWRITTEN) <= modules.keys()
