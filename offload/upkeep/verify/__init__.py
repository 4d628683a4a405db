"""Verifying a tier: its objects against checksums, keys and the manifest."""
