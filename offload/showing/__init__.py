"""What people and programs are shown of streams and messages: documents and lines, for every way to ask.

The command line prints them, and a service sends them. Nothing here writes to a terminal or a socket.
"""
