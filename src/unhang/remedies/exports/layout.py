"""Who takes part: how many hosts and processes, where they meet, and what they run."""

from __future__ import annotations

import re
from dataclasses import dataclass

from unhang.errors import UnhangError

PORT = 29500
# What Kubernetes takes (RFC 1123) is taken by all the others.
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]+")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """`processes` are those of each host; `given_port` is None where nobody has named one.

    `command` is a script (.py), or -m and a module, with its arguments; () for the form's own example.
    Raises UnhangError for what no launcher can start.
    """

    nodes: int = 1
    processes: int = 2
    address: str = ""
    given_port: int | None = None
    command: tuple[str, ...] = ()
    name: str = "training"
    image: str = "pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime"
    gpus: bool = True

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.processes < 1:
            raise UnhangError(f"{self.nodes} hosts with {self.processes} processes each: both are at least 1")
        if not 1 <= self.port <= 65535:
            raise UnhangError(f"port {self.port}: it is one from 1 to 65535", hint=f"--master HOST:{PORT}")
        if self.address and not _HOST.fullmatch(self.address):
            raise UnhangError(f"{self.address!r} is no name or address of a host", hint=f"--master node0:{PORT}")
        if not _NAME.fullmatch(self.name):
            raise UnhangError(f"name {self.name!r}: small letters, digits and -, a letter first, at most 63", hint="--name training")
        if self.image != self.image.strip() or not self.image.isprintable() or not self.image or " " in self.image:
            raise UnhangError(f"{self.image!r} is no name of an image", hint="--image pytorch/pytorch:latest")
        if any("\0" in word for word in self.command):
            raise UnhangError("a word of the command holds a NUL, which no program can be given")
        # Bytes that are no UTF-8 come from the command line as halves of surrogates.
        if wrong := next((word for word in self.command if not _is_text(word)), None):
            raise UnhangError(
                f"{wrong!r} is no UTF-8, and the file would be", hint="unhang export FORM -- train.py: name it by another path, or a link"
            )

    @property
    def port(self) -> int:
        return PORT if self.given_port is None else self.given_port

    @property
    def world(self) -> int:
        return self.nodes * self.processes


def _is_text(word: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in word)


def master(text: str) -> tuple[str, int | None]:
    """HOST, HOST:PORT or [IPv6]:PORT; None for a port that is not there. Raises UnhangError."""
    found = re.fullmatch(r"(?:\[(?P<six>[^\]]+)\]|(?P<host>[^:]+|[^:]*:[^:]*:.*?))(?::(?P<port>\d{1,5}))?", text)
    if found is None:
        raise UnhangError(f"--master {text}: that is no host", hint=f"--master node0:{PORT}")
    if found["host"] and found["host"].count(":") > 1:
        return text, None
    return found["six"] or found["host"], int(found["port"]) if found["port"] else None
