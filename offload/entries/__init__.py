"""Ledgers of a broker's own entries as streams: chunks made of entries, and offsets numbered from them."""
