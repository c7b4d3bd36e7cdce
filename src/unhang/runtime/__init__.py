"""What training scripts import.

`log` is for what the library says beside its results: Python's logging, as `unhang`, and with that name also where a script has set up no logging.
"""

from __future__ import annotations

import logging

log = logging.getLogger("unhang")


def _named(record: logging.LogRecord) -> bool:
    # Python then writes the bare message to stderr.
    if not log.hasHandlers():
        record.msg = f"unhang: {record.msg}"
    return True


log.addFilter(_named)
