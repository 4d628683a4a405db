"""Encryption in Spark: driver and tasks ask the key service themselves, and no key leaves a process.

The key service is a folder of key files, which the test and Spark's workers see alike.
"""

from __future__ import annotations

import asyncio
import base64
import pickle
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from campaign import campaign
from command_line import Ran, offload
from offload_keys import open_files
from offload_spark import append
from offload_spark.opening import TierAddress
from offload_spark.options import ReadOptions
from offload_spark.source import OffloadDataSource
from osiris_writer import simple_chunks, write_stream
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from offload.formats.anchor import KeyObject
from offload.ground.errors import Corrupt, Misuse
from offload.native.key_objects import unwrap_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LABEL = "tier-2026"
MASTERS = {LABEL: b"m" * 32, "other": b"o" * 32}


@pytest.fixture(autouse=True)
def no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver uses a key service only if it is asked to."""
    monkeypatch.delenv("OFFLOAD_KEYS", raising=False)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a key service."""
    folder = tmp_path_factory.mktemp("keys")
    folder.chmod(0o700)
    for label, master in MASTERS.items():
        (folder / label).touch(mode=0o600)
        (folder / label).write_bytes(base64.b64encode(master))
    return f"keyfile:{folder}"


@pytest.fixture(scope="module")
def written(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, service: str) -> Path:
    """A tier whose stream `orders` has 20 records that Spark wrote encrypted."""
    url = str(tmp_path_factory.mktemp("tier"))
    to = {"stream": "orders", "keys": service, "encrypt": LABEL}
    frame = spark.range(0, 10, 1, 2).selectExpr("id AS offset", "concat('secret text ', id) AS value")
    frame.write.format("offload").mode("append").options(**to).save(url)
    append(frame.select("value"), url, "orders", keys=service)
    return Path(url)


@pytest.fixture
def tier(written: Path, tmp_path: Path) -> Path:
    """A copy of the tier, for a test to change."""
    return Path(shutil.copytree(written, tmp_path / "tier"))


def texts(tier: Path, *options: str) -> list[str]:
    return good("read", tier, "orders", "--format", "body", *options).lines


def values(spark: SparkSession, tier: Path, **options: str) -> list[str]:
    records = spark.read.format("offload").options(stream="orders", **options).load(str(tier))
    return [row["text"] for row in records.orderBy("offset").selectExpr("string(value) AS text").collect()]


def is_clear(tier: Path) -> bool:
    return any(b"secret text" in path.read_bytes() for path in tier.rglob("*.fragment"))


def good(*arguments: object) -> Ran:
    ran = offload(*arguments)
    assert ran.code == 0, ran.stderr
    return ran


def last_line(*arguments: object) -> str:
    """Return the one line of error of a command that must fail."""
    ran = offload(*arguments)
    assert ran.code == 1, (ran.stdout, ran.stderr)
    [line] = ran.stderr.splitlines()
    return line


TEXTS = [f"secret text {number}" for number in range(10)] * 2


def test_what_spark_writes_encrypted_is_read_by_spark_and_by_the_command(
    spark: SparkSession, tier: Path, service: str
) -> None:
    assert not is_clear(tier)
    assert values(spark, tier, keys=service, encryptedOnly="true") == TEXTS
    assert texts(tier, "--keys", service) == TEXTS


def test_a_read_without_keys_names_the_stream_and_the_remedy(spark: SparkSession, tier: Path) -> None:
    missing = "stream 'orders' is encrypted, and no key service was given; use --keys .`keys` in Python"

    with pytest.raises(Exception, match=missing):
        values(spark, tier)


@campaign("executors with a key service of their own; make test has that of an address without a cluster")
def test_an_executor_asks_the_service_of_its_own_environment(
    spark: SparkSession, tier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver has no service here, and the executors have one without the key."""
    (tmp_path / "empty").mkdir(mode=0o700)
    good("spark", "verify", tier)
    monkeypatch.setitem(spark.sparkContext.environment, "OFFLOAD_KEYS", f"keyfile:{tmp_path / 'empty'}")

    ran = offload("spark", "verify", tier)
    assert ran.code == 3
    assert ran.lines[0].startswith("UNCHECKED orders/keys/")
    assert "there is no such master key; restore it from a backup" in ran.lines[0]


def test_a_scrub_reports_a_refused_key_once_and_a_lost_key_as_damage_of_its_fragments(
    spark: SparkSession, tier: Path, service: str, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir(mode=0o700)
    refused = offload("spark", "verify", tier, "--keys", f"keyfile:{tmp_path / 'empty'}")
    assert refused.code == 3
    [unchecked, not_opened, verdict] = refused.lines
    assert unchecked.startswith("UNCHECKED orders/keys/")
    assert not_opened.startswith(f"{len(list(tier.rglob('*.fragment')))} encrypted fragments were not opened")
    assert "no damage was found, but 1 key cannot be checked" in verdict

    for path in tier.glob("orders/keys/*"):
        path.unlink()
    lost = offload("spark", "verify", tier, "--keys", service)
    assert lost.code == 1
    assert all("is lost (no copy is left)" in line for line in lost.lines[:-2])
    assert lost.lines[-1].endswith(f": {len(list(tier.rglob('*.fragment')))} damaged")


@campaign("Spark's jobs on encrypted streams; make test has its writes and reads of one, and the commands")
def test_the_jobs_read_and_write_encrypted_streams(
    spark: SparkSession, sources: Path, tier: Path, tmp_path: Path, service: str
) -> None:
    keys, copied, plain = ("--keys", service), tmp_path / "copied", tmp_path / "plain"
    filled = tmp_path / "filled"

    good("spark", "compact", tier, *keys)
    good("spark", "copy", tier, copied, *keys, "--encrypt", "other", "--verify")
    refused = last_line("spark", "copy", tier, plain, *keys)
    good("spark", "copy", copied, plain, "--from-keys", service, "--decrypt")
    exported = good("spark", "export", tier, tmp_path / "parquet", *keys)
    good(
        "spark", "backfill", f"rabbitmq://{sources}", filled, *keys, "--encrypt", LABEL, "--stream", "batches"
    )

    assert "stream 'orders' is encrypted, and its copy in" in refused
    assert "20 records added" in exported.stdout.decode()
    assert texts(plain) == texts(copied, *keys) == TEXTS
    assert b'"label":"other"' in next(copied.rglob("*.key")).read_bytes()
    assert "is encrypted" in last_line("read", filled, "batches")
    assert len(list(tier.rglob("*.fragment"))) > 4


def test_no_key_is_in_a_pickle_a_plan_or_the_event_log(
    spark: SparkSession, tier: Path, tmp_path: Path, service: str
) -> None:
    options = {"path": str(tier), "stream": "orders", "keys": service}
    source = OffloadDataSource({**options, "startingTimestamp": "1"})  # so that the driver needs the key
    reader: Any = source.reader(source.schema())
    partitions = reader.partitions()
    assert [batch for each in partitions for batch in reader.read(each)]
    writes = OffloadDataSource({**options, "encrypt": LABEL})
    schema = StructType([StructField("offset", LongType()), StructField("value", BinaryType())])
    writer = writes.writer(schema, overwrite=False)
    shown = pickle.dumps([source, reader, partitions, writes, writer])

    with event_log(spark, tmp_path / "events") as events:
        records = spark.read.format("offload").options(**options).load()
        assert records.count() == 20
        shown += records._jdf.queryExecution().toString().encode()
        append(records.select("value"), str(tier), "orders", keys=service, encrypt=LABEL)

    assert b"SparkListenerTaskEnd" in (logged := events())
    keys = [*MASTERS.values(), *stream_keys(tier, service)]
    assert len(keys) == 3
    for key in keys:
        for spelled in (key, base64.b64encode(key), key.hex().encode(), repr(key)[2:-1].encode()):
            assert spelled not in shown + logged


def stream_keys(tier: Path, service: str) -> list[bytes]:
    """Return the keys of the tier's streams, unwrapped."""
    found = [KeyObject.decode(path.read_bytes(), where=str(path)) for path in tier.rglob("*.key")]
    return [asyncio.run(unwrap_key(open_files(service), each)) for each in found]


@contextmanager
def event_log(spark: SparkSession, folder: Path) -> Iterator[Any]:
    """Log events as `spark.eventLog.enabled` does. Yield a function that returns the log afterwards."""
    folder.mkdir()
    context = spark.sparkContext._jsc.sc()
    jvm: Any = spark.sparkContext._jvm
    conf = context.getConf().set("spark.eventLog.compress", "false")
    none = jvm.scala.Option.apply(None)
    log = jvm.org.apache.spark.scheduler.EventLoggingListener(
        "test", none, jvm.java.net.URI(folder.as_uri()), conf, context.hadoopConfiguration()
    )
    log.start()
    context.addSparkListener(log)
    try:
        yield lambda: b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    finally:
        context.listenerBus().waitUntilEmpty()
        context.removeSparkListener(log)
        log.stop()


def test_a_read_of_encrypted_records_only_refuses_plain_ones(tmp_path: Path, service: str) -> None:
    write_stream(tmp_path / "orders", simple_chunks(1))
    good("sync", f"rabbitmq://{tmp_path / 'orders'}", tmp_path / "plain")
    strict = {"path": str(tmp_path / "plain"), "keys": service, "encryptedOnly": "true"}

    with (
        ReadOptions.of(strict).tier.opened() as tier,
        pytest.raises(Corrupt, match="expected encrypted, found in the clear"),
    ):
        next(iter(tier.read("orders")))


def test_an_address_takes_the_service_of_the_process_that_opens_it(
    service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = TierAddress(url="/tier")
    assert address.service is None

    monkeypatch.setenv("OFFLOAD_KEYS", service)

    assert address.service == service
    assert TierAddress(url="/tier", keys="keyenv:").service == "keyenv:"
    assert service.encode() not in pickle.dumps(address)


@pytest.mark.parametrize(
    ("given", "message"),
    [({"keys": "vault://root:hidden@x"}, "no login"), ({"encrypt": "../hidden"}, "no label of a key")],
)
def test_a_wrong_key_service_or_label_is_refused_before_anything_is_planned(
    given: dict[str, str], message: str
) -> None:
    with pytest.raises(Misuse, match=message):
        OffloadDataSource({"path": "/tier", "stream": "orders"} | given).writer(StructType(), overwrite=False)
