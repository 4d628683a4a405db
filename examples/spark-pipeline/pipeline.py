"""A pipeline from RabbitMQ's streams on disk, through a tier, to a table of messages by key and minute.

    python pipeline.py rabbitmq:///var/lib/rabbitmq/.../stream s3://bucket/tier ./by-minute

The environment has the options of the tier's backend, or TIER_OPTIONS has them as JSON.
"""

import json
import os
import sys

from offload_spark import session

from offload import Blocking

BY_MINUTE = """
    SELECT stream,
           get_json_object(string(body), '$.key') AS key,
           date_trunc('minute', timestamp)        AS minute,
           count(*)                               AS messages,
           sum(length(body))                      AS bytes
    FROM records
    GROUP BY ALL
"""


def main(source: str, tier: str, target: str) -> None:
    """Copy new data to the tier, then count all messages there."""
    options = json.loads(os.environ.get("TIER_OPTIONS", "{}"))
    with Blocking(tier, storage_options=options) as opened:
        for report in opened.sync(source):
            print(f"{report.stream}: {report.error or 'moved'}")

    spark = session()
    records = spark.read.format("offload").option("decode", "amqp")
    records = records.option("storageOptions", json.dumps(options)).load(tier)
    records.createOrReplaceTempView("records")
    spark.sql(BY_MINUTE).write.mode("overwrite").parquet(target)

    busiest = spark.read.parquet(target).orderBy("messages", "key", ascending=False)
    busiest.show(5)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
