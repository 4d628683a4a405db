"""Tests of the test servers: none is skipped silently, none outlives its test, none is half installed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from servers import SERVERS, Running, server
from servers.processes import NotReady, free_port, process, wait_until_it_answers
from servers.recipes import CannotBeHad, Patience, Recipe, _run, home
from servers.scratch import scratch_folder

ROOT = Path(__file__).parents[2]
USES_A_SERVER = "tests/backends/test_refused_stores.py"
ITS_SERVER = "gcp-storage-emulator"


@dataclass(frozen=True)
class Broken(Recipe):
    """A recipe that fails after its first file."""

    place: Path
    version = "1"

    @property
    def folder(self) -> Path:
        return self.place

    def make(self, folder: Path) -> None:
        (folder / "half").write_bytes(b"")
        raise CannotBeHad("the network is down")


class Whole(Broken):
    def make(self, folder: Path) -> None:
        (folder / "all").write_bytes(b"")


def run_without_servers(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run one file of tests on a machine without any installed server."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", USES_A_SERVER, "-p", "no:cacheprovider"],
        cwd=ROOT,
        env={
            **os.environ,
            "OFFLOAD_SERVERS_REQUIRED": "",
            "OFFLOAD_SERVERS_HOME": str(tmp_path),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def rows_of(stdout: str) -> dict[str, str]:
    """Return the rows of the closing table, by server."""
    rows = [line for line in stdout.splitlines() if line.startswith(("s3 ", "gcs ", "azure "))]
    return {line.split()[1]: line for line in rows}


def test_a_missing_server_is_named_with_the_reason(tmp_path: Path) -> None:
    done = run_without_servers(tmp_path)

    assert done.returncode == 0
    rows = rows_of(done.stdout)
    assert set(rows) == {each.name for each in SERVERS}
    assert rows[ITS_SERVER].endswith(
        f"NOT RUN: {ITS_SERVER} cannot be run here: not installed: run `make servers`"
    )
    assert all(row.endswith("not used by this selection") for name, row in rows.items() if name != ITS_SERVER)


def test_a_missing_server_that_is_required_fails_its_tests(tmp_path: Path) -> None:
    done = run_without_servers(tmp_path, OFFLOAD_SERVERS_REQUIRED="1")

    assert done.returncode == 1
    assert rows_of(done.stdout)[ITS_SERVER].split()[4:7] == ["0", "3", "0"]


def test_a_failed_installation_leaves_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    program = tmp_path / "program"

    with pytest.raises(CannotBeHad):
        Broken(program).install()
    left = [path.name for path in tmp_path.iterdir()]
    Whole(program).install()
    Broken(program).install()  # it is installed: the recipe does not run

    assert left == [".program.lock"]
    assert [path.name for path in program.iterdir()] == ["all"]


def test_the_remains_of_an_interrupted_installation_are_not_used(tmp_path: Path) -> None:
    (tmp_path / "program.unfinished").mkdir()
    (tmp_path / "program.unfinished" / "half").write_bytes(b"")

    missing = Whole(tmp_path / "program").missing()
    Whole(tmp_path / "program").install()

    assert missing == "not installed: run `make servers`"
    assert [path.name for path in (tmp_path / "program").iterdir()] == ["all"]


def test_programs_are_installed_outside_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OFFLOAD_SERVERS_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)

    assert not home().is_relative_to(ROOT)


def test_a_process_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("servers.processes.STOP_SECONDS", 0.2)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True)"
    log = tmp_path / "log"

    with process(sys.executable, "-c", f"{deaf}; time.sleep(60)", log=log) as running:
        while not log.read_bytes():
            pass

    assert running.returncode == -signal.SIGKILL


def test_the_next_process_removes_the_files_of_a_killed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    killed = (
        "import os; from servers.scratch import scratch_folder as s; f = s('x'); f.__enter__(); os._exit(1)"
    )
    subprocess.run(
        [sys.executable, "-c", killed], env={**os.environ, "PYTHONPATH": str(ROOT / "tests")}, check=False
    )
    left = list(tmp_path.iterdir())

    with scratch_folder("y") as first, scratch_folder("z") as second:
        found = set(tmp_path.iterdir())

        assert len(left) == 2
        assert found == {
            each.with_name(f"{each.name}{end}") for each in (first, second) for end in ("", ".lock")
        }
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_ends_at_once_is_reported_with_its_last_output(tmp_path: Path) -> None:
    log = tmp_path / "log"

    with (
        process(sys.executable, "-c", "raise SystemExit('no such thing')", log=log) as running,
        pytest.raises(NotReady, match="no such thing"),
    ):
        wait_until_it_answers(f"http://127.0.0.1:{free_port()}", running, log=log)


def test_the_page_of_the_tests_lists_every_server() -> None:
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")

    for each in SERVERS:
        assert page.count(f"| `{each.name}` |") >= 1, each.name


def test_a_server_that_died_is_reported_with_its_last_output(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text("fine\nout of something\n")
    endpoint = f"http://127.0.0.1:{free_port()}"
    dead = Running(server=server("fake-gcs-server"), endpoint=endpoint, version="1", scratch=tmp_path)

    with pytest.raises(OSError, match="refused") as told:
        dead.place()

    assert told.value.__notes__ == ["fake-gcs-server: server.log: fine / out of something"]


def test_patience_lasts_as_long_as_there_is_progress() -> None:
    now = [0.0]
    patience = Patience(600, clock=lambda: now[0])

    for state in range(100):  # sixteen hours, with a step every 599 seconds
        now[0] += 599
        assert patience.lasts(state)
    now[0] += 599
    assert patience.lasts(99)
    now[0] += 1
    assert not patience.lasts(99)


def test_a_stuck_client_is_killed_with_its_children(tmp_path: Path) -> None:
    """The child holds the writing end of a pipe, which closes when the child ends."""
    os.mkfifo(tmp_path / "alive")
    script = f"sleep infinity > {tmp_path / 'alive'} & sleep infinity"
    reading = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)

    with pytest.raises(CannotBeHad, match="sh has not moved on for 0 seconds"):
        _run("sh", "-c", script, stall_seconds=0, poll_seconds=0.01)

    os.set_blocking(reading, True)
    assert os.read(reading, 1) == b""
    os.close(reading)


def test_the_output_of_a_client_is_returned_or_is_in_its_error() -> None:
    assert _run("sh", "-c", "echo heard; echo noise >&2") == "heard\n"
    with pytest.raises(CannotBeHad, match="sh ended with code 3: out of luck"):
        _run("sh", "-c", "echo out of luck >&2; exit 3")


@pytest.mark.parametrize("prints", [True, False])
def test_a_client_that_prints_or_writes_makes_progress(tmp_path: Path, prints: bool) -> None:
    """The client works until three checks have seen three different states; otherwise it is killed."""
    states = set()

    class Looked(Patience):
        def lasts(self, state: object) -> bool:
            states.add(state)
            if len(states) == 3:
                (tmp_path / "enough").touch()
            return super().lasts(state)

    work = "echo step" if prints else f"echo step >> {tmp_path / 'grown'}"
    script = f"until [ -e {tmp_path / 'enough'} ]; do {work}; sleep 0.01; done"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("servers.recipes.Patience", Looked)
        _run("sh", "-c", script, growing=tmp_path, stall_seconds=60, poll_seconds=0.02)

    assert len(states) >= 3
