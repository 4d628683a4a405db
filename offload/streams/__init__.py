"""What embedders use: writing, reading and syncing streams through any offloader."""
