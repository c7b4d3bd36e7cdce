"""What an outcome of the ladder holds for: this machine, these versions, this job.

Of the machine what decides which transports work; nothing that changes by itself from day to day, as addresses and free space do.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import unhang
from unhang import encoding, fsio
from unhang.facts import container, gpu, limits, network, shm, snapshot
from unhang.facts.host import Host
from unhang.remedies.trial import OF_COMMUNICATION
from unhang.settings.setting import Installed

# Options that say where something goes, and no two runs share: "--output_dir runs/7", "--run-name=b".
_OF_OUTPUT = frozenset(
    {
        *("output", "out", "output-dir", "out-dir", "output-path", "save-dir", "save-path", "log-dir", "logdir", "log-file", "logging-dir"),
        *("run-name", "run-id", "exp-name", "experiment-name", "checkpoint-dir", "ckpt-dir", "tensorboard-dir", "wandb-name", "seed"),
        *("master-port", "main-process-port"),
    }
)
_FILES = (".yaml", ".yml", ".json", ".toml")
_MOST_BYTES = 1 << 20
# Kinds that leave the host its name.
_OF_THE_HOST = ("bare", "slurm", "systemd", "wsl")


@dataclass(frozen=True, kw_only=True)
class Key:
    """`place` is of the machine and the job; `versions` of the software, in words that can be shown when they have changed."""

    place: str
    versions: str


def key(*, words: Sequence[str], world_size: int, cwd: Path, installed: Installed, environ: Mapping[str, str], host: Host | None = None) -> Key:
    seen = snapshot.take(host or Host(), only=("gpu", "network", "shm", "container", "limits"))
    place = encoding.encode([machine(seen), job(words, cwd), world_size, communication(environ)])
    return Key(place=hashlib.sha256(place).hexdigest(), versions=versions(installed, seen))


def machine(seen: snapshot.Snapshot) -> dict[str, object]:
    gpus, nets, shared = seen.get(gpu.SUBJECT), seen.get(network.SUBJECT), seen.get(shm.SUBJECT)
    box, bounds = seen.get(container.SUBJECT), seen.get(limits.SUBJECT)
    return {
        # A home directory is shared by hosts that look alike, and one of them may have the broken link. Containers get another name at each start.
        "host": platform.node() if box is None or box.kind in _OF_THE_HOST else None,
        "kernel": platform.release(),
        "gpus": [] if gpus is None else [[g.name, g.uuid] for g in gpus.gpus],
        "interfaces": [] if nets is None else sorted(i.name for i in nets.interfaces if i.up and not i.name.startswith("veth")),
        "shm_bytes": None if shared is None or shared.space is None else shared.space.total_bytes,
        "container": None if box is None else [box.kind, sorted(box.capabilities or ())],
        "limits": None if bounds is None else [bounds.memlock_bytes and bounds.memlock_bytes.hard, bounds.cpus_allowed],
    }


def job(words: Sequence[str], cwd: Path) -> list[str]:
    """The command without what says only where its output goes."""
    found: list[str] = [str(cwd)]
    skips = False
    for word in words:
        if skips and not word.startswith("-"):
            skips = False
            continue
        name, given, value = word.partition("=")
        skips = word.startswith("-") and _is_of_output(name) and not given
        if not (word.startswith("-") and _is_of_output(name)):
            found.append(word)
            if word.endswith(_FILES) and (said := _content(cwd / (value if word.startswith("-") else word))) is not None:
                found.append(said)
    return found


def _content(path: Path) -> str | None:
    """Of a configuration: the same name may stand for another job tomorrow."""
    try:
        return hashlib.sha256(fsio.bounded_read(path, _MOST_BYTES)).hexdigest()
    except OSError:
        return None


def _is_of_output(option: str) -> bool:
    name = option.lstrip("-").replace("_", "-").lower()
    return name in _OF_OUTPUT


def communication(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """What the user's own environment says of communication: with other values it is another situation."""
    return sorted((name, value) for name, value in environ.items() if OF_COMMUNICATION.match(name))


def versions(installed: Installed, seen: snapshot.Snapshot) -> str:
    gpus = seen.get(gpu.SUBJECT)
    parts = {
        "torch": ".".join(map(str, installed.torch)) if installed.torch else None,
        "NCCL": ".".join(map(str, installed.nccl)) if installed.nccl else None,
        "driver": gpus.driver if gpus is not None else None,
        **dict(sorted(installed.packages.items())),
        "unhang": unhang.__version__,
    }
    return ", ".join(f"{name} {version}" for name, version in parts.items() if version)
