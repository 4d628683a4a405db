"""Writing a stream through any offloader: as its owner, and as a guest that adds data."""
