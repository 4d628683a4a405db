"""Tests of the command line on a bucket or container: a user's commands, with the environment's login."""

from __future__ import annotations

from pathlib import Path

import pytest
from cloud.tiers import CloudTier, environment_of
from command_line import offload
from osiris_data import DATA, body_of
from servers import Running, servers


@pytest.fixture
def tier(running_server: Running, monkeypatch: pytest.MonkeyPatch) -> CloudTier:
    """A prefix in a new place. Environment variables lead the command line there."""
    return CloudTier(running_server.place(), monkeypatch)


pytestmark = pytest.mark.parametrize("running_server", servers(), indirect=True)


def test_streams_of_a_broker_are_copied_and_read_back(tier: CloudTier) -> None:
    synced = offload("sync", f"rabbitmq://{DATA}", tier.url, "--json")
    read = offload("read", tier.url, "batches", "--decode", "amqp", "--format", "body")
    verified = offload("verify", tier.url, "--json")

    assert synced.code == 0, synced.stderr
    assert {report["stream"] for report in synced.objects} == {"batches", "filtered", "tiny"}
    assert read.stdout.splitlines() == [body_of(i) for i in range(12_240)]
    assert verified.document["damages"] == []
    assert verified.document["unreferenced"] == []
    assert all(key.startswith("some/tier/") for key in sorted(tier.place.keys()))
    assert "rror" not in synced.stderr + read.stderr + verified.stderr


def test_a_second_sync_changes_nothing(tier: CloudTier) -> None:
    offload("sync", f"rabbitmq://{DATA}/tiny", tier.url)
    before = tier.objects()

    again = offload("sync", f"rabbitmq://{DATA}/tiny", tier.url, "--json")

    assert again.document["uploaded_bytes"] == 0
    assert tier.objects() == before


def test_a_tier_moves_from_a_folder_to_a_bucket_and_back(tier: CloudTier, tmp_path: Path) -> None:
    """By the steps of docs/move-a-tier.md, with the numbers that it compares."""
    source, old, back = f"rabbitmq://{DATA}/filtered", tmp_path / "old", tmp_path / "back"
    offload("sync", source, old)

    for here, there in ((old, tier.url), (tier.url, back)):
        copied = offload("copy", here, there)
        assert copied.code == 0, copied.stderr

    compared = ("stream", "messages", "first_offset", "next_offset", "bytes", "newest")
    listed = [offload("ls", place, "--json").document for place in (old, tier.url, back)]
    proofs = [{key: row[key] for key in compared} for row in listed]
    assert proofs[0] == proofs[1] == proofs[2]
    assert offload("verify", tier.url).code == 0
    assert offload("sync", source, tier.url, "--json").document["uploaded_bytes"] == 0


def test_options_lead_to_the_same_tier_as_the_environment(
    tier: CloudTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    offload("sync", f"rabbitmq://{DATA}/tiny", tier.url)
    for name in environment_of(tier.place):
        monkeypatch.delenv(name)
    options = [f"--option={name}={value}" for name, value in tier.place.options.items()]

    listed = offload("ls", tier.url, *options)

    assert listed.code == 0, listed.stderr
    assert "tiny" in listed.text


def test_verify_finds_a_damaged_object(tier: CloudTier) -> None:

    offload("sync", f"rabbitmq://{DATA}/tiny", tier.url)
    [victim] = [key for key in sorted(tier.place.keys()) if key.endswith(".fragment")]
    raw = bytearray(tier.place.get(victim))
    raw[1000] ^= 1
    tier.place.put(victim, bytes(raw))

    verified = offload("verify", tier.url, "--json")

    assert verified.code == 1
    assert [row["object"] for row in verified.document["damages"]] == [victim.removeprefix("some/tier/")]


def test_a_missing_bucket_is_one_plain_line(tier: CloudTier) -> None:
    missing = f"{tier.place.url}-not"

    listed = offload("ls", missing)
    synced = offload("sync", f"rabbitmq://{DATA}/tiny", missing)

    assert (listed.code, synced.code) == (1, 1)
    assert missing in listed.error
    assert "does not exist" in listed.error or tier.place.scheme == "gs"  # GCS reports no tier there
    assert "does not exist" in synced.error
