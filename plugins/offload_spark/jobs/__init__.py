"""Jobs that process whole tiers in parallel. Each is a function and a command (docs/spark.md)."""
