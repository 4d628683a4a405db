"""A process that keeps the streams of a source on a tier: `offload run`."""
