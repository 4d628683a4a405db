"""A cluster of Spark: a standalone master with two workers on this machine, and Spark's own `local-cluster`.

The package is installed on the workers, or shipped with the query as a zip. The executors are processes of
their own, with nothing of the driver but what Spark sends them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import osiris_data
import pytest
from campaign import campaign
from servers import Place, servers_of
from spark.cluster import WORKERS, environment, submitted
from spark.drivers import SECONDS_MAX

ROOT = Path(__file__).parents[2]
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

    check(submitted(master, tmp_path, APP, tier, f"{tmp_path}/derived", "{}"))


@pytest.mark.parametrize("kind", ["standalone", "local-cluster"])
def test_a_wheel_that_is_shipped_with_the_query_reads_and_writes(
    kind: str, request: pytest.FixtureRequest, wheel: Path, bare_python: Path, tier: str, tmp_path: Path
) -> None:
    local = f"local-cluster[{WORKERS},1,1024]"
    master = request.getfixturevalue("standalone") if kind == "standalone" else local

    done = submitted(
        master, tmp_path, APP, tier, f"{tmp_path}/derived", "{}", python=bare_python, shipped=wheel
    )
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

    refused = submitted(standalone, tmp_path, APP, *words, env=secrets)
    given = [f"spark.executorEnv.{name}={value}" for name, value in secrets.items()]
    done = submitted(standalone, tmp_path, APP, *words, env=secrets, conf=given)

    assert refused.returncode != 0
    assert "offload.ground.errors.StoreDenied" in refused.stdout
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

    done = submitted(standalone, tmp_path, APP, url, f"{tmp_path}/derived", "{}", env=driver, conf=given)

    assert done.returncode != 0
    assert "offload.ground.errors.TryAgain" in done.stdout
    assert "nothing answers at http://127.0.0.1:9" in done.stdout


@pytest.fixture
def bucket_beside(running_servers: Any) -> Place:
    """An empty bucket on the server of `elsewhere`."""
    return running_servers.running(servers_of("s3")[0].values[0]).place()
