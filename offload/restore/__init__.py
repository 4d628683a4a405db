"""Bringing an archived stream back into a broker, and reading back what the broker has."""
