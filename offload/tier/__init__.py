"""A tier: everything between the contract and the port. Writing, reading, syncing, verifying."""
