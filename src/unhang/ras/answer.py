"""An answer of RAS in hand or in a file: JSON or text, told by its first character, and brought into one `Report`."""

from __future__ import annotations

import re
from pathlib import Path

from unhang.errors import RecordError
from unhang.ras import json_answer, text_answer
from unhang.ras.model import Report

# A rank of a JSON answer is about 600 bytes: 128 MiB are 200,000 of them, ten communicators on each of 20,000 GPUs.
MAX_BYTES = 128 * 1024 * 1024

# What the server said before the answer, where somebody kept a whole conversation (`nc localhost 28028 > file`).
_BEFORE = re.compile(rb"\s*(?:SERVER PROTOCOL [^\n]*\n|OK\r?\n|ERROR: Unknown command [^\n]*\n)", re.IGNORECASE)


def load(path: Path) -> Report:
    """Read an answer that was kept in a file. Raises RecordError where it is missing, no file, larger than `MAX_BYTES`, or no answer of RAS."""
    try:
        # Devices and pipes have no end, whatever their size says.
        if path.exists() and not path.is_file():
            raise RecordError(f"{path} is no regular file")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as e:
        raise RecordError(f"cannot read {path}: {getattr(e, 'strerror', None) or e}") from e
    if len(data) > MAX_BYTES:
        raise RecordError(f"{path} is larger than any answer of NCCL's RAS (more than {MAX_BYTES} bytes)")
    return parse(data, source=str(path))


def parse(data: bytes, *, source: str = "the answer", cut: str | None = None) -> Report:
    """Bring an answer into one shape, JSON (2.28.7 and later) or text (all versions).

    `cut`: why no more came, if the reader knows that something is missing. Text that ends early is read as far as it goes, and says so in
    `Report.cut`; JSON is read whole or not at all. Raises RecordError where it is no answer of RAS, or damaged. Source: NCCL,
    src/ras/client_support.cc.
    """
    start = 0
    while before := _BEFORE.match(data, start):
        start = before.end()
    body = data[start:].strip()
    if not body:
        raise RecordError(f"{source} is empty" + (f": {cut}" if cut else ""), cause="the process that was asked ended, or is stopped")
    if body.startswith(b"{"):
        return json_answer.parse(body, source=source, cut=cut)
    return text_answer.parse(body, source=source, cut=cut)
