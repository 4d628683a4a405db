"""Copying a source's stream to a tier: comparing histories, new parts, and one run over all streams."""
