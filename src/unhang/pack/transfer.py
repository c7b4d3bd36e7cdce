"""Sends an environment to hosts over OpenSSH: only what differs from what a host has, in pieces that need not be sent again, and verified there.

A host needs sshd, sh, tar, and as much glibc as the environment: what is done there is done by the Python that travels.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import posixpath
import shlex
import subprocess
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, starmap
from pathlib import Path
from typing import Any, BinaryIO, Literal

from unhang.errors import UnhangError
from unhang.i18n import Text, msg
from unhang.model import Area, HostFinding, frozen
from unhang.pack import archive, import_checks, relocate, verify
from unhang.pack import manifest as manifests
from unhang.pack.files import Item
from unhang.pack.load import Target, preflight
from unhang.pack.packer import Stock, cpu_flags
from unhang.pack.relocate import PYTHON

SCHEMA = "unhang/pack-send/1"
# What is sent again at most after an interruption.
_PIECE_BYTES = 32 * 1024**2
_ENDS = f"{relocate.OWN}/ends"
_MARK = "unhang-pack-part"
_CONNECT = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=15")
_TAKEN = 17
# Everything in one question: each connection takes a while.
_STATE = f"""
part() {{ printf '\\n{_MARK}\\n'; }}
uname -m; part; getconf GNU_LIBC_VERSION; part
p=$parent; while [ ! -d "$p" ]; do p=$(dirname -- "$p"); done; df -Pk "$p" | tail -n 1; part; df -Pi "$p" | tail -n 1; part
cat /proc/driver/nvidia/version 2>/dev/null; part; grep -m1 -E '^(flags|Features)' /proc/cpuinfo; part
ls "$incoming/{_ENDS}" 2>/dev/null; part; cat "$dest/{relocate.PLACED}" 2>/dev/null; part
gzip -c "$dest/{relocate.MANIFEST}" 2>/dev/null || cat "$dest/{relocate.MANIFEST}" 2>/dev/null
[ -L "$dest" ] && exit {_TAKEN}
[ -e "$dest" ] && [ ! -e "$dest/{relocate.PLACED}" ] && exit {_TAKEN}; exit 0
"""
_BUSY_S = 600.0
_LOOK_S = 1.0


@frozen
class Sent:
    """What became of one host. `sent_bytes` are those of the tar streams; `findings` also say why a host was refused."""

    host: str
    state: Literal["sent", "unchanged", "refused", "failed"]
    sent_bytes: int
    took_s: float
    why: str | None = None
    areas: tuple[Area, ...] = ()
    findings: tuple[HostFinding, ...] = ()

    @property
    def is_good(self) -> bool:
        return self.state in ("sent", "unchanged") and not any(f.severity == "error" for f in self.findings)


class _Failed(Exception):
    pass


def send(
    taken: Stock, hosts: Sequence[str], dest: str, *, options: Sequence[str], limit_s: float, at_once: int, tell: Callable[[str, Text], None]
) -> tuple[Sent, ...]:
    """Bring an environment to `dest` on each host. `options` are those of ssh. Never raises for what goes wrong on a host."""
    encoded = manifests.encode(taken.manifest)
    running: set[subprocess.Popen[bytes]] = set()
    stopped = threading.Event()
    with ThreadPoolExecutor(at_once) as pool:
        sends = [
            _Send(taken=taken, encoded=encoded, host=host, dest=dest, options=options, limit_s=limit_s, tell=tell, running=running, stopped=stopped)
            for host in hosts
        ]
        try:
            return tuple(pool.map(_Send.run, sends))
        finally:
            # Interrupted: what the hosts have received stays there, and is not sent again.
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for process in tuple(running):
                process.kill()


@dataclass(kw_only=True)
class _Send:
    taken: Stock
    encoded: bytes
    host: str
    dest: str
    options: Sequence[str]
    limit_s: float
    tell: Callable[[str, Text], None]
    running: set[subprocess.Popen[bytes]]
    stopped: threading.Event
    sent_bytes: int = 0

    def __post_init__(self) -> None:
        self.manifest, self.digest = self.taken.manifest, manifests.digest(self.encoded)
        parent, name = posixpath.split(self.dest)
        # Hosts may share the file system.
        self.incoming = f"{parent}/.{name}.unhang-from-{hashlib.sha256(self.host.encode()).hexdigest()[:8]}"

    def run(self) -> Sent:
        began = time.monotonic()
        areas: tuple[Area, ...] = ()
        why = None
        state: Literal["sent", "unchanged", "refused", "failed"]
        findings: tuple[HostFinding, ...]
        try:
            state, findings = self._bring()
            if state in ("sent", "unchanged"):
                told = self._ask()
                files = verify.files(self.dest, self.manifest, self._differences(), told)
                found = [files, *verify.interpret(told, self.manifest)]
                areas, findings = tuple(a for a, _ in found), (*findings, *(f for _, fs in found for f in fs))
        except (_Failed, UnhangError, OSError) as e:
            state, findings, why = "failed", (), str(e)
        return Sent(
            host=self.host,
            state=state,
            sent_bytes=self.sent_bytes,
            took_s=round(time.monotonic() - began, 3),
            why=why,
            areas=areas,
            findings=findings,
        )

    def _bring(self) -> tuple[Literal["sent", "unchanged", "refused"], tuple[HostFinding, ...]]:
        target, received, placed, has = self._state()
        if placed.get("manifest") == self.digest and placed.get("dest") == self.dest:
            if not (wrong := {path for path, _ in self._differences()}):
                return "unchanged", ()
            has = {content: path for content, path in has.items() if path not in wrong}
        needed = self._needed(has)
        findings = tuple(preflight(self.manifest, self.dest, target, needs_bytes=sum(i.size for i in needed)))
        if any(f.severity == "error" for f in findings):
            return "refused", findings
        self._pieces(needed, received)
        try:
            self._assemble()
        except _Failed as e:
            # Files there were changed since they were placed, or an older sending left others.
            self.tell(self.host, msg("{e}: everything is sent anew", e=e))
            self._ssh(f"rm -rf {shlex.quote(self.incoming)}")
            self._pieces(self._needed({}), frozenset())
            self._assemble()
        return "sent", findings

    def _state(self) -> tuple[Target, frozenset[str], Mapping[str, Any], Mapping[tuple[str, int], str]]:
        """The host, which pieces it has received already, and what stands at the place: how it was placed, and its paths by sum and mode."""
        names = {"dest": self.dest, "parent": posixpath.dirname(self.dest), "incoming": self.incoming}
        code, out, err = self._ssh_code("".join(f"{k}={shlex.quote(v)}; " for k, v in names.items()) + _STATE)
        if code == _TAKEN:
            raise _Failed(f"{self.dest} exists there, and is a link or was not placed by unhang pack; choose another with --to")
        *parts, old = out.split(f"\n{_MARK}\n".encode(), 8)
        if code or len(parts) != 8:
            raise _Failed(err or f"the host does not answer as one with sh does (exit code {code})")
        machine, glibc, space, inodes, driver, flags, ends, _ = (p.decode(errors="replace").strip() for p in parts)
        # Size, used, free; without a size, inodes are not counted.
        columns = (line.split() for line in (space, inodes))
        free, free_inodes = (int(c[3]) if len(c) > 4 and c[3].isdigit() and c[1] != "0" else None for c in columns)
        version = next((w for w in driver.partition("\n")[0].split() if w[0].isdigit() and "." in w), None)
        target = Target(
            machine=machine,
            glibc=glibc.rpartition(" ")[2] or None,
            free_bytes=(free or 0) * 1024,
            free_inodes=free_inodes,
            driver=version,
            cpu_flags=cpu_flags(flags),
        )
        told: dict[str, Any] = {}
        has: dict[tuple[str, int], str] = {}
        with contextlib.suppress(ValueError, OSError, UnhangError, EOFError, zlib.error):
            told = relocate.parse_placed(parts[-1])
            there = manifests.decode(gzip.decompress(old) if old[:2] == b"\x1f\x8b" else old, name=self.host)
            has = {(e.sum, e.mode): e.path for e in there.entries if e.kind == "file" and e.path not in told["changed"]}
        return target, frozenset(ends.split()), told, has

    def _needed(self, has: Mapping[tuple[str, int], str]) -> list[Item]:
        files = [(i, (e.sum, e.mode)) for i, e in zip(self.taken.items, self.manifest.entries, strict=True) if i.kind == "file"]
        # The interpreter starts before the files of two places are put together: all of it comes from one.
        own = f"{PYTHON}/" if self.manifest.python.interpreter is not None else ""
        whole = any(content not in has for i, content in files if i.path.startswith(own)) if own else not has
        return [i for i, content in files if content not in has or (whole and i.path.startswith(own))]

    def _pieces(self, needed: Sequence[Item], received: frozenset[str]) -> None:
        sums = {e.path: e.sum for e in self.manifest.entries}
        pieces: list[list[Item]] = [[]]
        for item in needed:
            if pieces[-1] and sum(i.size for i in pieces[-1]) + item.size > _PIECE_BYTES:
                pieces.append([])
            pieces[-1].append(item)
        for n, piece in enumerate(pieces, 1):
            name = hashlib.sha256("".join(f"{i.path} {sums[i.path]}\n" for i in piece).encode()).hexdigest()
            if name not in received:
                self._piece(piece, {f"{_ENDS}/{name}": b""})
            self.tell(self.host, msg("piece {n} of {pieces}", n=n, pieces=len(pieces)))
        scripts = {relocate.SCRIPT: Path(relocate.__file__).read_bytes()}
        self._piece((), {**scripts, f"{relocate.MANIFEST}.gz": gzip.compress(self.encoded, 6, mtime=0), f"{_ENDS}/{self.digest}": b""})

    def _piece(self, items: Sequence[Item], own: Mapping[str, bytes]) -> None:
        """A tar stream that ends in a file of its own: one that was cut short between two files looks complete to tar."""
        incoming, last = shlex.quote(self.incoming), shlex.quote(list(own)[-1])
        command = f"mkdir -p {incoming} && cd {incoming} && rm -f {last} && tar -xf - && [ -f {last} ]"
        with self._started(command) as (process, errors):
            assert process.stdin is not None
            stream = chain(archive.members(items), starmap(archive.of_bytes, own.items()), (archive.END,))
            with contextlib.suppress(BrokenPipeError):
                for data in stream:
                    process.stdin.write(data)
                    self.sent_bytes += len(data)
            process.communicate()
            said = _last(errors)
        if process.returncode:
            raise _Failed(said or f"ssh ended with {process.returncode} while files were sent")

    def _assemble(self) -> None:
        interpreter = self.manifest.python.interpreter or self._own_python()
        there, here = (shlex.quote(f"{p}/{interpreter}") for p in (self.incoming, self.dest))
        script = shlex.quote(f"{self.incoming}/{relocate.SCRIPT}")
        run = f"{shlex.quote(self.incoming)} {shlex.quote(self.dest)}"
        command = f'p={there}; [ -f "$p" ] || p={here}; exec "$p" -I {script} {run}'
        until = time.monotonic() + _BUSY_S
        while (ended := self._ssh_code(command))[0] == relocate.BUSY and time.monotonic() < until:
            time.sleep(_LOOK_S)
        if ended[0]:
            raise _Failed(ended[2] or f"ssh ended with {ended[0]}")

    def _own_python(self) -> str:
        links = {e.path: e.target for e in self.manifest.entries if e.kind == "link"}
        path = "bin/python"
        while path in links:
            path = posixpath.normpath(posixpath.join(posixpath.dirname(path), links.pop(path)))
        return path

    def _differences(self) -> list[tuple[str, str]]:
        script = Path(relocate.__file__).read_bytes()
        code, out, err = self._ssh_code(f"exec {shlex.quote(f'{self.dest}/bin/python')} -I - check {shlex.quote(self.dest)}", script)
        try:
            return [(path, why) for path, why in json.loads(out)]
        except ValueError:
            return [("bin/python", f"does not start: {err or code}")]

    def _ask(self) -> Mapping[str, Any] | str:
        """What the Python there finds out of its environment, or why it does not."""
        script = Path(import_checks.__file__).read_bytes()
        code, out, err = self._ssh_code(f"exec {shlex.quote(f'{self.dest}/bin/python')} -I - {self.limit_s}", script)
        try:
            found: dict[str, Any] = json.loads(out.decode(errors="replace").strip().splitlines()[-1])
        except (ValueError, IndexError):
            return err or f"exit code {code}"
        return found

    def _ssh(self, command: str) -> None:
        code, _, err = self._ssh_code(command)
        if code:
            raise _Failed(err or f"ssh ended with {code}")

    def _ssh_code(self, command: str, given: bytes = b"") -> tuple[int, bytes, str]:
        with self._started(command) as (process, errors):
            out, _ = process.communicate(given)
            return process.returncode, out, _last(errors)

    @contextlib.contextmanager
    def _started(self, command: str) -> Iterator[tuple[subprocess.Popen[bytes], BinaryIO]]:
        if self.stopped.is_set():
            raise _Failed("interrupted")
        # Whatever the user's shell there is.
        argv = ["ssh", *_CONNECT, *self.options, "--", self.host, f"sh -c {shlex.quote(command)}"]
        # A pipe that nobody reads while files are sent would fill: tar has a line for each if the disk is full.
        with tempfile.TemporaryFile() as errors:
            try:
                process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
            except FileNotFoundError as e:
                raise _Failed("there is no ssh on this host; install OpenSSH") from e
            self.running.add(process)
            with process:
                try:
                    yield process, errors
                finally:
                    self.running.discard(process)


def _last(errors: BinaryIO) -> str:
    errors.seek(max(0, errors.seek(0, os.SEEK_END) - 400))
    return " ".join(errors.read().decode(errors="replace").split())
