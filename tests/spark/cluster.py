"""A standalone cluster of Spark on this machine, and applications that are submitted to it.

Executors are processes of their own, with nothing of the driver but what Spark sends them. All processes of
an application's driver are one group, so a test can kill them together.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import md5
from pathlib import Path
from typing import Any, Final

import pyspark
from offload_spark.java import java_home
from offload_spark.session import java_reader
from spark.drivers import CHEAP_JVM, SECONDS_MAX, end

from offload import Blocking

SPARK: Final = Path(pyspark.__file__).parent
WORKERS: Final = 2

CLUSTER_SECONDS_MAX: Final = 900
"""How long an application may take, with all its processes. It is generous: the machine may be busy."""

CHEAP: Final = (
    f"spark.driver.extraJavaOptions={CHEAP_JVM}",
    f"spark.executor.extraJavaOptions={CHEAP_JVM}",
    "spark.executor.memory=512m",
    "spark.sql.shuffle.partitions=2",
    "spark.sql.codegen.wholeStage=false",
    "spark.sql.codegen.factoryMode=NO_CODEGEN",
)

JAVA_READER: Final = tuple(f"{name}={value}" for name, value in java_reader({}).items())


def environment() -> dict[str, str]:
    """Return the environment of every process of the cluster: this Java, and no path of the tests."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "AWS", "SPARK"))
    }
    home = java_home(kept)
    given = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(SPARK), "SPARK_DAEMON_JAVA_OPTS": CHEAP_JVM}
    return kept | given | ({"JAVA_HOME": home} if home else {})


class Standalone:
    """A master and its workers. Each is one process, which is stopped by its id.

    Each worker has an address of its own: Spark copies no task to the host on which it runs already.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def start(self) -> None:
        master = self._start("master", "org.apache.spark.deploy.master.Master", "--port", "0")
        self.url = self._said(master, r"Starting Spark master at (spark://\S+)")
        for number in range(WORKERS):
            kind = "org.apache.spark.deploy.worker.Worker"
            words = ("--cores", "1", "--memory", "1g", self.url)
            worker = self._start(f"worker-{number}", kind, *words, host=f"127.0.0.{number + 1}")
            self._said(worker, "(Successfully registered with master)")

    def _start(self, name: str, kind: str, *words: str, host: str = "127.0.0.1") -> Path:
        log = self._folder / f"{name}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [SPARK / "bin" / "spark-class", kind, "--host", host, "--webui-port", "0", *words],
                env=environment() | {"SPARK_WORKER_DIR": str(self._folder / name), "SPARK_LOCAL_IP": host},
                stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip
        self._running.append(process)
        return log

    def _said(self, log: Path, pattern: str) -> str:
        """Return what the process said, as soon as it has said it."""
        ends = time.monotonic() + SECONDS_MAX
        while (found := re.search(pattern, log.read_text())) is None:
            assert time.monotonic() < ends, log.read_text()
            assert self._running[-1].poll() is None, log.read_text()
            time.sleep(0.2)
        return found[1]

    def executors(self) -> list[int]:
        """Return the processes of the executors that run now: the children of the workers."""
        workers, found = {process.pid for process in self._running[1:]}, list[int]()
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                state, parent, *_ = stat.read_text().rpartition(")")[2].split()
                if int(parent) in workers and state != "Z":
                    found.append(int(stat.parent.name))
        return found

    def stop(self) -> None:
        for process in reversed(self._running):
            end(process)


def kill(driver: subprocess.Popen[str]) -> None:
    """Kill the driver and all that it started. Executors are not among that: their worker starts them."""
    with suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)


def submitted(
    master: str,
    folder: Path,
    text: str,
    *arguments: str,
    python: str | Path = sys.executable,
    shipped: Path | None = None,
    conf: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    during: Callable[[subprocess.Popen[str]], None] = lambda _: None,
) -> subprocess.CompletedProcess[str]:
    """Run the application as a user would, by `spark-submit`, which prints its errors to the output.

    `during` gets the driver, and runs beside it. If it raises, the driver is killed.
    """
    app = folder / "app.py"
    app.write_text(text)
    settings = [*CHEAP, *conf]
    words = [str(SPARK / "bin" / "spark-submit"), "--master", master]
    words += [word for each in settings for word in ("--conf", each)]
    words += ["--py-files", str(shipped)] if shipped is not None else []
    pythons = {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
    process = subprocess.Popen(
        [*words, str(app), *arguments],
        env=environment() | pythons | dict(env or {}), cwd=folder,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        with ThreadPoolExecutor() as pool:
            done = pool.submit(during, process)
            done.add_done_callback(lambda done: process.kill() if done.exception() else None)
            out, err = process.communicate(timeout=CLUSTER_SECONDS_MAX)
            done.result()
    finally:
        kill(process)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def wait_for(there: Callable[[], object]) -> None:
    """Look until another process, which sends no event, has come so far."""
    ends = time.monotonic() + CLUSTER_SECONDS_MAX
    while not there():
        assert time.monotonic() < ends
        time.sleep(0.1)


def rows_of(done: subprocess.CompletedProcess[str], *, java: bool = False) -> list[list[Any]]:
    """Return what the application printed, and check which reader read."""
    assert done.returncode == 0, done.stdout[-5000:]
    found = json.loads(done.stdout.partition("FOUND ")[2])
    assert found["java"] == java
    rows: list[list[Any]] = found["rows"]
    return rows


def written(url: str, **given: Any) -> list[list[Any]]:
    """Return the rows of a tier as the applications print them, read without Spark."""
    with Blocking(url, **given) as tier:
        return sorted(
            [stream, offset, md5(body, usedforsecurity=False).hexdigest()]
            for stream in tier.streams()
            for messages in tier.read(stream)
            for offset, body in enumerate(messages.bodies, messages.offset)
        )
