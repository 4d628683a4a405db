"""Errors are short and begin with the cause, and the counts of an export are of all its batches."""

from __future__ import annotations

from typing import Any

import pytest
from offload_spark.jobs.export import BatchTally, Exported
from offload_spark.jobs.plain_errors import LINES_MAX, cause_of, plain_errors
from pyspark.errors import PySparkException

from offload.ground.errors import OffloadError

JAVA = "\n".join(f"\tat org.apache.spark.scheduler.Step{n}.run(Step.scala:{n})" for n in range(40))
TRACE = """Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times:
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/site-packages/offload_spark/scan.py", line 90, in batches
    raise hole.error()
offload.ground.errors.Corrupt: stream 'orders': offsets [3, 4) are damaged

"""
FOREIGN = """Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times:
Traceback (most recent call last):
  File "/app/mine.py", line 9, in <lambda>
    return 1 / 0
ZeroDivisionError: division by zero

"""


def test_an_error_of_the_framework_is_its_sentence_alone() -> None:
    with pytest.raises(OffloadError) as raised, plain_errors():
        raise PySparkException(TRACE + JAVA)

    assert str(raised.value) == "stream 'orders': offsets [3, 4) are damaged"
    assert isinstance(raised.value.__cause__, PySparkException)
    assert cause_of(TRACE + JAVA)[0] == "Corrupt"


@pytest.mark.parametrize("text", [FOREIGN + JAVA, FOREIGN * 10 + JAVA], ids=["once", "again and again"])
def test_any_other_error_has_ten_lines_at_most_and_its_cause_first(text: str) -> None:
    name, said = cause_of(text)

    lines = said.splitlines()
    assert name == ""
    assert lines[0] == "ZeroDivisionError: division by zero"
    assert len(lines) <= LINES_MAX
    assert not [line for line in lines if "scala" in line or "mine.py" in line]


def test_an_error_without_a_trace_is_spark_s_own_text() -> None:
    assert cause_of("[TABLE_OR_VIEW_NOT_FOUND] no such view\n" + JAVA) == (
        "",
        "[TABLE_OR_VIEW_NOT_FOUND] no such view",
    )


def test_an_export_counts_batches_that_spark_has_forgotten() -> None:
    """Spark keeps 100 reports. Reports may come twice, and empty batches are no batches of the export."""
    reports: list[dict[str, Any]] = [{"batchId": n, "numInputRows": 0 if n == 7 else 10} for n in range(250)]
    tally = BatchTally()

    for end in range(50, 251, 50):
        found = tally.exported(reports[max(end - 100, 0) : end])

    assert found == Exported(rows=2490, batches=249)
