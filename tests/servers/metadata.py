"""Metadata services of brokers, in which tests keep the roots of tiers: etcd and PostgreSQL.

Both run from unpacked Debian packages, with their files in a scratch folder. A test may freeze a service,
kill it, and start it again on its files. PostgreSQL refuses to run as root, so root runs it in a user
namespace in which it has another number.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import ClassVar, Final

import pytest

from servers.processes import NotReady, bound_to_us, end_of, free_port, stop, wait_until_it_answers
from servers.recipes import DebianPackages, Recipe
from servers.scratch import scratch_folder
from servers.session import REQUIRED

READY_SECONDS: Final = 60.0
USER: Final = "tier"


class MetadataServer(ABC):
    """A metadata service of one node on loopback. It keeps its port when it is started again."""

    name: ClassVar[str]
    recipe: ClassVar[Recipe]
    purpose: ClassVar[str]

    def __init__(self, scratch: Path, *flags: str) -> None:
        self.port = free_port()
        self._scratch, self._flags = scratch, flags
        self._running: subprocess.Popen[bytes] | None = None

    @classmethod
    @contextmanager
    def serving(cls, *flags: str) -> Iterator[MetadataServer]:
        """Yield a running service. On exit it has ended, frozen or not, and its files are deleted."""
        with scratch_folder(cls.name) as scratch:
            service = cls(scratch, *flags)
            try:
                service.start()
                yield service
            finally:
                service.stop()

    @abstractmethod
    def url(self, name: str, port: int | None = None) -> str:
        """Return the URL of the records `name`, here or behind a proxy on `port`."""

    @abstractmethod
    def records(self, name: str) -> dict[str, bytes]:
        """Return the records `name`, read by other means than the recipe's."""

    def start(self) -> None:
        """Start it, and return once it answers. Raises `NotReady` if it does not."""
        log = self._scratch / "server.log"
        with log.open("ab") as output:
            self._running = subprocess.Popen(
                [*bound_to_us(), *self._command()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._environment},
                cwd=self._scratch,
                start_new_session=True,
            )
        self._wait(self._running, log)

    def stop(self) -> None:
        """End it in order."""
        if self._running is not None:
            self.thaw()
            stop(self._running)

    def kill(self) -> None:
        """End it and its children at once, as a power cut would."""
        for pid in self._family():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert self._running is not None
        self._running.wait()

    def freeze(self) -> None:
        """Stop it and its children, so that connections stay open and nothing answers."""
        for pid in self._family():
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        for pid in self._family():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _family(self) -> list[int]:
        """Return the process and its children. A child of PostgreSQL is in a session of its own."""
        assert self._running is not None
        pid = self._running.pid
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return []
        return [pid, *map(int, children)]

    @property
    def _environment(self) -> Mapping[str, str]:
        return {}

    @abstractmethod
    def _command(self) -> Sequence[str | Path]: ...

    @abstractmethod
    def _wait(self, running: subprocess.Popen[bytes], log: Path) -> None: ...


class EtcdServer(MetadataServer):
    """An etcd of one member. `flags` are those of its command."""

    name = "etcd"
    recipe = DebianPackages("etcd", ("etcd-server",))
    purpose = "roots in the metadata service of a broker"

    def __init__(self, scratch: Path, *flags: str) -> None:
        super().__init__(scratch, *flags)
        self._peer = f"http://127.0.0.1:{free_port()}"

    def url(self, name: str, port: int | None = None) -> str:
        return f"etcd://127.0.0.1:{port or self.port}/{name}"

    def records(self, name: str) -> dict[str, bytes]:
        start, end = f"{name}/value/".encode(), f"{name}/value0".encode()
        page = self.ask("kv/range", {"key": _text(start), "range_end": _text(end)})
        return {
            b64decode(row["key"]).removeprefix(start).decode(): b64decode(row.get("value", ""))
            for row in page.get("kvs", ())
        }

    def ask(self, path: str, body: object) -> dict[str, list[dict[str, str]]]:
        """Send one request to the JSON gateway."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v3/{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=30) as reply:
            found: dict[str, list[dict[str, str]]] = json.load(reply)
        return found

    def status(self, path: str, body: object) -> tuple[int, str]:
        """Send one request that etcd refuses. Return the status and its message."""
        try:
            self.ask(path, body)
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, json.load(refusal)["message"]
        return 200, ""

    def _command(self) -> Sequence[str | Path]:
        here = f"http://127.0.0.1:{self.port}"
        return [
            *(self.recipe.folder / "usr/bin/etcd", "--data-dir", self._scratch / "data", "--name", "one"),
            *("--listen-client-urls", here, "--advertise-client-urls", here),
            *("--listen-peer-urls", self._peer, "--initial-advertise-peer-urls", self._peer),
            *("--initial-cluster", f"one={self._peer}", "--log-level", "warn", *self._flags),
        ]

    def _wait(self, running: subprocess.Popen[bytes], log: Path) -> None:
        wait_until_it_answers(f"http://127.0.0.1:{self.port}/health", running, log=log)


_NEW_CLUSTER: Final[dict[int, str]] = {}
"""The folder of a cluster without a table, by the process that made it. It is removed when that ends."""


class PostgresServer(MetadataServer):
    """A PostgreSQL of one node. `flags` are settings, such as `fsync=off`. No user needs a password."""

    name = "postgresql"
    recipe = DebianPackages("postgresql", ("postgresql-15",))
    purpose = "roots in a database"

    def url(self, name: str, port: int | None = None) -> str:
        return f"postgresql://127.0.0.1:{port or self.port}/postgres/{name}"

    def records(self, name: str) -> dict[str, bytes]:
        if self.sql("SELECT to_regclass('offload_records')") == "":
            return {}
        rows = f"SELECT encode(key, 'hex'), encode(value, 'hex') FROM offload_records WHERE name = '{name}'"
        pairs = (line.split("|") for line in self.sql(rows).splitlines())
        return {bytes.fromhex(key).decode(): bytes.fromhex(value) for key, value in pairs}

    def sql(self, text: str) -> str:
        """Run statements with psql, and return the rows."""
        return self._run("psql", "--no-psqlrc", "-qAt", "-v", "ON_ERROR_STOP=1", "-c", text).rstrip("\n")

    def start(self) -> None:
        """Copy a new cluster of databases before the first start: to create one takes a second."""
        if not (self._scratch / "data").exists():
            if (made := _NEW_CLUSTER.get(os.getpid())) is None:
                made = _NEW_CLUSTER[os.getpid()] = mkdtemp(prefix="offload-postgresql-")
                atexit.register(shutil.rmtree, made, ignore_errors=True)
                where = ("-D", made, "-U", USER, "--auth=trust", "--no-locale", "--no-sync")
                self._run("initdb", *where, "--encoding=UTF8")
            shutil.copytree(made, self._scratch / "data")
        super().start()

    def _command(self) -> Sequence[str | Path]:
        settings = (
            f"port={self.port}",
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "shared_buffers=32MB",
            *self._flags,
        )
        flags = (word for setting in settings for word in ("-c", setting))
        return [*_not_root(), self._bin / "postgres", "-D", self._scratch / "data", *flags]

    def _wait(self, running: subprocess.Popen[bytes], log: Path) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline and running.poll() is None:
            with suppress(NotReady):
                self._run("psql", "--no-psqlrc", "-qAt", "-c", "SELECT 1")
                return
            time.sleep(0.05)
        raise NotReady(f"PostgreSQL did not start: {end_of(log)}")

    def _run(self, tool: str, *arguments: str | Path) -> str:
        done = subprocess.run(
            [*_not_root(), self._bin / tool, *arguments],
            env={**os.environ, **self._environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=READY_SECONDS,
            check=False,
        )
        if done.returncode:
            raise NotReady(f"{tool} ended with code {done.returncode}: {done.stderr.strip()[-300:]}")
        return done.stdout

    @property
    def _bin(self) -> Path:
        return next(self.recipe.folder.glob("usr/lib/postgresql/*/bin"))

    @property
    def _environment(self) -> Mapping[str, str]:
        libraries = {str(each.parent) for each in self.recipe.folder.glob("usr/lib/*/lib*.so.*")}
        return {
            "LD_LIBRARY_PATH": ":".join(sorted(libraries)),
            "PGHOST": "127.0.0.1",
            "PGPORT": str(self.port),
            "PGUSER": USER,
            "PGDATABASE": "postgres",
        }


BY_NAME: Final[Mapping[str, type[MetadataServer]]] = {
    each.name: each for each in (EtcdServer, PostgresServer)
}


@contextmanager
def served(name: str, *flags: str) -> Iterator[MetadataServer]:
    """Yield a running service. If it is missing, skip the test, or fail it if servers are required."""
    if (why := BY_NAME[name].recipe.missing()) is not None:
        required = os.environ.get(REQUIRED) == "1"
        (pytest.fail if required else pytest.skip)(f"{name} cannot be run here: {why}")
    with BY_NAME[name].serving(*flags) as server:
        yield server


def _not_root() -> Sequence[str]:
    return ("unshare", "--user", "--map-user=1000", "--") if os.geteuid() == 0 else ()


def _text(raw: bytes) -> str:
    return b64encode(raw).decode()
