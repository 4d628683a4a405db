"""Osiris' files in a folder, as ledgers: what counts of them after a crash, and segments that are written."""
