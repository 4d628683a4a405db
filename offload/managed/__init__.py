"""Managed ledgers: a broker's own log and a tier as one stream, with policies for both."""
