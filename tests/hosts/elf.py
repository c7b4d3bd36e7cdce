"""Shared libraries with a dynamic table and a section .rodata, and no code."""

from __future__ import annotations

import struct
from collections.abc import Sequence


def library(*, needed: Sequence[str] = (), rpath: str = "", runpath: str = "", constants: bytes = b"") -> bytes:
    texts, tags = b"\0", []
    for tag, text in [*((1, n) for n in needed), *(((15, rpath),) if rpath else ()), *(((29, runpath),) if runpath else ())]:
        tags.append((tag, len(texts)))
        texts += text.encode() + b"\0"
    names = b"\0.rodata\0.shstrtab\0"
    texts_at = 64 + 2 * 56
    dynamic_at = texts_at + len(texts)
    dynamic = b"".join(struct.pack("<QQ", *t) for t in [*tags, (5, texts_at), (0, 0)])
    constants_at = dynamic_at + len(dynamic)
    names_at = constants_at + len(constants)
    sections_at = names_at + len(names)
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, sections_at, 0, 64, 56, 2, 64, 3, 2)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, sections_at, sections_at, 4096)
    table = struct.pack("<IIQQQQQQ", 2, 6, dynamic_at, dynamic_at, dynamic_at, len(dynamic), len(dynamic), 8)
    rows = [(0, 0, 0, 0, 0, 0), (1, 1, 2, constants_at, constants_at, len(constants)), (9, 3, 0, 0, names_at, len(names))]
    sections = b"".join(struct.pack("<IIQQQQIIQQ", *row, 0, 0, 1, 0) for row in rows)
    return header + load + table + texts + dynamic + constants + names + sections
