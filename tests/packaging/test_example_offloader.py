"""Tests of an offloader without an object store: as a separate distribution it works wherever a tier does."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from campaign import CAMPAIGN, campaign
from command_line import offload as offload_here
from offload_conformance import ledger_of
from osiris_data import DATA, body_of

from offload import Misuse, Session, StreamWriter, TierOptions
from offload.contracts.events import Event, FragmentUploaded

EXAMPLE = Path(__file__).parents[2] / "examples" / "offload-sqlite-ledger"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder into which pip installed the distribution."""
    source = tmp_path_factory.mktemp("source") / EXAMPLE.name
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("__pycache__", "tests"))
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    offline = ["--no-index", "--disable-pip-version-check"]
    subprocess.run([*pip, *offline, "--target", str(target), str(source)], check=True, timeout=120)
    return target


@pytest.fixture
def tier(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a tier with the RabbitMQ stream `tiny`, synced by the command."""
    monkeypatch.syspath_prepend(installed)
    shutil.copytree(DATA / "tiny", tmp_path / "broker" / "tiny")
    url = f"sqlite-ledger://{tmp_path / 'tier.db'}"
    ran = offload_here("sync", f"rabbitmq://{tmp_path / 'broker'}", url, "--json")
    assert ran.code == 0, ran.stderr
    return url


@campaign("the example's own tests; the conformance command asks a third of their clauses here")
def test_the_offloader_keeps_the_contract(installed: Path, tmp_path: Path) -> None:
    """Its own tests, the conformance classes, pass on the installed distribution."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", EXAMPLE / "tests"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout


def test_the_conformance_command_finds_no_failure(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the clauses that look into the store cannot be run from outside. All others run and pass.

    `make test` asks the clauses whose names begin with a to d, and the campaign all.
    """
    monkeypatch.syspath_prepend(installed)
    report = tmp_path / "report.json"
    wanted = ["contract"] if CAMPAIGN else ["contract/[a-d]*"]

    url = f"sqlite-ledger://{tmp_path / 'place'}"
    select = [word for each in wanted for word in ("--select", each)]
    ran = offload_here("conformance", url, *select, "--report", report)

    clauses = json.loads(report.read_text())["clauses"]
    assert [each["id"] for each in clauses if each["outcome"] == "failed"] == [], ran.text
    assert sum(each["outcome"] == "passed" for each in clauses) > 20


def test_reading_commands_work_on_the_tier(tier: str, tmp_path: Path) -> None:
    [row] = offload_here("ls", tier, "--json").objects
    document = offload_here("inspect", tier, "tiny", "--json").document
    read = offload_here("read", tier, "tiny", "--decode", "amqp", "--format", "body").lines

    assert (row["messages"], row["next_offset"], row["fragments"]) == (10, 10, len(document["fragments"]))
    assert read == [body_of(number).decode() for number in range(10)]
    assert {each["object"].split("/")[0] for each in document["fragments"]} == {"chunks"}
    assert document["root"]["object"].startswith("manifests/tiny/")


@pytest.mark.parametrize("level", ["manifest", "bytes"])
def test_a_lost_chunk_is_found_at_every_level(tier: str, level: str) -> None:
    assert offload_here("verify", tier, "--level", level).code == 0
    with sqlite3.connect(tier.removeprefix("sqlite-ledger://")) as db:
        db.execute("DELETE FROM chunks WHERE offset = (SELECT max(offset) FROM chunks)")

    ran = offload_here("verify", tier, "--level", level, "--json")

    assert ran.code == 1
    assert [damage["stream"] for damage in ran.document["damages"]] == ["tiny"]


def test_commands_that_need_objects_refuse_the_tier(tier: str) -> None:
    for command in (["sweep", tier], ["rebuild", tier, "tiny", "--yes"]):
        ran = offload_here(*command)
        assert ran.code in (1, 2)
        assert "keeps no objects of this format" in ran.error


@pytest.fixture
def many(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a tier with a stream of ten fragments, made by a session that requests small ones."""
    monkeypatch.syspath_prepend(installed)
    url = f"sqlite-ledger://{tmp_path / 'many.db'}"

    async def write() -> None:
        heard: list[Event] = []
        async with Session(emit=heard.append) as session:
            tier = session.tier(url, options=TierOptions(fragment_size_bytes=1))
            writer = await StreamWriter.claim(tier, "orders")
            await writer.offload([ledger_of(10)])
        with pytest.raises(Misuse, match=r"many.db was closed; open it again"):
            await tier.streams()
        assert [type(event) for event in heard].count(FragmentUploaded) == 10

    asyncio.run(write())
    return url


def test_the_tier_is_compacted_and_copied_to_and_from_a_folder(many: str, tmp_path: Path) -> None:
    folder, again = str(tmp_path / "folder"), f"sqlite-ledger://{tmp_path / 'again.db'}"
    before = offload_here("read", many, "orders", "--json").lines

    compacted = offload_here("compact", many, "--fragment-size", "1MiB", "--json")
    copies = [offload_here("copy", many, folder), offload_here("copy", folder, again)]

    assert (compacted.code, compacted.document["fragments"], compacted.document["runs"]) == (0, 9, 1)
    assert [each.code for each in copies] == [0, 0], copies
    for tier in (many, folder, again):
        assert offload_here("read", tier, "orders", "--json").lines == before
        assert offload_here("verify", tier).code == 0


def test_requests_that_the_offloader_cannot_honour_are_refused_first(many: str, tmp_path: Path) -> None:
    folder, absent = str(tmp_path / "folder"), tmp_path / "absent.db"
    offload_here("copy", many, folder)

    read_back = offload_here("copy", folder, f"sqlite-ledger://{absent}", "--verify")
    limited = offload_here("ls", many, "--option", "up_requests_max=3")
    split = offload_here("copy", folder, f"sqlite-ledger://{absent}", "--commit-store", folder)

    assert "keeps no objects of this format" in read_back.error
    assert "cannot honour up_requests_max" in limited.error
    assert "cannot honour commit_store" in split.error
    assert not absent.exists()
