"""The commands of docs/metadata-services.md, on real servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from campaign import few
from command_line import Ran, offload
from osiris_data import DATA
from records.installed import recipes_installed
from servers.metadata import MetadataServer

SOURCE = f"rabbitmq://{DATA / 'tiny'}"


@pytest.fixture(scope="module", autouse=True)
def recipes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with recipes_installed(tmp_path_factory.mktemp("site")):
        yield


def done(*arguments: object) -> Ran:
    ran = offload(*arguments)
    assert ran.code == 0, ran.text + ran.stderr
    return ran


def test_a_tier_keeps_its_roots_in_the_service(metadata_server: MetadataServer, tmp_path: Path) -> None:
    name, tier = f"command-{uuid4()}", tmp_path / "tier"
    url = metadata_server.url(name)

    done("check", url)
    synced = done("sync", SOURCE, tier, "--commit-store", url, "-o", "commit.timeout=20")

    assert "tiny: 10 messages in offsets [0, 10)" in synced.text
    assert "10" in done("ls", tier).text
    assert len(done("read", tier, "tiny").lines) == 10
    assert "all of them sound" in done("verify", tier).text
    kept = {path.name for path in tier.rglob("*") if path.is_file()}
    assert {path for path in kept if not path.endswith(".fragment")} == {"tier.anchor"}
    assert {key.rpartition("/")[2] for key in metadata_server.records(name)} >= {
        *("tier.anchor", "stream.anchor"),
        *(f"root.{version:020}.manifest" for version in (1, 2, 3)),
    }


@few("the suite by the URL of PostgreSQL; make test runs it by that of etcd", 2)
def test_the_suite_runs_on_the_service_by_its_url(metadata_server: MetadataServer) -> None:
    name = f"suite-{uuid4()}"
    clauses = ("store/creates_are_whole", "store/puts_are_whole")
    selected = [word for clause in clauses for word in ("--select", clause)]

    done("conformance", metadata_server.url(name), *selected)

    assert metadata_server.records(name) == {}
