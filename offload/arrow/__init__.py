"""Streams as Arrow batches: the columns, and batches made of stored chunks. Needs pyarrow."""
