"""Copying streams from one tier to another, and from any origin onto a stream."""
