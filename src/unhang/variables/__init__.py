"""What is known of environment variables that touch communication.

`nccl.toml`, `pytorch.toml`, `launchers.toml` hold one entry for each variable; `readers.tsv` which release reads which name. `judge` puts both to the
settings that were found (in the environment, or in a file: `files/`), one by one; `combinations` looks at several of them.
"""
