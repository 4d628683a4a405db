"""Modules for every room: errors, the environment, tasks, URLs, texts from outside, the compiled loops."""
