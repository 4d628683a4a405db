"""The domain as plain values: manifests, entries, attempts, chunk tables, positions. No bytes, no I/O."""
