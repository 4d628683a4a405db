"""The jobs that keep a tier in order: one folder or file for each."""
