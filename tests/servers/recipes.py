"""Recipes that install the programs of servers, each with the ordinary client of its registry.

The folder is `$OFFLOAD_SERVERS_HOME`, by default `ledger-offload/servers` in the user's cache. Nothing is
installed into the system or into the checkout. A program is made in a folder beside its final one and
renamed when it is complete. So an existing program is always whole, even after an interruption.
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
"""The longest time without output or written files of a client. The total time depends on the machine."""

POLL_SECONDS: Final = 20
"""The interval of the checks for progress. A check visits about 60,000 files while MinIO is built."""


class CannotBeHad(Exception):
    """The error if a client failed, with its last output."""


def home() -> Path:
    """Return the folder of all programs, outside the checkout."""
    chosen = os.environ.get("OFFLOAD_SERVERS_HOME")
    if chosen:
        return Path(chosen).expanduser().resolve()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "ledger-offload" / "servers"


class Recipe(ABC):
    """The recipe of one program at one version."""

    builds: ClassVar = False
    """True if it keeps the processor busy for minutes. Such recipes run one after another, others
    in parallel.
    """

    tools: ClassVar[Sequence[str]] = ()
    """Programs of the machine that it needs to install or to run."""

    @property
    @abstractmethod
    def folder(self) -> Path:
        """Return the folder of the program. Each version has its own folder."""

    @property
    @abstractmethod
    def version(self) -> str:
        """Return the version to install."""

    @abstractmethod
    def make(self, folder: Path) -> None:
        """Put the program into `folder`, which is new and empty. Raises `CannotBeHad`."""

    def missing(self) -> str | None:
        """Return why the program cannot be run here, and what to do; None if it can."""
        if self._lacking:
            return (
                f"it needs {self._lacking}, which this machine lacks: install that, then run `make servers`"
            )
        return None if self.folder.is_dir() else "not installed: run `make servers`"

    def install(self) -> None:
        """Install the program unless it is installed. Raises `CannotBeHad`; then nothing of it is left."""
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
    """A distribution that the extra `test` installs into this environment."""

    distribution: str

    @property
    def folder(self) -> Path:
        """Return the folder of the interpreter's environment."""
        return Path(sys.prefix)

    @property
    def version(self) -> str:
        """Return the version in constraints.txt."""
        return metadata.version(self.distribution)

    def make(self, folder: Path) -> None:
        """Fail: this is never called, because the folder of a running interpreter exists."""
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
    """A package of PyPI in its own virtual environment, whose `bin/python` runs it."""

    def make(self, folder: Path) -> None:
        """Install the package with venv and pip."""
        _run(sys.executable, "-m", "venv", "--without-pip", folder)
        python = folder / "bin" / "python"
        _run(
            *(sys.executable, "-m", "pip", "--python", python, "install", "--quiet"),
            *("--disable-pip-version-check", f"{self.package}=={self.pinned}"),
            growing=folder,
        )


class NpmPackage(_Pinned):
    """A package of npm with its dependencies, under `node_modules`."""

    tools = ("npm", "node")

    def make(self, folder: Path) -> None:
        """Install the package with npm, without running the scripts of any package."""
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
        """Run `go install`. Modules and objects are kept until the long build is done, so that it
        can resume.
        """
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
class GoFolder(_Pinned):
    """A program of ours in Go, which needs one module, under `bin`. Its name is that of its folder."""

    source: Path

    builds = True
    tools = ("go",)

    @property
    def folder(self) -> Path:
        """Return the folder, which has the names of the program and of the module."""
        return home() / f"{self.source.name}-of-{super().folder.name}"

    def make(self, folder: Path) -> None:
        """Build it in a module of its own, because `go install` refuses modules that replace others."""
        workshop = home() / f"{self.folder.name}.building"
        shutil.rmtree(workshop / "module", ignore_errors=True)
        shutil.copytree(
            self.source, workshop / "module", ignore=shutil.ignore_patterns("*.py*", "__pycache__")
        )
        (workshop / "module" / "go.mod").write_text(
            f"module {self.source.name}\n\ngo 1.21\n\nrequire {self.package} {self.pinned}\n"
        )
        env = {
            "GOPATH": str(workshop / "modules"),
            "GOCACHE": str(workshop / "objects"),
            "GOFLAGS": f"{os.environ.get('GOFLAGS', '')} -modcacherw -mod=mod".strip(),
        }
        go = ("go", "-C", workshop / "module")
        _run(*go, "mod", "tidy", growing=workshop, env=env)
        _run(
            *go,
            "build",
            "-trimpath",
            "-ldflags=-s -w",
            "-o",
            folder / "bin" / self.source.name,
            ".",
            growing=workshop,
            env=env,
        )
        shutil.rmtree(workshop, ignore_errors=True)


@dataclass(frozen=True)
class DebianPackages(Recipe):
    """Debian packages with the dependencies that this machine lacks, unpacked and never installed.

    So it needs no root, starts no services, and leaves no users behind. But if the machine has lost a library
    since the packages were fetched, that library is missing. Then remove the folder and run `make servers`
    again. The version is the one of this release of Debian.
    """

    name: str
    packages: tuple[str, ...]

    tools = ("apt-get", "dpkg", "dpkg-deb")

    @property
    def folder(self) -> Path:
        """Return the folder, one for each release of the system."""
        release = _os_release()
        return home() / f"{self.name}-{release.get('ID', 'linux')}-{release.get('VERSION_ID', 'unstable')}"

    @property
    def version(self) -> str:
        """Return the version of the first package."""
        said = self.folder / "version"
        return said.read_text().strip() if said.exists() else "as Debian has it"

    def make(self, folder: Path) -> None:
        """Fetch with apt-get, with separate lists and archives, so that it needs no root and no
        current lists.
        """
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
    """Let only one process install a program at a time. The others wait, and then find it installed."""
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
    """Run a client to its end, however long that takes, and return its output.

    If its output and the files below `growing` have not changed for `stall_seconds`, it is killed with its
    children. Raises `CannotBeHad` then, and if the client fails.
    """
    name = Path(argv[0]).name
    with TemporaryFile("w+") as output, TemporaryFile("w+") as errors:
        running = subprocess.Popen(
            [*bound_to_us(), *map(str, argv)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env={**os.environ, **(env or {})},
            start_new_session=True,  # so that its children can be killed with it
        )
        patience = Patience(stall_seconds)
        try:
            while not _has_ended(running, poll_seconds):
                printed = os.fstat(output.fileno()).st_size + os.fstat(errors.fileno()).st_size
                if not patience.lasts((printed, *_size_of(growing))):
                    raise CannotBeHad(f"{name} has not moved on for {stall_seconds:.0f} seconds")
        finally:
            with suppress(ProcessLookupError):  # no child is left, as always after a success
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
        said, trouble = (_all_of(stream) for stream in (output, errors))
    if running.returncode:
        last = " / ".join((trouble or said).strip().splitlines()[-3:])
        raise CannotBeHad(f"{name} ended with code {running.returncode}: {last}")
    return said


class Patience:
    """Patience that lasts as long as there is progress, because a busy machine is slow and not stuck."""

    def __init__(self, stall_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._stall_seconds, self._clock = stall_seconds, clock
        self._seen: object = None
        self._since = clock()

    def lasts(self, state: object) -> bool:
        """Return True while waiting is worthwhile, now that the work is in this `state`."""
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
    """Return the number of files below, and their bytes. Files that vanish meanwhile do not count."""
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
