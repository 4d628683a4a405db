"""Sweeping a tier: deleting what no commit can ever name."""
