"""Our own failures as a file that is already a bug report."""

from __future__ import annotations

import platform
import sys
import tempfile
import traceback
from pathlib import Path

from unhang import __version__


def write(error: BaseException) -> Path | None:
    """Write the report to a new file and return its path; None where no file can be written."""
    lines = [
        "### What happened",
        f"`{' '.join(sys.argv)}` ended with {type(error).__name__}: {error}",
        "",
        "### Versions",
        f"unhang {__version__}, Python {platform.python_version()}, {platform.platform()}",
        "",
        "### Traceback",
        "```",
        "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip(),
        "```",
        "",
    ]
    from unhang.diagnosis.redact import redact

    try:
        with tempfile.NamedTemporaryFile("w", prefix="unhang-report-", suffix=".md", delete=False, encoding="utf-8", errors="replace") as f:
            f.write(redact("\n".join(lines)))
    except OSError:
        return None
    return Path(f.name)
