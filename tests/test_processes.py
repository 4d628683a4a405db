"""Tests of a run in several processes: it reports what one process would, and loses no test in silence."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parent

CONFTEST: Final = """
from processes import Processes

def pytest_configure(config):
    config.pluginmanager.register(Processes(2, lambda items: [[n, n + 1] for n in range(0, len(items), 2)]))
"""

SUITE: Final = """
import os
from pathlib import Path
import pytest

NOTES = Path(__file__).with_name("notes")

def note(text):
    with NOTES.open("a") as notes:
        notes.write(f"{os.getpid()} {text}\\n")

note("collected")

@pytest.fixture(scope="session", autouse=True)
def shared(tmp_path_factory):
    note(f"begun {tmp_path_factory.mktemp('shared')}")
    yield
    note("ended")

@pytest.mark.parametrize("number", range(8))
def test_a_number(number, tmp_path):
    note(f"ran {number}")
    print(f"number {number} prints")
    ACT
"""


def start(folder: Path, act: str, *options: str) -> subprocess.Popen[str]:
    """Start a run of eight tests in two processes. Each does `act`."""
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib -p no:xdist\n")
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_suite.py").write_text(SUITE.replace("ACT", act))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--rootdir={folder}", *options]
    return subprocess.Popen(
        [*command, f"--basetemp={folder / 'temp'}", str(folder)],
        env={"PYTHONPATH": str(TESTS), "PATH": ""},
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    )


def notes(folder: Path) -> list[list[str]]:
    return [line.split() for line in (folder / "notes").read_text().splitlines()]


def test_one_process_collects_and_two_run_all_tests(tmp_path: Path) -> None:
    with start(tmp_path, "assert number != 5", "-rs") as run:
        output, _ = run.communicate()

    assert run.returncode == pytest.ExitCode.TESTS_FAILED
    assert "1 failed, 7 passed" in output
    assert re.findall(r"number \d prints", output) == ["number 5 prints"]
    found = notes(tmp_path)
    [collector] = {pid for pid, word, *_ in found if word == "collected"}
    assert sorted(number for _, word, *rest in found if word == "ran" for number in rest) == [*"01234567"]
    places = {pid: place for pid, word, *rest in found if word == "begun" for place in rest}
    assert len(set(places.values())) == len(places) == 2
    assert collector not in places
    assert {pid for pid, word, *_ in found if word == "ended"} == places.keys(), "each ends its fixtures once"


def test_the_tests_of_a_group_stay_together_in_their_order(tmp_path: Path) -> None:
    with start(tmp_path, "pass") as run:
        run.communicate()

    ran: dict[str, list[int]] = {}
    for pid, word, *rest in notes(tmp_path):
        if word == "ran":
            ran.setdefault(pid, []).append(int(rest[0]))
    for numbers in ran.values():
        assert [each + 1 for each in numbers[::2]] == numbers[1::2]


def test_a_process_that_dies_fails_the_tests_that_it_was_given(tmp_path: Path) -> None:
    with start(tmp_path, "if number == 3: os._exit(7)") as run:
        output, _ = run.communicate()

    assert run.returncode == pytest.ExitCode.TESTS_FAILED
    assert "its process ended with code 7 in test_suite.py::test_a_number[3]" in output
    [failed, passed] = re.findall(r"(\d+) failed, (\d+) passed", output)[0]
    assert int(failed) + int(passed) == 8


def test_a_run_ends_after_the_failures_that_it_allows(tmp_path: Path) -> None:
    with start(tmp_path, "assert False", "-x") as run:
        output, _ = run.communicate()

    assert run.returncode == pytest.ExitCode.TESTS_FAILED
    assert "stopping after" in output
    assert sum(each[1] == "ran" for each in notes(tmp_path)) <= 4, "one or two in each process"


def test_an_interrupted_run_ends_its_fixtures(tmp_path: Path) -> None:
    with start(tmp_path, "import time; time.sleep(60)") as run:
        while not (tmp_path / "notes").exists() or sum(each[1] == "ran" for each in notes(tmp_path)) < 2:
            time.sleep(0.05)
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=60)

    assert run.returncode == pytest.ExitCode.INTERRUPTED
    assert sum(each[1] == "ended" for each in notes(tmp_path)) == 2


def test_a_module_that_starts_a_thread_is_refused(tmp_path: Path) -> None:
    """A fork would lose the thread, with whatever locks it holds."""
    act = "pass\n\nimport threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()"
    with start(tmp_path, act) as run:
        run.communicate()

    assert run.returncode == pytest.ExitCode.USAGE_ERROR
