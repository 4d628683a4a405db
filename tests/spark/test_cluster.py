"""A cluster of Spark: a standalone master with two workers on this machine, and Spark's own `local-cluster`.

The package is installed on the workers, or shipped with the query as a zip. The executors are processes of
their own, with nothing of the driver but what Spark sends them.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import osiris_data
import pyspark
import pytest
from campaign import campaign
from offload_spark.java import java_home
from offload_spark.session import EXTENSION, JAR, java_reader
from servers import Place, servers_of
from spark.drivers import CHEAP_JVM, SECONDS_MAX, end

ROOT = Path(__file__).parents[2]
SPARK = Path(pyspark.__file__).parent
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

pytestmark = campaign("Spark on a cluster of processes; make test has one local session")

APP = '''
"""Reads a tier, appends to another, and prints what was found."""

import json
import sys

from offload_spark import append, session

tier, derived, options = sys.argv[1], sys.argv[2], sys.argv[3]
spark = session()


def read(url, **more):
    return spark.read.format("offload").options(storageOptions=options, **more).load(url)


counts = read(tier).groupBy("stream").count().collect()
bodies = read(tier, stream="tiny", decode="amqp").select("offset", "body").orderBy("offset").collect()
rows = spark.range(0, 1000, 1, 4).selectExpr("CAST(concat('value ', id) AS BINARY) AS value")
offsets = append(rows, derived, "numbers", storage_options=json.loads(options))
values = read(derived, stream="numbers").selectExpr("count(DISTINCT value)").first()[0]
infos = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
found = {
    "counts": {row["stream"]: row["count"] for row in counts},
    "tiny": [row["body"].decode() for row in bodies],
    "appended": len(offsets),
    "values": values,
    "executors": len(infos) - 1,
    "code": sys.modules["offload_spark"].__file__,
}
print("FOUND " + json.dumps(found))
spark.stop()
'''

LATE_APP = '''
"""Reads a tier. The first attempts of some tasks wait until a file is there. Prints what was read."""

import json
import sys
import time
from pathlib import Path

from offload_spark import session

tier, folder, waiting, java = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "java"
spark = session(java=java)


def late(batches):
    from pyspark import TaskContext

    task = TaskContext.get()
    number, attempt = task.partitionId(), task.attemptNumber()
    Path(folder, f"began-{number}-{attempt}").touch()
    while attempt == 0 and number < waiting and not Path(folder, "go").exists():
        time.sleep(0.1)  # the test tells a task by a file alone
    yield from batches


frame = spark.read.format("offload").option("minPartitions", 6).load(tier).select("stream", "offset", "value")
plan = frame._jdf.queryExecution().executedPlan().toString()
read = frame.mapInArrow(late, frame.schema).selectExpr("stream", "offset", "md5(value)").collect()
print("FOUND " + json.dumps({"rows": sorted(map(list, read)), "java": "the Java reader" in plan}))
spark.stop()
'''
"""An application that prints the same, whatever happens to its tasks."""


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


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A standalone master with two workers of one core each."""
    cluster = Standalone(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def standalone(cluster: Standalone) -> str:
    """The URL of the master."""
    return cluster.url


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, under the name of a zip."""
    folder = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(words, check=True, capture_output=True, timeout=SECONDS_MAX)
    (built,) = folder.glob("*.whl")
    return built.rename(folder / "ledger_offload.zip")


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has the dependencies, and not this package."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=SECONDS_MAX
    )
    site = next(folder.glob("lib/python*/site-packages"))
    # The path files of that folder are not read. One of them leads to this checkout.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = folder / "bin" / "python"
    code = "import importlib.util, pyarrow, numpy; print(importlib.util.find_spec('offload_spark'))"
    found = subprocess.run(
        [python, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    assert found.stdout == "None\n"
    return python


def submitted(
    master: str,
    folder: Path,
    *arguments: str,
    python: str | Path = sys.executable,
    shipped: Path | None = None,
    conf: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    text: str = APP,
    during: Callable[[], None] = lambda: None,
) -> subprocess.CompletedProcess[str]:
    """Run the application as a user would, by `spark-submit`, which prints its errors to the output."""
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
            done = pool.submit(during)
            done.add_done_callback(lambda done: process.kill() if done.exception() else None)
            out, err = process.communicate(timeout=CLUSTER_SECONDS_MAX)
            done.result()
    finally:
        with suppress(ProcessLookupError):  # with all that it started
            os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def check(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The application read every record, and appended 1,000."""
    assert done.returncode == 0, done.stdout[-5000:]
    found: dict[str, Any] = json.loads(done.stdout.partition("FOUND ")[2])
    streams = osiris_data.MANIFEST["streams"]
    assert found["counts"] == {stream: streams[stream]["messages"] for stream in osiris_data.STREAMS}
    assert found["tiny"] == [osiris_data.body_of(i).decode() for i in range(streams["tiny"]["messages"])]
    assert (found["appended"], found["values"], found["executors"]) == (1000, 1000, WORKERS)
    return found


@pytest.mark.parametrize("kind", ["standalone", "local-cluster"])
def test_an_installed_package_reads_and_writes(
    kind: str, request: pytest.FixtureRequest, tier: str, tmp_path: Path
) -> None:
    local = f"local-cluster[{WORKERS},1,1024]"
    master = request.getfixturevalue("standalone") if kind == "standalone" else local

    check(submitted(master, tmp_path, tier, f"{tmp_path}/derived", "{}"))


@pytest.mark.parametrize("kind", ["standalone", "local-cluster"])
def test_a_wheel_that_is_shipped_with_the_query_reads_and_writes(
    kind: str, request: pytest.FixtureRequest, wheel: Path, bare_python: Path, tier: str, tmp_path: Path
) -> None:
    local = f"local-cluster[{WORKERS},1,1024]"
    master = request.getfixturevalue("standalone") if kind == "standalone" else local

    done = submitted(master, tmp_path, tier, f"{tmp_path}/derived", "{}", python=bare_python, shipped=wheel)
    found = check(done)

    assert "ledger_offload.zip" in found["code"]


@pytest.mark.parametrize("elsewhere", servers_of("s3")[:1], indirect=True)
def test_executors_take_credentials_from_their_own_environment(
    standalone: str, elsewhere: tuple[str, dict[str, Any]], bucket_beside: Place, tmp_path: Path
) -> None:
    """Nothing secret is in the query. Executors without credentials fail with the store's answer."""
    url, options = elsewhere
    plain = {name: value for name, value in options.items() if name not in ("key", "secret")}
    secrets = {"AWS_ACCESS_KEY_ID": options["key"], "AWS_SECRET_ACCESS_KEY": options["secret"]}
    words = (url, bucket_beside.url, json.dumps(plain))

    refused = submitted(standalone, tmp_path, *words, env=secrets)
    given = [f"spark.executorEnv.{name}={value}" for name, value in secrets.items()]
    done = submitted(standalone, tmp_path, *words, env=secrets, conf=given)

    assert refused.returncode != 0
    assert "offload.errors.StoreDenied" in refused.stdout
    check(done)


@pytest.mark.parametrize("elsewhere", servers_of("s3")[:1], indirect=True)
def test_executors_without_network_to_the_store_fail_with_its_address(
    standalone: str, elsewhere: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    """A task retries for two minutes. The driver reaches the store, and plans the read."""
    url, options = elsewhere
    secrets = {"AWS_ACCESS_KEY_ID": options["key"], "AWS_SECRET_ACCESS_KEY": options["secret"]}
    given = [f"spark.executorEnv.{name}={value}" for name, value in secrets.items()]
    given += ["spark.executorEnv.AWS_ENDPOINT_URL=http://127.0.0.1:9", "spark.task.maxFailures=1"]
    driver = secrets | {"AWS_ENDPOINT_URL": options["endpoint_url"]}

    done = submitted(standalone, tmp_path, url, f"{tmp_path}/derived", "{}", env=driver, conf=given)

    assert done.returncode != 0
    assert "offload.errors.TryAgain" in done.stdout
    assert "nothing answers at http://127.0.0.1:9" in done.stdout


def rows_of(done: subprocess.CompletedProcess[str], *, java: bool) -> list[list[Any]]:
    """Return what the late application read, and check which reader did."""
    assert done.returncode == 0, done.stdout[-5000:]
    found = json.loads(done.stdout.partition("FOUND ")[2])
    assert found["java"] == java
    rows: list[list[Any]] = found["rows"]
    return rows


def wait_for(there: Callable[[], object]) -> None:
    """Look until another process, which sends no event, has come so far."""
    ends = time.monotonic() + CLUSTER_SECONDS_MAX
    while not there():
        assert time.monotonic() < ends
        time.sleep(0.1)


@pytest.mark.parametrize("reader", ["python", "java"])
def test_a_killed_executor_and_a_second_attempt_beside_the_first_change_no_row(
    cluster: Standalone, reader: str, tier: str, tmp_path: Path
) -> None:
    """Two tasks wait, and one is lost with its executor. Then the copy of a task that waits wins."""

    def run(name: str, waiting: int, during: Callable[[Path], None], *conf: str) -> list[list[Any]]:
        (folder := tmp_path / name).mkdir()
        words = (tier, str(folder), str(waiting), reader)
        conf = (*conf, *(JAVA_READER if reader == "java" else ()))
        done = submitted(cluster.url, folder, *words, text=LATE_APP, conf=conf, during=lambda: during(folder))
        return rows_of(done, java=reader == "java")

    def kill_one(folder: Path) -> None:
        wait_for(lambda: len([*folder.glob("began-[01]-0")]) == WORKERS)
        wait_for(lambda: len(cluster.executors()) == WORKERS)  # those of the application before are ending
        os.kill(cluster.executors()[0], signal.SIGKILL)
        wait_for(lambda: [*folder.glob("began-[01]-1")])
        (folder / "go").touch()

    plain = run("plain", 0, lambda _: None)
    killed = run("killed", WORKERS, kill_one)
    speculation = [f"spark.speculation{name}" for name in ("=true", ".quantile=0.1", ".multiplier=1.01")]
    copied = run("copied", 1, lambda folder: wait_for((folder / "began-0-1").exists), *speculation)

    streams = osiris_data.MANIFEST["streams"]
    assert len(plain) == sum(streams[stream]["messages"] for stream in osiris_data.STREAMS)
    assert killed == plain
    assert copied == plain


def test_a_jvm_that_was_started_without_the_jar_is_refused_with_the_words_that_are_missing(
    tier: str, tmp_path: Path
) -> None:
    done = submitted("local[1]", tmp_path, tier, str(tmp_path), "0", "java", text=LATE_APP)

    assert done.returncode != 0
    assert f"spark-submit --jars {JAR} --conf spark.sql.extensions={EXTENSION}" in done.stdout


@pytest.fixture
def bucket_beside(running_servers: Any) -> Place:
    """An empty bucket on the server of `elsewhere`."""
    return running_servers.running(servers_of("s3")[0].values[0]).place()
