"""The contract of a key service, on every service: a folder, moto, imitations, and the engine of Vault."""

from __future__ import annotations

import base64
import logging

import pytest
from key_services.imitations import DAY_SECONDS, TOKEN, Fault
from key_services.rigs import Rig
from offload_keys.azurekeyvault import AzureKeys

from offload.contracts.keys import KeyService
from offload.ground.errors import Denied, Misuse, NoSuchKey, OffloadError, Throttled, TryAgain

KEY = bytes(range(32))
LABEL = "tier-2026"
CONTEXT = {"purpose": "test", "stream": "orders/é", "incarnation": "1", "key": "2"}


async def wrap(service: KeyService, label: str = LABEL) -> bytes:
    return await service.wrap(label, KEY, CONTEXT)


async def create_and_wrap(service: KeyService) -> bytes:
    await service.create(LABEL)
    return await wrap(service)


@pytest.fixture
def wrapped(request: pytest.FixtureRequest) -> bytes:
    """A key that the rig's service has wrapped."""
    name = "rig" if "rig" in request.fixturenames else "breakable"
    rig: Rig = request.getfixturevalue(name)
    return rig.ask(create_and_wrap)


def test_unwrapping_undoes_wrapping_in_another_client(rig: Rig, wrapped: bytes) -> None:
    assert rig.ask(lambda service: service.unwrap(LABEL, wrapped, CONTEXT)) == KEY
    assert KEY not in wrapped
    assert 0 < len(wrapped) <= 4096


def test_no_two_wrapped_keys_are_equal(rig: Rig, wrapped: bytes) -> None:
    assert rig.ask(wrap) != wrapped


def test_another_context_or_label_opens_no_wrapped_key(rig: Rig, wrapped: bytes) -> None:
    async def opened(service: KeyService) -> list[bytes]:
        await service.create("other")
        found = []
        for label, context in [
            (LABEL, {}),
            (LABEL, CONTEXT | {"stream": "other"}),
            (LABEL, CONTEXT | {"more": ""}),
            ("other", CONTEXT),
        ]:
            with pytest.raises(Denied):
                found.append(await service.unwrap(label, wrapped, context))
        return found

    assert rig.ask(opened) == []


def test_a_changed_or_foreign_wrapped_key_is_denied(rig: Rig, wrapped: bytes) -> None:
    changed = [wrapped[:-1] + bytes([wrapped[-1] ^ 1]), wrapped[:-1], wrapped + b"x", b"x", b"\xff" * 61]

    async def refuse(service: KeyService) -> None:
        for each in changed:
            with pytest.raises(Denied):
                await service.unwrap(LABEL, each, CONTEXT)

    rig.ask(refuse)


def test_a_missing_key_is_an_error_and_is_not_made(rig: Rig, wrapped: bytes) -> None:
    async def refuse(service: KeyService) -> None:
        for _ in range(2):
            with pytest.raises(NoSuchKey, match="missing"):
                await wrap(service, "missing")
        with pytest.raises(NoSuchKey):
            await service.unwrap("missing", wrapped, CONTEXT)

    rig.ask(refuse)


def test_a_second_create_leaves_the_key_as_it_is(rig: Rig, wrapped: bytes) -> None:
    async def create_again(service: KeyService) -> bytes:
        await service.create(LABEL)
        return await service.unwrap(LABEL, wrapped, CONTEXT)

    assert rig.ask(create_again) == KEY


def test_nobody_uses_a_destroyed_key_and_the_waiting_period_is_told(rig: Rig, wrapped: bytes) -> None:
    async def destroy(service: KeyService) -> tuple[float, float, float]:
        await service.create("other")
        seconds = await service.destroy(LABEL), await service.destroy(LABEL), await service.destroy("never")
        for call in (service.unwrap(LABEL, wrapped, CONTEXT), wrap(service)):
            with pytest.raises(NoSuchKey):
                await call
        await wrap(service, "other")
        return seconds

    first, again, never = rig.ask(destroy)

    assert [first, again] == pytest.approx([rig.kept_days * DAY_SECONDS] * 2, abs=60)
    assert never == 0.0


HOSTILE = ["../keys/other", "alias/x", "https://evil/", "a/b", "A", "", "a\nb", "x" * 65, "a?b", "ключ"]


def test_a_hostile_label_never_reaches_the_network(breakable: Rig) -> None:
    assert breakable.imitation is not None

    async def refuse(service: KeyService) -> None:
        for label in HOSTILE:
            for call in (
                service.wrap(label, KEY, CONTEXT),
                service.unwrap(label, b"x" * 61, CONTEXT),
                service.create(label),
                service.destroy(label),
            ):
                with pytest.raises(Misuse, match="is no label"):
                    await call

    breakable.ask(refuse)

    assert breakable.imitation.names == []


FAULTS: tuple[tuple[Fault, type[OffloadError], int], ...] = (
    ("throttled", Throttled, 4),
    ("unavailable", TryAgain, 4),
    ("dropped", TryAgain, 4),
    ("denied", Denied, 1),
)


def test_a_fault_is_told_by_what_to_do_next_and_tried_again_only_if_that_helps(
    breakable: Rig, wrapped: bytes
) -> None:
    imitation = breakable.imitation
    assert imitation is not None

    async def refuse(service: KeyService) -> None:
        for imitation.fault, error, tries in FAULTS:
            for call in (
                wrap(service),
                service.unwrap(LABEL, wrapped, CONTEXT),
                service.create("new"),
                service.destroy(LABEL),
            ):
                imitation.names.clear()
                with pytest.raises(OffloadError, match=r"for the master key '(tier-2026|new)'") as caught:
                    await call
                assert type(caught.value) is error
                assert tries <= len(imitation.names) <= 2 * tries
                assert TOKEN not in f"{caught.value!r} {caught.value}"
        imitation.fault = None
        assert await service.unwrap(LABEL, wrapped, CONTEXT) == KEY

    breakable.ask(refuse)


def test_a_silent_service_is_left_at_the_deadline(breakable: Rig, wrapped: bytes) -> None:
    imitation = breakable.imitation
    assert imitation is not None
    imitation.fault = "silent"

    async def give_up(service: KeyService) -> None:
        try:
            with pytest.raises(TryAgain, match=r"in time|cannot answer now"):
                await service.unwrap(LABEL, wrapped, CONTEXT)
        finally:
            imitation.fault = None

    breakable.ask(give_up, deadline_seconds=0.05)


def test_an_answer_of_a_wrong_size_is_denied(breakable: Rig, wrapped: bytes) -> None:
    imitation = breakable.imitation
    assert imitation is not None
    sizes: tuple[Fault, ...] = ("short", "huge")

    async def refuse(service: KeyService) -> None:
        for imitation.fault in sizes:
            with pytest.raises(Denied):
                await service.unwrap(LABEL, wrapped, CONTEXT)
            if not isinstance(service, AzureKeys):  # it wraps by itself
                with pytest.raises(Denied, match=r"wrapped key of \d+ bytes"):
                    await wrap(service)

    breakable.ask(refuse)


def test_a_key_of_another_size_is_not_wrapped(breakable: Rig) -> None:
    async def refuse(service: KeyService) -> None:
        with pytest.raises(Misuse, match="has 32 bytes"):
            await service.wrap(LABEL, b"short", CONTEXT)
        await service.aclose()  # before any request, and once more after the block

    breakable.ask(refuse)


def test_no_key_and_no_token_is_in_the_log_of_anybody(
    breakable: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """SDKs log the bodies of requests and replies at the level DEBUG."""
    with caplog.at_level(logging.DEBUG):
        wrapped = breakable.ask(create_and_wrap)
        assert breakable.ask(lambda service: service.unwrap(LABEL, wrapped, CONTEXT)) == KEY

    shown = caplog.text + repr(breakable.open()) + str([vars(each) for each in caplog.records])
    for secret in (
        TOKEN,
        base64.b64encode(KEY).decode(),
        base64.urlsafe_b64encode(KEY).decode()[:40],
        repr(KEY),
    ):
        assert secret not in shown
