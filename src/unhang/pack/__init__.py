"""Environments that travel: packed with their interpreter and editable sources, placed under another path, and shown to work there."""
