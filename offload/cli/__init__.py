"""The command line: one module per command. `main` is where a process enters."""
