"""A run while it goes on, as far as its directory tells: read again and again, each time only what is new."""
