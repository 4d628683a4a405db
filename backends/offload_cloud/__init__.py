"""What the backends of distant stores share. No backend itself, and no SDK of any one store."""
