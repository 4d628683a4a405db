"""Writing, reading and syncing streams through any offloader. Embedders use this room."""
