"""How the programs of servers are had: each by the ordinary client of its registry, into one folder.

The folder is `$OFFLOAD_SERVERS_HOME`, by default `ledger-offload/servers` in the user's cache. Nothing is
installed into the system, and nothing into the checkout. A program is made in a folder beside its place
and renamed into it when it is complete: so a program that is there is whole, whatever interrupted us.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, ClassVar, Final

from servers.processes import bound_to_us

STALL_SECONDS: Final = 600
"""How long a client may print nothing and write nothing. How long it takes in all depends on the machine."""

POLL_SECONDS: Final = 20
"""How often is looked whether it moves on. A look goes through some 60,000 files while MinIO is built."""


class CannotBeHad(Exception):
    """A client failed; the message has what it said last."""


def home() -> Path:
    """The folder of all programs, outside the checkout."""
    chosen = os.environ.get("OFFLOAD_SERVERS_HOME")
    if chosen:
        return Path(chosen).expanduser().resolve()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "ledger-offload" / "servers"


class Recipe(ABC):
    """How one program is had, and at which version."""

    builds: ClassVar = False
    """Keeps the processor busy for minutes: such recipes run one after another, the others side by side."""

    tools: ClassVar[Sequence[str]] = ()
    """Programs of the machine that it needs, to be installed or to run."""

    @property
    @abstractmethod
    def folder(self) -> Path:
        """Where the program is, or will be; another version has another folder."""

    @property
    @abstractmethod
    def version(self) -> str:
        """The version that is installed, or that would be."""

    @abstractmethod
    def make(self, folder: Path) -> None:
        """Put the program into `folder`, which is new and empty. Raises `CannotBeHad`."""

    def missing(self) -> str | None:
        """Why the program cannot be run here and what to do; None where it can."""
        if self._lacking:
            return (
                f"it needs {self._lacking}, which this machine lacks: install that, then run `make servers`"
            )
        return None if self.folder.is_dir() else "not installed: run `make servers`"

    def install(self) -> None:
        """Install the program unless it is there. Raises `CannotBeHad`; then nothing is left of it."""
        with _alone(self.folder):
            if self.folder.is_dir():
                return
            if self._lacking:
                raise CannotBeHad(f"it needs {self._lacking}, which is not here")
            unfinished = self.folder.with_name(f"{self.folder.name}.unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            try:
                self.make(unfinished)
                unfinished.rename(self.folder)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)

    @property
    def _lacking(self) -> str:
        return " and ".join(tool for tool in self.tools if shutil.which(tool) is None)


@dataclass(frozen=True)
class Included(Recipe):
    """A distribution that the extra `test` brings into this very environment."""

    distribution: str

    @property
    def folder(self) -> Path:
        """That of the interpreter's environment."""
        return Path(sys.prefix)

    @property
    def version(self) -> str:
        """As constraints.txt has it."""
        return metadata.version(self.distribution)

    def make(self, folder: Path) -> None:
        """Never called: the folder of a running interpreter is there."""
        raise AssertionError(folder)


@dataclass(frozen=True)
class _Pinned(Recipe):
    package: str
    pinned: str

    @property
    def folder(self) -> Path:
        return home() / f"{self.package.rpartition('/')[2]}-{self.pinned}"

    @property
    def version(self) -> str:
        return self.pinned


class PypiPackage(_Pinned):
    """A package of PyPI in a virtual environment of its own, whose `bin/python` runs it."""

    def make(self, folder: Path) -> None:
        """By venv and pip."""
        _run(sys.executable, "-m", "venv", "--without-pip", folder)
        python = folder / "bin" / "python"
        _run(
            *(sys.executable, "-m", "pip", "--python", python, "install", "--quiet"),
            *("--disable-pip-version-check", f"{self.package}=={self.pinned}"),
            growing=folder,
        )


class NpmPackage(_Pinned):
    """A package of npm with all that it needs, under `node_modules`."""

    tools = ("npm", "node")

    def make(self, folder: Path) -> None:
        """By npm; no package's own scripts are run."""
        _run(
            *("npm", "install", "--prefix", folder, "--silent", "--no-audit", "--no-fund"),
            *("--ignore-scripts", "--omit=optional", f"{self.package}@{self.pinned}"),
            growing=folder,
        )


class GoProgram(_Pinned):
    """A program built from a Go module, under `bin`."""

    builds = True
    tools = ("go",)

    def make(self, folder: Path) -> None:
        """By `go install`. Modules and objects are kept until the build is done: it is long, and resumes."""
        workshop = home() / f"{self.folder.name}.building"
        _run(
            *("go", "install", "-v", "-trimpath", "-ldflags=-s -w", f"{self.package}@{self.pinned}"),
            growing=workshop,
            env={
                "GOBIN": str(folder / "bin"),
                "GOPATH": str(workshop / "modules"),
                "GOCACHE": str(workshop / "objects"),
                "GOFLAGS": f"{os.environ.get('GOFLAGS', '')} -modcacherw".strip(),
            },
        )
        shutil.rmtree(workshop, ignore_errors=True)


@dataclass(frozen=True)
class DebianPackages(Recipe):
    """Debian packages with what this machine lacks of their dependencies, unpacked and never installed.

    So it needs no root, starts no services, and leaves no users behind. The price: a library that the
    machine had when the packages were fetched, and has lost since, is missed. Then remove the folder
    and run `make servers` again. The version is whatever this release of Debian has.
    """

    name: str
    packages: tuple[str, ...]

    tools = ("apt-get", "dpkg", "dpkg-deb")

    @property
    def folder(self) -> Path:
        """One for each release of the system."""
        release = _os_release()
        return home() / f"{self.name}-{release.get('ID', 'linux')}-{release.get('VERSION_ID', 'unstable')}"

    @property
    def version(self) -> str:
        """That of the first package."""
        said = self.folder / "version"
        return said.read_text().strip() if said.exists() else "as Debian has it"

    def make(self, folder: Path) -> None:
        """By apt-get with lists and archives of its own, so that neither root nor old lists matter."""
        lists, archives = folder / "lists", folder / "archives"
        for each in (lists, archives):
            (each / "partial").mkdir(parents=True)
        private = (
            *("-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache::archives={archives}"),
            *("-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache="),
            *("-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User=root", "-o", "Acquire::Languages=none"),
        )
        _run("apt-get", "-qq", *private, "update", growing=folder)
        wanted = ("--download-only", "--reinstall", "--no-install-recommends", "--yes", "install")
        _run("apt-get", "-qq", *private, *wanted, *self.packages, growing=folder)
        for archive in sorted(archives.glob("*.deb")):
            _run("dpkg-deb", "--extract", archive, folder, growing=folder)
            if archive.name.startswith(f"{self.packages[0]}_"):
                shown = _run("dpkg-deb", "--field", archive, "Version")
                (folder / "version").write_text(shown)
        shutil.rmtree(lists)
        shutil.rmtree(archives)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Only one process installs a program at a time; the others wait, and then find it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(
    *argv: str | Path,
    growing: Path | None = None,
    env: Mapping[str, str] | None = None,
    stall_seconds: float = STALL_SECONDS,
    poll_seconds: float = POLL_SECONDS,
) -> str:
    """Run a client to its end, however long that takes, and return what it printed.

    It is ended, with its children, once its output and the files below `growing` have not changed for
    `stall_seconds`. Raises `CannotBeHad` then, and if it fails.
    """
    name = Path(argv[0]).name
    with TemporaryFile("w+") as output, TemporaryFile("w+") as errors:
        running = subprocess.Popen(
            [*bound_to_us(), *map(str, argv)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env={**os.environ, **(env or {})},
            start_new_session=True,  # so that what it started can be ended with it
        )
        patience = Patience(stall_seconds)
        try:
            while not _has_ended(running, poll_seconds):
                printed = os.fstat(output.fileno()).st_size + os.fstat(errors.fileno()).st_size
                if not patience.lasts((printed, *_size_of(growing))):
                    raise CannotBeHad(f"{name} has not moved on for {stall_seconds:.0f} seconds")
        finally:
            with suppress(ProcessLookupError):  # nothing is left of it, as always when it has ended well
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
        said, trouble = (_all_of(stream) for stream in (output, errors))
    if running.returncode:
        last = " / ".join((trouble or said).strip().splitlines()[-3:])
        raise CannotBeHad(f"{name} ended with code {running.returncode}: {last}")
    return said


class Patience:
    """Lasts as long as something moves on: a machine that is busy is slow, and not stuck."""

    def __init__(self, stall_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._stall_seconds, self._clock = stall_seconds, clock
        self._seen: object = None
        self._since = clock()

    def lasts(self, state: object) -> bool:
        """Whether to go on waiting, now that the work is in this `state`."""
        if state != self._seen:
            self._seen, self._since = state, self._clock()
        return self._clock() - self._since < self._stall_seconds


def _has_ended(running: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        running.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _size_of(folder: Path | None) -> tuple[int, int]:
    """How many files are below, and their bytes. What vanishes meanwhile does not count."""
    files = size_bytes = 0
    for where, _, names in os.walk(folder) if folder else ():
        for name in names:
            with suppress(OSError):
                size_bytes += os.lstat(os.path.join(where, name)).st_size
                files += 1
    return files, size_bytes


def _all_of(stream: IO[str]) -> str:
    stream.seek(0)
    return stream.read()


def _os_release() -> dict[str, str]:
    try:
        lines = Path("/etc/os-release").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip('"') for name, _, value in (line.partition("=") for line in lines)}
