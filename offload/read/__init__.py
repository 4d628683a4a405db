"""Reading a stream of any catalogue: positions, windows of chunks, messages, and waiting for more."""
