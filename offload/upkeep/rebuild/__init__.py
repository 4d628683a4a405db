"""Rebuilding a stream's manifest from its fragments, if its roots are lost."""
