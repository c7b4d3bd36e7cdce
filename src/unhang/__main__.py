"""`python -m unhang` is the command `unhang`."""

from unhang.cli.main import entry

entry()
