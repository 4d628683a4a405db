"""Compaction of a stream: many small fragments become a few large ones."""
