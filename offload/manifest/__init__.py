"""What is committed of a stream, and how that changes: the changes, and the protocol that commits them."""
