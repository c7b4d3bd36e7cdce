"""A part of a machine: its files, and the answers that only a live kernel gives. Parts are put together with "|", the later one on top."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from unhang.facts.host import Host, Ran, Space

GIB = 1024**3
MIB = 1024**2


@dataclass(frozen=True, kw_only=True)
class Part:
    """As the fixture `machine` takes files; one may be bytes. `programs` are files that can be run; `nvml` is for `Nvml`, its GPUs under "gpus"."""

    files: Mapping[str, str | bytes | None] = field(default_factory=dict)
    programs: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    spaces: Mapping[str, Space] = field(default_factory=dict)
    commands: Mapping[tuple[str, ...], Ran] = field(default_factory=dict)
    names_known: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    interfaces: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    clock: Mapping[str, Any] = field(default_factory=dict)
    nvml: Mapping[str, Any] = field(default_factory=dict)

    def __or__(self, other: Part) -> Part:
        return all_of(self, other)


def all_of(*parts: Part) -> Part:
    return Part(**{f.name: {name: value for part in parts for name, value in getattr(part, f.name).items()} for f in fields(Part)})


def lay_out(machine, whole: Part) -> Host:
    """`machine` is the fixture."""
    texts = {name: text for name, text in whole.files.items() if not isinstance(text, bytes)}
    host = machine({**texts, **whole.programs}, environ=whole.environ)
    for name, content in whole.files.items():
        if isinstance(content, bytes):
            host.path(name).parent.mkdir(parents=True, exist_ok=True)
            host.path(name).write_bytes(content)
    for name in whole.programs:
        host.path(name).chmod(0o755)
    for directory in ("/dev/shm", "/tmp"):
        if host.path(directory).is_dir():
            host.path(directory).chmod(0o1777)
    host.spaces, host.commands, host.names_known = dict(whole.spaces), dict(whole.commands), dict(whole.names_known)
    host.interfaces = dict(whole.interfaces)
    host.clock = (whole.clock["status"], whole.clock["max_error_s"]) if whole.clock else None
    if whole.nvml:
        from tests.hosts.nvml import Nvml

        system = dict(whole.nvml)
        host.nvml_answers = Nvml(*system.pop("gpus"), **system)
    return host


def space(total_bytes: int, free_bytes: int | None = None) -> Space:
    free = total_bytes if free_bytes is None else free_bytes
    return Space(total_bytes=total_bytes, free_bytes=free, inodes=total_bytes // 16384, free_inodes=free // 16384)


def ran(out: str = "", *, exitcode: int = 0, err: str = "") -> Ran:
    return Ran(exitcode=exitcode, out=out, err=err)
