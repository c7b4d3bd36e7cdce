"""What the environment says of the job that is to run here (its store, this host's number, how many hosts), and NCCL's settings."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping

from unhang.facts.host import Host
from unhang.model import frozen


@frozen
class Job:
    """None where nothing says so. `first` is whether the store is to be served from here (rank or host 0), `hosts` the most that there may be."""

    master_addr: str | None
    master_port: int | None
    first: bool | None
    hosts: int | None
    torchrun_worker: bool


@frozen
class Setting:
    """A setting and where it stands: "the environment", or the path of a file."""

    name: str
    value: str
    place: str


def of(environ: Mapping[str, str]) -> Job:
    """Reads the names of torchrun and its kin and of Slurm. WORLD_SIZE alone tells nothing: some platforms put the number of hosts there."""
    numbers = [environ[n] for n in ("RANK", "NODE_RANK", "GROUP_RANK", "PET_NODE_RANK") if n in environ]
    hosts = [_most(environ[n]) for n in ("NNODES", "PET_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES", "GROUP_WORLD_SIZE") if n in environ]
    world, local = _most(environ.get("WORLD_SIZE", "")), _most(environ.get("LOCAL_WORLD_SIZE", ""))
    if world and local:
        hosts.append(-(-world // local))
    counts = [h for h in hosts if h]
    return Job(
        master_addr=environ.get("MASTER_ADDR") or environ.get("PET_MASTER_ADDR") or None,
        master_port=port(environ.get("MASTER_PORT") or environ.get("PET_MASTER_PORT") or ""),
        first="0" in numbers if numbers else None,
        hosts=max(counts) if counts else None,
        torchrun_worker="TORCHELASTIC_RUN_ID" in environ,
    )


def setting(host: Host, name: str) -> Setting | None:
    """One of NCCL's settings. It takes from its files what the environment does not set; the user's file is read before the system's."""
    if name in host.environ:
        return Setting(name=name, value=host.environ[name], place="the environment")
    home = host.environ.get("HOME")
    try:
        own = conf_file(host) or (f"{home}/.nccl.conf" if home else None)
    except OSError:
        own = None
    for path in filter(None, (own, "/etc/nccl.conf")):
        for line in host.lines(path):
            said, _, value = line.partition("=")
            if said.strip() == name:
                return Setting(name=name, value=value.strip(), place=path)
    return None


def matches(name: str, asked: str, *, port: int | None = None) -> bool:
    """Whether NCCL takes an interface or adapter: a list of prefixes, exact names after "=", all others after "^"; "mlx5_0:1" names a port."""
    others = asked.startswith("^")
    asked = asked.removeprefix("^")
    exact = asked.startswith("=")
    entries = [e.partition(":") for e in asked.removeprefix("=").split(",") if e.partition(":")[0]]
    if not entries:
        return not others
    found = any(
        (name == said if exact else name.startswith(said)) and (not number or port is None or number.partition(":")[0] in ("", str(port)))
        for said, _, number in entries
    )
    return found != others


def port(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and 0 < int(text) < 65536 else None


def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return address == "localhost" or address.startswith("localhost.")


def _most(text: str) -> int | None:
    """The upper end of "4" or "1:4"."""
    text = text.rpartition(":")[2]
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def conf_file(host: Host) -> str | None:
    """The path, from the root, of the file of further settings that NCCL_CONF_FILE names; None where none is.

    Raises OSError where it is relative to a directory that is not known.
    """
    path = host.environ.get("NCCL_CONF_FILE")
    if not path or os.path.isabs(path):  # noqa: PTH117
        return path or None
    # NCCL opens it as it stands: it is relative to where each process is started.
    if host.is_live:
        return os.path.join(os.getcwd(), path)  # noqa: PTH109, PTH118
    raise OSError(f"NCCL_CONF_FILE={path} is relative to the directory that a process is started in, which is not known")
