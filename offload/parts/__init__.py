"""A stream and its parts as one object: finding, listing and opening them. Only what copies knows more."""
