"""The formats: they encode values to bytes and decode them, without I/O.

docs/format.md shows their tables.
"""
