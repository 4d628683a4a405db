"""The command line on a bucket of GCS: what a user does, led there as the ecosystem's tools are."""

from __future__ import annotations

import pytest
from command_line import offload
from osiris_data import DATA, body_of
from servers import Running, servers_of

pytestmark = pytest.mark.parametrize("running_server", servers_of("gcs"), indirect=True)


class Bucket:
    """A fresh bucket, and a look at it by other means. The environment leads the command line there."""

    def __init__(self, running: Running) -> None:
        self.place = running.place()
        self.tier = f"{self.place.url}/some/tier"

    def keys(self) -> set[str]:
        return self.place.keys()

    def objects(self) -> dict[str, bytes]:
        return {key: self.place.get(key) for key in sorted(self.keys())}


@pytest.fixture
def bucket(running_server: Running, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", running_server.endpoint)
    return Bucket(running_server)


def test_real_streams_go_to_a_bucket_and_come_back(bucket: Bucket) -> None:
    synced = offload("sync", f"rabbitmq://{DATA}", bucket.tier, "--json")
    read = offload("read", bucket.tier, "batches", "--decode", "amqp", "--format", "body")
    verified = offload("verify", bucket.tier, "--json")

    assert synced.code == 0, synced.stderr
    assert {report["stream"] for report in synced.objects} == {"batches", "filtered", "tiny"}
    assert read.stdout.splitlines() == [body_of(i) for i in range(12_240)]
    assert verified.document["damages"] == []
    assert verified.document["unreferenced"] == []
    assert all(key.startswith("some/tier/") for key in sorted(bucket.keys()))


def test_a_second_sync_changes_nothing(bucket: Bucket) -> None:
    offload("sync", f"rabbitmq://{DATA}/tiny", bucket.tier)
    before = bucket.objects()

    again = offload("sync", f"rabbitmq://{DATA}/tiny", bucket.tier, "--json")

    assert again.document["uploaded_bytes"] == 0
    assert bucket.objects() == before


def test_options_lead_to_the_bucket_as_the_environment_does(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    options = [f"--option={name}={value}" for name, value in bucket.place.options.items()]

    synced = offload("sync", f"rabbitmq://{DATA}/tiny", bucket.tier, *options)
    listed = offload("ls", bucket.tier, *options)

    assert (synced.code, listed.code) == (0, 0), synced.stderr + listed.stderr
    assert "tiny" in listed.text


def test_damage_in_the_bucket_is_found(bucket: Bucket) -> None:
    offload("sync", f"rabbitmq://{DATA}/tiny", bucket.tier)
    [victim] = [key for key in sorted(bucket.keys()) if key.endswith(".fragment")]
    raw = bytearray(bucket.place.get(victim))
    raw[1000] ^= 1
    bucket.place.put(victim, bytes(raw))

    verified = offload("verify", bucket.tier, "--json")

    assert verified.code == 1
    assert [row["object"] for row in verified.document["damages"]] == [victim.removeprefix("some/tier/")]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("ls", "gs://no-such-bucket-anywhere"), 1, "no-such-bucket-anywhere"),
        (("sync", f"rabbitmq://{DATA}/tiny", "gs://no-such-bucket-anywhere"), 1, "the bucket does not exist"),
        (("ls", "gs://"), 2, "names no bucket"),
        (("ls", "gs://bucket", "-o", "colour=red"), 2, "colour"),
        (("ls", "gs://bucket", "-o", "connections_max=0"), 2, "connections_max"),
        (("ls", "gs://bucket", "-o", "token=/no/such/file"), 2, "token"),
    ],
)
def test_what_is_wrong_is_one_plain_line(
    bucket: Bucket, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = offload(*arguments)

    assert done.code == code
    assert said in done.error
