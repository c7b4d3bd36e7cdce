"""Several hosts: an agent on each, over a pipe that is there anyway; what differs between them, and which link is bad."""
