"""Metadata services for the roots of a tier. `plugin` declares them, `etcd` and `postgres` have the code."""
