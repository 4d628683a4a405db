"""One session of Spark's for all of these tests, which so run in one process; and a tier of real streams."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import osiris_data
import pytest
from offload_spark import session
from servers import Place
from servers.session import Session
from servers.table import PROPERTY

from offload import Blocking

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_itemcollected(item: pytest.Item) -> None:
    """The closing table is told of servers here too."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    if name := params.get("elsewhere") or params.get("bucket"):
        item.user_properties.append((PROPERTY, name))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Local, with two slots."""
    warehouse = tmp_path_factory.mktemp("warehouse")
    conf = {
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(warehouse),
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={warehouse}",
    }
    found = session(master="local[2]", name="tests", conf=conf)
    yield found
    found.stop()


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real streams, each in a folder, as a broker keeps them."""
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


@pytest.fixture
def bucket(request: pytest.FixtureRequest, running_servers: Session) -> Place:
    """A new one on a server, by name."""
    return running_servers.running(request.param).place()


@pytest.fixture
def elsewhere(
    request: pytest.FixtureRequest, running_servers: Session, sources: Path
) -> tuple[str, dict[str, Any]]:
    """The same on a server, by name: URL and options."""
    place = running_servers.running(request.param).place()
    offload_all(place.url, place.options, sources)
    return place.url, place.options


def offload_all(url: str, options: dict[str, Any], sources: Path) -> None:
    with Blocking(url, storage_options=options) as opened:
        opened.run(opened.offloader.open(create=True))
        for report in opened.sync(f"rabbitmq://{sources}"):
            assert report.error is None, report
