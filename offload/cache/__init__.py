"""The memory that the readers of a session share: blocks of chunks, and who gets room for them."""
