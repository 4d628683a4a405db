"""Tests of requests: a backend of any kind honours them, or they are refused by name."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from session_backends import CONTEXTS, DECLARED, plugins

from offload import Backend, Env, Misuse, RequestLimits, Session, TierOptions, TierPlan, open_tier

WISHES: dict[str, dict[str, Any]] = {
    "up_requests_max": {"storage_options": {"up_requests_max": "3"}},
    "patience_seconds": {"storage_options": {"patience_seconds": "3"}},
    "fragment_size_bytes": {"options": TierOptions(fragment_size_bytes=1000)},
    "uploads_max": {"options": TierOptions(uploads_max=7)},
    "env": {"env": Env()},
}
"""Every request that a backend may honour, by the name with which it is refused."""

OF_OUR_LAYOUT: dict[str, dict[str, Any]] = {
    "commit_store": {"plan": TierPlan(commit_store="bucket://roots")},
    "hashed_keys": {"plan": TierPlan(hashed_keys=True)},
    "commit.region": {"storage_options": {"commit.region": "north"}},
}


@pytest.mark.parametrize("scheme", ["plain", "seen"])
@pytest.mark.parametrize("name", [*WISHES, *OF_OUR_LAYOUT])
def test_every_request_to_a_backend_that_declares_nothing_is_refused_by_name(scheme: str, name: str) -> None:
    with pytest.raises(Misuse, match=f"cannot honour {name}"):
        open_tier(f"{scheme}://x", plugins=plugins(), **(WISHES | OF_OUR_LAYOUT)[name])


@pytest.mark.parametrize("name", OF_OUR_LAYOUT)
def test_features_of_our_own_layout_are_refused_even_if_a_backend_takes_everything(name: str) -> None:
    with pytest.raises(Misuse, match=f"cannot honour {name}"):
        open_tier("own://x", plugins=plugins(), **OF_OUR_LAYOUT[name])


@pytest.mark.parametrize("name", WISHES)
def test_a_backend_gets_the_requests_that_it_declares(name: str) -> None:
    events: list[Any] = []

    open_tier("own://x", plugins=plugins(), emit=events.append, **WISHES[name])

    [context] = CONTEXTS
    assert context is not None
    expected = {
        "up_requests_max": RequestLimits(up_requests_max=3),
        "patience_seconds": RequestLimits(patience_seconds=3.0),
        "fragment_size_bytes": 1000,
        "uploads_max": 7,
        "env": WISHES["env"].get("env"),
    }[name]
    got = context.limits if name in RequestLimits.names() else getattr(context, name)
    assert got is expected or got == expected
    context.emit("an event")  # type: ignore[arg-type]
    assert events == ["an event"]


@pytest.mark.parametrize("scheme", ["plain", "seen", "own", "bucket"])
def test_defaults_are_not_refused(scheme: str) -> None:
    """An explicit default of a command is not a request."""

    async def scenario() -> None:
        async with Session(plugins=plugins(), emit=lambda event: None) as session:
            session.catalogue(f"{scheme}://x", options=TierOptions(), plan=TierPlan())

    asyncio.run(scenario())


@pytest.mark.parametrize("scheme", ["plain", "seen", "own", "bucket"])
def test_an_unknown_option_is_refused_for_every_kind(scheme: str) -> None:
    with pytest.raises(Misuse, match="has no option 'colour'"):
        open_tier(f"{scheme}://x", plugins=plugins(), storage_options={"colour": "red"})


def test_a_bare_store_has_no_commit_store() -> None:
    async def scenario() -> None:
        async with Session(plugins=plugins()) as session:
            with pytest.raises(Misuse, match="has no commit store"):
                session.store("bucket://a", storage_options={"commit.region": "north"})

    asyncio.run(scenario())


def test_the_log_names_undeclared_events_and_metrics(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        open_tier("plain://x", plugins=plugins())

    assert "backend 'plain' does not honour emit and metrics" in caplog.text


def test_a_declaration_names_only_known_items_and_none_for_a_store() -> None:
    with pytest.raises(Misuse, match="it can name emit"):
        Backend(name="odd", target="m:f", kind="offloader", takes=("colour",))
    with pytest.raises(Misuse, match="a store takes nothing"):
        Backend(name="odd", target="m:f", takes=("limits",))


@pytest.mark.parametrize("kind", ["store", "offloader"])
def test_a_backend_that_returns_another_kind_than_declared_is_named(kind: Any) -> None:
    wrong = {"store": "open_plain", "offloader": "open_bucket"}[kind]
    found = plugins()
    odd = Backend(
        name="odd", target=f"session_backends:{wrong}", schemes=("odd",), kind=kind, options=("speed",)
    )
    found.declared = [*found.declared, replace(found.declared[0], declaration=odd)]

    with pytest.raises(Misuse, match=f"'odd' says that it is an? {kind}"):
        open_tier("odd://x", plugins=found)


def test_every_declared_kind_is_in_these_tests() -> None:
    assert {each.kind for each in DECLARED} == {"store", "offloader", "catalogue"}
