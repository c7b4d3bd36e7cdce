"""Settings that stand in files: scripts, env files, Dockerfiles, YAML, JSON, Python. Each with its line and the text that makes it."""
