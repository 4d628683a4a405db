"""The formats: bytes in, bytes out, no I/O. docs/format.md is made from their tables."""
