"""Following a source: which stream is copied next, how far, and what stops it."""
