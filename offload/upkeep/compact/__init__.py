"""Compacting a stream: many small fragments become few large ones."""
