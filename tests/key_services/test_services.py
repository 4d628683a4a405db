"""Claims about single key services, their URLs, and a tier whose master key is in AWS KMS."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import offload
from key_services import rigs
from key_services.imitations import TOKEN, GoogleKms, KeyVault, KmsBefore, Transit
from key_services.rigs import ENV, RING, Rig
from offload_keys.awskms import AwsKeys
from offload_keys.azurekeyvault import AzureKeys
from offload_keys.gcpkms import GoogleKeys
from offload_keys.log_filter import hushed
from offload_keys.vault import VaultKeys
from osiris_data import DATA, body_of
from servers.session import Session
from wire import Answer, Heard, silent, wire

from offload.contracts.keys import KeyService
from offload.ground.errors import Denied, Misuse, NoSuchKey, TryAgain

KEY = bytes(range(32))
TINY = f"rabbitmq://{DATA / 'tiny'}"


@pytest.fixture(params=["awskms-moto"])
def aws(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, running_servers: Session
) -> Iterator[Rig]:
    with rigs.aws(tmp_path, monkeypatch, running_servers) as made:
        yield made


def before_moto(rig: Rig) -> KmsBefore:
    assert isinstance(rig.imitation, KmsBefore)
    return rig.imitation


@pytest.mark.parametrize(
    ("kind", "url"),
    [
        (AwsKeys, "awskms:eu-west-1"),
        (AwsKeys, "awskms:?regoin=eu-west-1"),
        (AwsKeys, "awskms:?days=6"),
        (AwsKeys, "awskms:?days=31"),
        (AwsKeys, "awskms:?days=week"),
        (AwsKeys, "awskms:?endpoint=http://10.0.0.1"),
        (AwsKeys, "awskms:?endpoint=http://localhost.evil.example"),
        (AwsKeys, "awskms:?endpoint=kms"),
        (GoogleKeys, "gcpkms:projects/p/locations/l"),
        (GoogleKeys, f"gcpkms:{RING}/cryptoKeys/k"),
        (GoogleKeys, f"gcpkms:{RING}?endpoint=http://example.com"),
        (AzureKeys, "azurekeyvault:http://127.0.0.1"),
        (AzureKeys, "azurekeyvault:name"),
        (AzureKeys, "azurekeyvault:https://user:word@name.vault.azure.net"),
        (VaultKeys, "vault:https://host:8200"),
        (VaultKeys, "vault:https://host:8200/../sys"),
        (VaultKeys, "vault:http://host:8200/transit"),
        (VaultKeys, "vault:https://s.token@host:8200/transit"),
        (VaultKeys, "vault:https://host:8200/transit?token=x"),
    ],
)
def test_a_url_that_is_no_address_over_tls_is_refused(kind: Callable[[str], KeyService], url: str) -> None:
    with pytest.raises(Misuse):
        kind(url)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:4566", "[::1]:1"])
def test_plain_http_is_for_this_machine(host: str) -> None:
    assert AwsKeys(f"awskms:?endpoint=http://{host}")


def test_an_address_without_tls_in_a_variable_is_refused(aws: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", "http://kms.example")

    async def wrap() -> None:
        service = AwsKeys("awskms:?region=eu-west-1", env=ENV)
        with pytest.raises(Misuse, match="on this machine alone"):
            await service.wrap("a", KEY, {})
        await service.aclose()

    asyncio.run(wrap())


def test_a_label_is_a_part_of_what_aws_binds(aws: Rig) -> None:
    """Two aliases may name one key."""

    async def wrapped(service: KeyService) -> bytes:
        await service.create("one")
        with pytest.raises(Misuse, match="a context has no 'label'"):
            await service.wrap("one", KEY, {"label": "two"})
        raw = await service.wrap("one", KEY, {})
        assert isinstance(service, AwsKeys)
        key = (await service._client.describe_key(KeyId="alias/one"))["KeyMetadata"]["KeyId"]
        await service._client.create_alias(AliasName="alias/two", TargetKeyId=key)
        with pytest.raises(Denied):
            await service.unwrap("two", raw, {})
        return raw

    assert aws.ask(wrapped)


@pytest.mark.parametrize("lost", ["CreateKey", "CreateAlias", "ScheduleKeyDeletion"])
def test_a_lost_reply_of_aws_leaves_one_key_with_the_label(
    aws: Rig, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, missed = before_moto(aws), []
    reply = before.reply

    def lose_once(heard: Heard) -> Answer:
        answer = reply(heard)
        if before.name_of(heard) == lost and not missed:
            missed.append(lost)
            return Answer(drop=True)
        return answer

    monkeypatch.setattr(before, "reply", lose_once)

    async def live(service: KeyService) -> tuple[bytes, float]:
        await service.create("own")
        wrapped = await service.wrap("own", KEY, {})
        assert await service.unwrap("own", wrapped, {}) == KEY
        return wrapped, await service.destroy("own")

    _, seconds = aws.ask(live)

    assert missed == [lost]
    assert seconds == 9 * 86_400


def test_a_rivals_key_of_aws_is_kept_and_our_own_is_deleted(
    aws: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = before_moto(aws)
    reply = before.reply

    def rival_first(heard: Heard) -> Answer:
        """A rival makes the key and the alias between our look and our alias."""
        if before.name_of(heard) == "CreateAlias":
            monkeypatch.setattr(before, "reply", reply)
            other = before._moto(heard.headers | {"x-amz-target": "TrentService.CreateKey"}, b"{}")[1]
            alias = json.loads(heard.body) | {"TargetKeyId": json.loads(other)["KeyMetadata"]["KeyId"]}
            before._moto(heard.headers, json.dumps(alias).encode())
        return reply(heard)

    monkeypatch.setattr(before, "reply", rival_first)

    async def create(service: KeyService) -> list[str]:
        await service.create("own")
        assert isinstance(service, AwsKeys)
        keys = (await service._client.list_keys())["Keys"]
        found = [await service._client.describe_key(KeyId=each["KeyId"]) for each in keys]
        assert await service.unwrap("own", await service.wrap("own", KEY, {}), {}) == KEY
        return sorted(each["KeyMetadata"]["KeyState"] for each in found)

    assert aws.ask(create) == ["Enabled", "PendingDeletion"]


def test_a_key_that_waits_for_its_deletion_is_not_made_again(aws: Rig) -> None:
    async def again(service: KeyService) -> None:
        await service.create("own")
        await service.destroy("own")
        with pytest.raises(NoSuchKey):
            await service.create("own")

    aws.ask(again)


@pytest.mark.parametrize("broken", ["damaged", "unverified"])
def test_google_is_asked_again_if_a_request_or_a_reply_was_damaged(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, running_servers: Session
) -> None:
    async def use(service: KeyService) -> bytes:
        await service.create("a")
        setattr(imitation, broken, 1)
        wrapped = await service.wrap("a", KEY, {})
        imitation.damaged = 1
        assert await service.unwrap("a", wrapped, {}) == KEY
        setattr(imitation, broken, 99)
        with pytest.raises(TryAgain, match="damaged on the way"):
            await service.wrap("a", KEY, {})
        return wrapped

    with rigs.google(tmp_path, monkeypatch, running_servers) as rig:
        assert isinstance(rig.imitation, GoogleKms)
        imitation = rig.imitation
        assert rig.ask(use)


@pytest.fixture
def azure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, running_servers: Session) -> Iterator[Rig]:
    with rigs.azure(tmp_path, monkeypatch, running_servers) as made:
        yield made


def test_a_key_of_azure_has_one_version_and_older_versions_open_what_they_wrapped(azure: Rig) -> None:
    vault = azure.imitation
    assert isinstance(vault, KeyVault)

    async def use(service: KeyService) -> None:
        await service.create("a")
        await service.create("a")
        assert len(vault.keys["a"]) == 1
        older = await service.wrap("a", KEY, {})
        vault.keys["a"].append("0" * 32)
        newer = await service.wrap("a", KEY, {})
        assert older[1:17] != newer[1:17] == bytes(16)
        assert [await service.unwrap("a", each, {}) for each in (older, newer)] == [KEY, KEY]

    azure.ask(use)


def test_a_deleted_key_of_azure_is_not_made_again(azure: Rig) -> None:
    async def again(service: KeyService) -> None:
        await service.create("a")
        await service.destroy("a")
        with pytest.raises(NoSuchKey):
            await service.create("a")

    azure.ask(again)


def test_a_label_that_is_too_long_for_google_is_refused() -> None:
    service = GoogleKeys(f"gcpkms:{RING}?endpoint=http://127.0.0.1:1")

    with pytest.raises(Misuse, match="at most 63"):
        asyncio.run(service.create("x" * 64))


def test_the_token_of_vault_follows_no_redirect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VAULT_TOKEN", TOKEN)
    with wire(lambda heard: Answer(204)) as other:
        sent = Answer(
            307, b'{"errors": ["hvs.HUSH"]}', headers={"Location": f"{other.url}/v1/transit/keys/a"}
        )
        with wire(lambda heard: sent) as server:
            vault = Rig(lambda: VaultKeys(f"vault:{server.url}/transit", env=ENV), None, 0)
            with pytest.raises(Denied, match="sends us elsewhere") as caught:
                vault.ask(lambda service: service.create("a"))

        assert str(caught.value.__cause__) == "HTTP 307"  # a body may repeat the request
        assert other.heard == []


def test_a_server_that_never_answers_is_left_at_our_own_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client of HTTP has no deadline of its own here, so ours is the only one."""
    monkeypatch.setenv("VAULT_TOKEN", TOKEN)
    with silent() as server:
        vault = Rig(lambda: VaultKeys(f"vault:{server.url}/transit", env=ENV), None, 0)
        with pytest.raises(TryAgain, match="did not answer in time"):
            vault.ask(lambda service: service.create("a"), deadline_seconds=0.05)


def test_aws_follows_no_redirect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", TOKEN)
    with wire(lambda heard: Answer(200, b"{}")) as other:
        with wire(lambda heard: Answer(307, headers={"Location": other.url})) as server:
            url = f"awskms:?region=eu-west-1&endpoint={server.url}"
            with pytest.raises(Denied):
                Rig(lambda: AwsKeys(url, env=ENV), None, 0).ask(lambda service: service.wrap("a", KEY, {}))

        assert other.heard == []


def test_vault_without_a_token_is_denied_before_any_request(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VAULT_TOKEN", "BAO_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with wire(Transit().answer) as server:
        vault = Rig(lambda: VaultKeys(f"vault:{server.url}/transit", env=ENV), None, 0)
        with pytest.raises(Denied, match="set VAULT_TOKEN or BAO_TOKEN"):
            vault.ask(lambda service: service.create("a"))

        assert server.heard == []


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"data": {}}', b'{"data": {"ciphertext": 7}}'])
def test_an_answer_that_is_not_of_vault_is_denied(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    monkeypatch.setenv("VAULT_TOKEN", TOKEN)
    with wire(lambda heard: Answer(200, body)) as server:
        vault = Rig(lambda: VaultKeys(f"vault:{server.url}/transit", env=ENV), None, 0)
        with pytest.raises(Denied, match="not from a transit engine"):
            vault.ask(lambda service: service.wrap("a", KEY, {}))


def test_only_calls_of_key_services_are_silent(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("botocore.some")
    with caplog.at_level(logging.DEBUG):
        log.debug("before")
        with hushed("botocore"):
            log.debug("a key")
            log.warning("a warning")
            logging.getLogger("offload.some").debug("ours")
        log.debug("after")

    assert caplog.messages == ["before", "a warning", "ours", "after"]


def test_a_tier_is_synced_and_read_with_a_master_key_in_aws(aws: Rig, tmp_path: Path) -> None:
    service = aws.open()
    assert isinstance(service, AwsKeys)
    keys = ("--keys", service.url)
    aws.ask(lambda service: service.create("tier-2026"))

    def run(*arguments: Any) -> list[str]:
        ran = offload(*arguments)
        assert ran.code == 0, ran.stderr
        return ran.lines

    run("sync", TINY, tmp_path / "tier", *keys, "--encrypt", "tier-2026")
    bodies = run("read", tmp_path / "tier", "tiny", "--decode", "amqp", "--format", "body", *keys)
    missing = offload("sync", TINY, tmp_path / "other", *keys, "--encrypt", "missing")

    assert bodies == [body_of(number).decode() for number in range(10)]
    assert not any(body_of(3) in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert missing.code == 1
    assert "kms:Encrypt for the master key 'missing': there is no such key" in missing.error


def test_shredding_a_stream_with_its_own_key_in_aws_tells_the_waiting_period(
    aws: Rig, tmp_path: Path
) -> None:
    service = aws.open()
    assert isinstance(service, AwsKeys)
    keys = ("--keys", service.url)
    assert offload("sync", TINY, tmp_path / "tier", *keys, "--encrypt", "own:tier").code == 0

    shredded = offload("shred", tmp_path / "tier", "tiny", "--yes", *keys)
    read = offload("read", tmp_path / "tier", "tiny", *keys)

    assert shredded.code == 0, shredded.stderr
    assert "its data is gone for everybody in 9d," in shredded.text
    assert read.code == 1
