"""Sinks: each a module with a class that has `write(snapshot)` and `close()`."""
