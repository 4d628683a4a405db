"""Tests of stores that a plugin opens: they have the limits, clock and counters of the session."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import offload
from session_backends import CLOSED, CONTEXTS, MADE, OnStore, plugins

from offload import (
    AtEdge,
    Backend,
    Body,
    Env,
    Misuse,
    Plugins,
    RequestLimits,
    Session,
    SourceType,
    StreamReader,
    sync,
)
from offload.contracts.opening import OpeningContext
from offload.store.limit import LimitedStore
from offload.store.memory import MemoryStore
from offload.store.retry import RetryingStore

PAGE = (Path(__file__).parents[2] / "docs/sources.md").read_text(encoding="utf-8")
SECTION = PAGE[PAGE.index("\n## Open stores in a plugin\n") :]
SOURCE = re.findall(r"^```python\n(.*?)^```$", SECTION, re.DOTALL | re.MULTILINE)[0]
"""The plugin that the page shows."""


# The context of a source


def test_a_source_gets_its_own_options_and_its_store_the_others() -> None:
    async def main() -> OnStore:
        async with Session(plugins=plugins()) as session:
            source: Any = session.source("on+bucket://a", source_options={"first": "7", "region": "north"})
            return source

    source = asyncio.run(main())

    assert (source.url, source.options) == ("on+bucket://a", {"first": "7"})
    assert source.context.store_options == {"region": "north"}
    assert [bucket.options for bucket in MADE] == [{"region": "north"}]


def test_an_option_that_nobody_knows_is_refused_by_the_backend_of_the_store() -> None:
    async def main() -> None:
        async with Session(plugins=plugins()) as session:
            with pytest.raises(Misuse, match="backend 'bucket' has no option 'colour'; it has region"):
                session.source("on+bucket://a", source_options={"colour": "red"})
            with pytest.raises(Misuse, match="no options that begin with commit"):
                session.source("on+bucket://a", source_options={"commit.region": "north"})

    asyncio.run(main())


def test_a_source_without_stores_still_refuses_every_option() -> None:
    async def main() -> None:
        async with Session(plugins=plugins()) as session:
            for name in ("region", "up_requests_max"):
                with pytest.raises(Misuse, match=f"source 'noted' has no option '{name}'"):
                    session.source("noted://a", source_options={name: "1"})

    asyncio.run(main())


def test_the_store_of_a_source_has_the_limits_clock_and_counters_of_the_session() -> None:
    env, limits = Env(), RequestLimits(down_requests_max=3)

    async def main() -> None:
        async with Session(plugins=plugins(), env=env, limits=limits) as session:
            source: Any = session.source("on+bucket://a", source_options={"patience_seconds": "7"})
            await source.store.put("key", Body.of(b"data"))

            context = source.context
            assert source.options == {}
            assert (context.env, context.metrics) == (env, session.metrics)
            assert context.limits == replace(limits, patience_seconds=7.0)
            assert session.metrics.requests["put"] == 1
            assert session.metrics.moved["put"] == 4
            assert isinstance(source.store, RetryingStore)
            assert isinstance(source.store.inner, LimitedStore)
            assert source.store._patience.policy.patience_seconds == 7.0
            assert source.store.inner.down.turns.bound == 3

    asyncio.run(main())


def test_the_store_of_a_source_shares_the_client_of_a_tier_of_the_same_bucket() -> None:
    async def main() -> None:
        async with Session(plugins=plugins()) as session:
            tier: Any = session.tier("bucket://a/tier")
            source: Any = session.source("on+bucket://a")
            await source.store.put("tier/key", Body.of(b"data"))

            assert await tier.data.get("key") == b"data"
            await tier.aclose()
            assert await source.store.get("tier/key") == b"data", "the client is still in use"

    asyncio.run(main())


def test_the_session_closes_the_store_of_a_source() -> None:
    async def main() -> Any:
        async with Session(plugins=plugins()) as session:
            source: Any = session.source("on+bucket://a")
            await source.store.put("key", Body.of(b"data"))
            assert not CLOSED
        return source

    source = asyncio.run(main())

    assert CLOSED
    with pytest.raises(Misuse, match="was closed; open it again"):
        asyncio.run(source.store.inner.inner.get("key"))


def test_store_options_are_in_no_text_of_the_context() -> None:
    async def main() -> str:
        async with Session(plugins=plugins()) as session:
            source: Any = session.source("on+bucket://a", source_options={"region": "HUSH"})
            return repr(source.context)

    assert "HUSH" not in asyncio.run(main())


# The context of a backend


def test_a_backend_that_opens_stores_gets_their_options_too() -> None:
    backend = Backend(
        name="foreign",
        target="session_backends:open_own",
        schemes=("foreign",),
        kind="offloader",
        options=("speed",),
        takes=("limits",),
        opens_stores=True,
    )
    context = OpeningContext(
        env=Env(),
        emit=lambda event: None,
        metrics=Session(plugins=Plugins()).metrics,
        limits=RequestLimits(),
        fragment_size_bytes=None,
        uploads_max=None,
        open_store=lambda url, options: MemoryStore(),
    )
    plugins()

    backend.open("foreign://x", {"speed": "9", "region": "north"}, context)

    [got] = CONTEXTS
    assert got is not None
    assert got.store_options == {"region": "north"}


def test_without_a_context_an_undeclared_option_is_refused() -> None:
    """The suite calls a target without one."""
    declared = SourceType(name="lines", target="m:f", opens_stores=True)

    with pytest.raises(Misuse, match="source 'lines' has no option 'region'"):
        declared.open("lines://x", {"region": "north"})


def test_a_backend_that_opens_stores_takes_a_context() -> None:
    with pytest.raises(Misuse, match="it opens stores by a context"):
        Backend(name="odd", target="m:f", kind="catalogue", opens_stores=True)
    with pytest.raises(Misuse, match="it opens stores by a context"):
        Backend(name="odd", target="m:f", opens_stores=True)


# The plugin of the page


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A folder with a text. The module of the page is installed beside the plugins of this checkout."""
    site, texts = tmp_path / "site", tmp_path / "texts"
    info = site / "lines_source-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "lines_source.py").write_text(SOURCE, encoding="utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lines-source\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[offload]\nlines = lines_source\n")
    monkeypatch.syspath_prepend(str(site))
    texts.mkdir()
    (texts / "poem.txt").write_bytes(b"one\ntwo\nthree\n")
    yield texts
    sys.modules.pop("lines_source", None)


def test_the_source_of_the_page_copies_text_from_a_store(texts: Path, tmp_path: Path) -> None:
    async def main() -> list[bytes]:
        async with Session() as session:
            source = session.source(f"lines+file://{texts}", source_options={"down_requests_max": "2"})
            tier = session.tier(str(tmp_path / "tier"))
            async for report in sync(source, tier):
                assert report.error is None
            reader = await StreamReader.open(tier, "poem.txt")
            first = await reader.offset_of(AtEdge.FIRST)
            return [bytes(body) async for batch in reader.messages(first) for body in batch.bodies]

    assert asyncio.run(main()) == [b"one", b"two", b"three"]


def test_sync_passes_source_options_on_and_names_the_one_that_is_unknown(texts: Path, tmp_path: Path) -> None:
    command = ["sync", f"lines+file://{texts}", str(tmp_path / "tier"), "--source-option"]

    wrong, right = offload(*command, "colour=red"), offload(*command, "down_requests_max=2")

    assert (wrong.code, right.code) == (2, 0), (wrong.text, right.text)
    assert "has no option 'colour'" in wrong.stderr
    assert "3 messages" in right.text
