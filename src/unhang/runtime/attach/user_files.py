"""Tells the user's own source files from libraries, by path alone: the same rule in the attached process and in the supervisor."""

from __future__ import annotations

import os

# .../unhang/: this file is .../unhang/runtime/attach/user_files.py
_UNHANG = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep


def is_user_file(path: str) -> bool:
    """True unless `path` is generated code, the standard library, an installed package, or unhang itself (its recipes are the user's)."""
    if not path or path.startswith("<"):
        return False
    if "/unhang/recipes/" in path:
        return True
    return not (is_installed(path) or is_stdlib(path) or path.startswith(_UNHANG))


def is_library_file(path: str) -> bool:
    """True for an installed package other than torch and unhang: the second best place to point at."""
    return is_installed(path) and "/torch/" not in path and "/unhang/" not in path


def is_installed(path: str) -> bool:
    return "/site-packages/" in path or "/dist-packages/" in path


def is_stdlib(path: str) -> bool:
    """True inside the standard library of any Python 3: .../lib/python3.12/, .../lib64/python3.13t/, and python312.zip."""
    if is_installed(path):
        return False
    for part in ("/lib/python3.", "/lib64/python3.", "/lib/python3", "/lib64/python3"):
        _, found, tail = path.partition(part)
        if found and tail.partition("/")[0].rstrip("t").replace(".zip", "").isdigit():
            return True
    return False
