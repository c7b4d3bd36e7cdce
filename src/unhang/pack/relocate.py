"""Puts an environment in its place: rewrites what names the old one, and compares files with their sums.

Standard library only, and Python 3.8: it is also run by itself on hosts that an environment is sent to, with the Python that travels.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import fcntl
import gzip
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

# script: a shebang that finds its interpreter beside itself; text: old paths become new ones; pyvenv: the base Python as well;
# binary: a path that conda declared, replaced in its length.
How = Literal["script", "text", "pyvenv", "binary"]

OWN = ".unhang"
MANIFEST = f"{OWN}/manifest.json"
PLACED = f"{OWN}/placed.json"
# This file, for hosts without unhang.
SCRIPT = f"{OWN}/placement.py"
PYTHON = ".python"
# Exit code: another host that has the same file system is at it.
BUSY = 75

# More would wait for Python's lock.
THREADS = min(16, os.cpu_count() or 1)
_BATCH = 64
_CHUNK_BYTES = 1 << 20
# pip's and uv's form where the kernel takes no longer first line; what comes after the interpreter are its options.
_SHEBANG = re.compile(rb"""#![ \t]*(?:/\S*/env[ \t]+(?P<named>python[\d.]*t?)|(?P<path>/\S*/python[\d.]*t?))(?P<options>[^\r\n]*)\r?\n""")
_LONG = re.compile(rb"""#!/bin/sh\n'''exec' (?P<quote>["']?)(?P<path>/[^\n]*/python[\d.]*t?)(?P=quote)(?P<options>[^\n]*?) "\$0" "\$@"\n' '''\n""")
# No path is longer; the time for a line grows with its square.
_HEAD_BYTES = 8192
_BASE = {"home": "bin", "base-prefix": "", "base-exec-prefix": ""}


def rewritten(data: bytes, how: How, moves: Sequence[tuple[str, str]], *, final: str, interpreter: str | None, names: Iterable[str]) -> bytes:
    """A file's content for its new place. `moves` are old and new absolute paths; `names` are what bin holds."""
    if how == "binary":
        for old, new in moves:
            data = _in_length(data, old, new) if new == final else data
        return data
    text = data.decode("utf-8", "surrogateescape")
    if how == "script":
        first = data[:_HEAD_BYTES]
        found = _SHEBANG.match(first) or _LONG.match(first)
        head = _head(found, names, moves) if found is not None else None
        # A string in front of it would be a syntax error.
        if head is not None and found is not None and b"from __future__" not in data:
            return head + _moved(data[found.end() :].decode("utf-8", "surrogateescape"), moves).encode("utf-8", "surrogateescape")
    text = _moved(text, moves)
    if how == "pyvenv" and interpreter is not None:
        base = f"{final}/{PYTHON}"
        for key, below in _BASE.items():
            line = f"{key} = {base}/{below}".rstrip("/")
            text = re.sub(rf"^{key} *=.*$", line.replace("\\", r"\\"), text, flags=re.M)
        text = re.sub(r"^(executable|base-executable) *=.*$", lambda m: f"{m[1]} = {final}/{interpreter}", text, flags=re.M)
    return text.encode("utf-8", "surrogateescape")


def _head(found: re.Match[bytes], names: Iterable[str], moves: Sequence[tuple[str, str]]) -> bytes | None:
    named = found.groupdict().get("named")
    path = (found["path"] or b"").decode("utf-8", "surrogateescape") if not named else ""
    if path and not any(path.startswith(f"{p}/") for move in moves for p in move):
        return None
    name = named.decode() if named else path.rpartition("/")[2]
    name = name if name in names else "python"
    options = found["options"].decode("utf-8", "surrogateescape").rstrip()
    return f"""#!/bin/sh\n'''exec' "$(dirname -- "$(realpath -- "$0")")"/'{name}'{options} "$0" "$@"\n' '''\n""".encode("utf-8", "surrogateescape")


def _moved(text: str, moves: Sequence[tuple[str, str]]) -> str:
    """In one pass, the longest first: new paths may lie below old ones. A path is one after -I and -L as well, and none within a longer name."""
    new = {old: now for old, now in moves if old in text}
    if not new:
        return text
    pattern = rf"(?:(?<=-[IL])|(?<![\w.+~-]))({'|'.join(map(re.escape, new))})(?![\w+~-]|\.\w)"

    def moved(found: re.Match[str]) -> str:
        # Python 3.13's activate scripts have no quotes where the old path needed none.
        is_bare = text.endswith(("VIRTUAL_ENV=", "VIRTUAL_ENV "), 0, found.start())
        return shlex.quote(new[found[1]]) if is_bare else new[found[1]]

    return re.sub(pattern, moved, text)


def _in_length(data: bytes, old: str, new: str) -> bytes:
    """As conda does: each C string that begins with the old path is shortened, and its rest is zeros."""
    was, now = os.fsencode(old), os.fsencode(new)
    if len(now) > len(was):
        raise ValueError(f"{new} is longer than {old}, and files of the environment have room for no more than that")
    pattern = re.compile(re.escape(was) + rb"(?=[/\0:;])([^\0]*)\0")
    # Behind the last zero no string ends, and each beginning of one would be followed to the end of the file.
    end = data.rfind(b"\0") + 1
    return pattern.sub(lambda m: (now + m[1].replace(was, now)).ljust(len(m[0]) - 1, b"\0") + b"\0", data[:end]) + data[end:]


def relocate(root: Path, final: str, manifest: Mapping[str, Any], moves: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Rewrite the files below `root` that name old places, and their lines in RECORD. Returns the sums of what has changed, by path."""
    changed = {}
    interpreter = manifest["python"]["interpreter"]
    names = {p for e in manifest["entries"] for d, _, p in [e[0].rpartition("/")] if d == "bin"}
    for path, how in manifest["places"].items():
        data = (root / path).read_bytes()
        new = rewritten(data, how, moves, final=final, interpreter=interpreter, names=names)
        if new != data:
            _replace(root / path, new)
        changed[path] = hashlib.sha256(new).hexdigest()
    for record in (e[0] for e in manifest["entries"] if e[0].endswith(".dist-info/RECORD") and e[1] == "file"):
        if (lines := _record(root, record, changed)) is not None:
            _replace(root / record, lines)
            changed[record] = hashlib.sha256(lines).hexdigest()
    return changed


def _record(root: Path, record: str, changed: Mapping[str, str]) -> bytes | None:
    site = record.split("/")[:-2]
    try:
        rows = list(csv.reader(io.StringIO((root / record).read_text("utf-8", "surrogateescape"))))
    except csv.Error:
        return None
    again = False
    for row in rows:
        path = os.path.normpath("/".join([*site, row[0]])) if len(row) == 3 else ""
        if path in changed and row[1].startswith("sha256="):
            data = (root / path).read_bytes()
            row[1:] = [f"sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()}", str(len(data))]
            again = True
    if not again:
        return None
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().encode("utf-8", "surrogateescape")


def _replace(path: Path, data: bytes) -> None:
    """By a new file: the old one may be shared with another environment."""
    mode = path.stat().st_mode & 0o777
    beside = path.with_name(f".{path.name}.unhang")
    beside.write_bytes(data)
    beside.chmod(mode)
    beside.replace(path)


def place(root: Path, final: str, encoded: bytes) -> None:
    """Make the files below `root` those of an environment at `final`."""
    manifest = json.loads(encoded)
    moves = [(old, f"{final}/{new}".rstrip("/")) for old, new in manifest["moves"]]
    _keep(root, final, encoded, relocate(root, final, manifest, moves))


def move(root: Path, final: str, encoded: bytes) -> None:
    """Repair an environment that was moved once more, to `final`, since it was placed."""
    placed = read_placed(root)
    changed = relocate(root, final, json.loads(encoded), [(placed["dest"], final)])
    _keep(root, final, encoded, {**placed["changed"], **changed})


def _keep(root: Path, final: str, encoded: bytes, changed: Mapping[str, str]) -> None:
    (root / OWN).mkdir(exist_ok=True)
    (root / MANIFEST).write_bytes(encoded)
    beside = root / f"{PLACED}.new"
    beside.write_text(json.dumps({"dest": final, "manifest": hashlib.sha256(encoded).hexdigest(), "changed": changed}))
    beside.replace(root / PLACED)


def read_placed(root: Path) -> dict[str, Any]:
    """`dest`, where it was placed; `manifest`, the sum of its manifest; `changed`, the sums of what was rewritten. Raises OSError, ValueError."""
    return parse_placed((root / PLACED).read_bytes())


def parse_placed(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except RecursionError as e:
        raise ValueError(f"{PLACED} is damaged") from e
    of = {"dest": str, "manifest": str, "changed": dict}
    if not isinstance(found, dict) or not all(isinstance(found.get(key), kind) for key, kind in of.items()) or "\0" in found["dest"]:
        raise ValueError(f"{PLACED} is damaged")
    return found


def differences(root: Path, entries: Sequence[Sequence[Any]], changed: Mapping[str, str]) -> list[tuple[str, str]]:
    """Paths below `root` that are not as the manifest says, each with what is wrong."""

    def wrong(entry: Sequence[Any]) -> tuple[str, str] | None:
        path, kind, mode, size, wanted, target = entry
        at = root / path
        try:
            if kind == "link":
                return None if os.readlink(at) == target else (path, f"leads to {os.readlink(at)}, not to {target}")
            seen = os.lstat(at)
            if kind == "dir" and not stat.S_ISDIR(seen.st_mode):
                return path, "is no directory"
            mode |= 0o700 if kind == "dir" else 0
            if kind != "hard" and seen.st_mode & 0o777 != mode:
                return path, f"has mode {seen.st_mode & 0o777:o}, not {mode:o}"
            if kind == "dir":
                return None
            # A pipe would be waited for.
            if not stat.S_ISREG(seen.st_mode):
                return path, "is no file"
            expected = changed.get(path) or (wanted if kind == "file" else changed.get(target) or sums[target])
            if kind == "file" and path not in changed and seen.st_size != size:
                return path, f"has {seen.st_size} bytes, not {size}"
            return None if sum_of(at) == expected else (path, "has another content")
        except OSError as e:
            return path, "is missing" if isinstance(e, FileNotFoundError) else str(e.strerror)

    sums = {e[0]: e[4] for e in entries if e[1] == "file"}
    with ThreadPoolExecutor(THREADS) as pool:
        return [found for batch in pool.map(lambda b: [*map(wrong, b)], batches(entries)) for found in batch if found is not None]


def is_placed(dest: Path, digest: str, entries: Sequence[Sequence[Any]]) -> bool:
    """Whether all of a manifest stands at `dest`, placed there and with its sums."""
    try:
        placed = read_placed(dest)
    except (OSError, ValueError):
        return False
    return (placed["manifest"], placed["dest"]) == (digest, str(dest)) and not differences(dest, entries, placed["changed"])


def batches(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """A task of a pool costs as much as a small file."""
    return (items[i : i + _BATCH] for i in range(0, len(items), _BATCH))


def sum_of(path: Path) -> str:
    summed = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            summed.update(chunk)
    return summed.hexdigest()


@contextlib.contextmanager
def beside(dest: Path) -> Iterator[Path]:
    """An empty directory beside `dest`, held by this process and removed at the end. What a process that was killed has left is put right first.

    Raises BlockingIOError if another process is at it.
    """
    new = dest.with_name(f".{dest.name}.unhang-new")
    while True:
        new.mkdir(exist_ok=True)
        # A link would have what it leads to emptied.
        held = os.open(new, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(held)
            raise
        # The one who had it may have put it in its place meanwhile.
        if _is_same(held, new):
            break
        os.close(held)
    try:
        before = dest.with_name(f".{dest.name}.unhang-before")
        if before.is_dir():
            # An exchange that was killed in the middle is finished or taken back.
            shutil.rmtree(before) if dest.exists() else before.rename(dest)
        for left in new.iterdir():
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
        yield new
    finally:
        if _is_same(held, new):
            shutil.rmtree(new, ignore_errors=True)
        os.close(held)


def _is_same(held: int, path: Path) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(held), os.lstat(path))
    return False


def restore(dest: Path) -> None:
    """Put right what a process that was killed has left in the place of `dest`. Raises as `beside` does."""
    if dest.with_name(f".{dest.name}.unhang-before").is_dir():
        with beside(dest):
            pass


def exchange(new: Path, dest: Path, *, replace: bool) -> None:
    """Put `new` in the place of `dest`. The old one stays beside it until that is done. Raises OSError if it is not empty, unless `replace`."""
    before = dest.with_name(f".{dest.name}.unhang-before")
    try:
        if replace:
            dest.rename(before)
        new.rename(dest)
    except BaseException:
        if before.exists() and not dest.exists():
            before.rename(dest)
        raise
    # Files of it that are open elsewhere stay on NFS; the next one tries again.
    shutil.rmtree(before, ignore_errors=True)


def make(root: Path, entries: Iterable[Sequence[Any]]) -> None:
    """Directories, links and hard links; the files are there already."""
    for path, kind, mode, _, _, target in entries:
        if kind == "dir":
            (root / path).mkdir(exist_ok=True)
            (root / path).chmod(mode | 0o700)
        elif kind == "link":
            os.symlink(target, root / path)
        elif kind == "hard":
            os.link(root / target, root / path)


def assemble(received: Path, dest: Path) -> None:
    """Make `dest` of the files that were received and of those that an older `dest` holds already. Raises ValueError if a sum is wrong."""
    encoded = gzip.decompress((received / f"{MANIFEST}.gz").read_bytes())
    manifest = json.loads(encoded)
    with beside(dest) as new:
        # By another host with the same file system.
        if is_placed(dest, hashlib.sha256(encoded).hexdigest(), manifest["entries"]):
            shutil.rmtree(received)
            return
        old: dict[tuple[str, int], str] = {}
        with contextlib.suppress(OSError, ValueError):
            changed = read_placed(dest)["changed"]
            # Two paths may have the same content and mode; any of them will do.
            old = {(e[4], e[2]): e[0] for e in json.loads((dest / MANIFEST).read_bytes())["entries"] if e[1] == "file" and e[0] not in changed}
        make(new, [e for e in manifest["entries"] if e[1] == "dir"])
        for path, kind, mode, _, wanted, _ in manifest["entries"]:
            if kind == "file":
                at = received / path
                if at.is_file() and not at.is_symlink():
                    os.link(at, new / path)
                elif (wanted, mode) in old:
                    os.link(dest / old[wanted, mode], new / path)
                if at.exists():
                    (new / path).chmod(mode)
        make(new, [e for e in manifest["entries"] if e[1] != "dir"])
        if wrong := differences(new, manifest["entries"], {}):
            raise ValueError(f"{len(wrong)} files are not what was sent: {wrong[0][0]} {wrong[0][1]}")
        place(new, str(dest), encoded)
        exchange(new, dest, replace=(dest / PLACED).exists())
    shutil.rmtree(received)


def here(dest: Path) -> None:
    """Finish what tar has unpacked at `dest`, on a host without unhang. Raises ValueError if a sum is wrong."""
    encoded = (dest / MANIFEST).read_bytes()
    entries = json.loads(encoded)["entries"]
    if not (dest / PLACED).exists():
        for path, kind, mode, *_ in entries:
            if kind in ("file", "dir"):
                # tar may have applied a umask.
                (dest / path).chmod(mode | (0o700 if kind == "dir" else 0))
        if wrong := differences(dest, entries, {}):
            raise ValueError(f"{len(wrong)} files are not what was packed: {wrong[0][0]} {wrong[0][1]}")
        place(dest, str(dest), encoded)


if __name__ == "__main__":
    try:
        if sys.argv[1] == "check":
            at = Path(sys.argv[2])
            told = differences(at, json.loads((at / MANIFEST).read_bytes())["entries"], read_placed(at)["changed"])
            sys.stdout.write(json.dumps(told))
        elif sys.argv[1] == "here":
            here(Path(sys.argv[2]).resolve())
        else:
            assemble(Path(sys.argv[1]), Path(sys.argv[2]))
    except BlockingIOError:
        sys.exit(BUSY)
    except (OSError, ValueError) as e:
        sys.stderr.write(f"{e}\n")
        sys.exit(1)
