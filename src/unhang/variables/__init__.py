"""What is known of environment variables that touch communication.

`of_nccl`, `of_torch`, `of_launchers` hold one entry for each variable; `readers.tsv` which release reads which name. `judge` puts both to the
settings that were found (in the environment, or in a file: `files/`), one by one; `together` looks at several of them.
"""
