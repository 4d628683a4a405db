"""Jobs: what is done to whole tiers in parallel. Each is a function and a command (docs/spark.md)."""
