"""One Spark session, hence one JVM, for all of these tests; and a tier that holds the real streams."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import osiris_data
import pytest
from kit.installed import declare
from offload_spark import session
from servers import Place
from servers.session import Session
from servers.table import PROPERTY
from spark.cluster import Standalone
from spark.drivers import CHEAP_JVM

from offload import Blocking

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


ROOT = Path(__file__).parents[2]
SQLITE_LEDGER = ROOT / "examples" / "offload-sqlite-ledger"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Name the server of a test for the closing table."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    if name := params.get("elsewhere") or params.get("bucket"):
        item.user_properties.append((PROPERTY, name))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, worker_path: str) -> Iterator[SparkSession]:
    """A local session with two slots. Spark tries a task that fails once more.

    Queries are short here, so they run without the code that Spark would generate and compile for each.
    """
    warehouse = tmp_path_factory.mktemp("warehouse")
    conf = {
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(warehouse),
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={warehouse} {CHEAP_JVM}",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.connect.grpc.binding.port": "0",
        "spark.offload.reader": "python",  # a test of the Java reader chooses it
    }
    with pytest.MonkeyPatch.context() as patched:  # the JVM and its workers keep this environment
        patched.setenv("PYTHONPATH", worker_path)
        found = session(master="local[2,2]", name="tests", conf=conf, java=True)
    yield found
    found.stop()


@pytest.fixture(scope="session")
def worker_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The import path of Spark's workers: this checkout, and two plugins that a user would have installed."""
    site = declare(tmp_path_factory.mktemp("site"), "lines", {"lines": "foreign_tier"})
    declare(site, "sqlite-ledger", {"sqlite-ledger": "offload_sqlite_ledger.plugin"})
    packages = [ROOT / name for name in ("tests", "backends", "plugins", "conformance")]
    return os.pathsep.join(map(str, (site, SQLITE_LEDGER, ROOT, *packages)))


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A broker's folder: the real streams, each in a folder of its own."""
    folder = tmp_path_factory.mktemp("broker")
    for stream in osiris_data.STREAMS:
        (folder / stream).symlink_to(osiris_data.DATA / stream)
    return folder


@pytest.fixture(scope="session")
def tier(tmp_path_factory: pytest.TempPathFactory, sources: Path) -> str:
    """A folder that holds the real streams."""
    url = str(tmp_path_factory.mktemp("tier"))
    offload_all(url, {}, sources)
    return url


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


@pytest.fixture
def bucket(request: pytest.FixtureRequest, running_servers: Session) -> Place:
    """A new bucket on the server of this name."""
    return running_servers.running(request.param).place()


@pytest.fixture
def elsewhere(
    request: pytest.FixtureRequest, running_servers: Session, sources: Path
) -> tuple[str, dict[str, Any]]:
    """The URL and options of a bucket that holds the real streams, on the server of this name."""
    place = running_servers.running(request.param).place()
    offload_all(place.url, place.options, sources)
    return place.url, place.options


def offload_all(url: str, options: dict[str, Any], sources: Path) -> None:
    """Bring all streams of the broker onto a new tier."""
    with Blocking(url, storage_options=options) as opened:
        opened.run(opened.offloader.open(create=True))
        for report in opened.sync(f"rabbitmq://{sources}"):
            assert report.error is None, report
