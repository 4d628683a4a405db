"""Ledgers on this machine: osiris' files in a folder, what counts of them, and logs that take appends."""
