"""The module by which Spark finds `format("offload")` if a program has not registered it.

Spark imports the modules whose names begin with `pyspark_`. If one import fails, Spark finds none of them. So
this import never fails: without the extra `spark`, the module declares nothing.
"""

from contextlib import suppress

with suppress(Exception):
    from offload_spark.source import OffloadDataSource as DefaultSource

    __all__ = ["DefaultSource"]
