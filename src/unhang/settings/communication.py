"""Settings of NCCL and Gloo: what the ranks talk over.

NCCL reads its switches as numbers (`true` is 0), and a list of interfaces or adapters as prefixes, where `=` in front makes names of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from unhang.i18n import Text, msg
from unhang.settings import support
from unhang.settings.setting import Installed, Spell, Spelled, Value

# Read by the hook in the training's processes, see attach/protocol.
BACKEND = "UNHANG_BACKEND"
HOOK = "unhang's hook"
# Of `interface`: none is named, whatever the environment says.
AUTO = "auto"


def _exact(value: Value) -> str:
    # Without = NCCL takes what it is given for the beginning of names: mlx5_1 would be mlx5_10 as well, and ^mlx5_1 without it.
    name = str(value)
    return f"^={name.removeprefix('^').removeprefix('=')}" if name.startswith("^") else f"={name}"


def _backend(value: Value, installed: Installed, launcher: str) -> Spelled | Text:
    if installed.torch is None:
        return support.no_torch(installed)
    if value == "nccl" and installed.nccl is None:
        return support.NO_NCCL
    if value == "nccl" and not installed.gpus:
        return support.NO_GPU
    if value == "nccl":
        return msg("only gloo is put in place of what the script asks for; for NCCL leave backend out")
    return Spelled(env={BACKEND: str(value)}, read_by=HOOK)


def _interface(value: Value, installed: Installed, launcher: str) -> Spelled | Text:
    env = {}
    readers = {}
    if support.reads(installed, "nccl", "NCCL_SOCKET_IFNAME"):
        # Neither NCCL nor torch takes an empty one for a name, and /etc/nccl.conf does not overrule it.
        env["NCCL_SOCKET_IFNAME"] = "" if value == AUTO else _exact(value)
        readers["NCCL_SOCKET_IFNAME"] = support.said(installed, "nccl")
    if support.reads(installed, "torch", "GLOO_SOCKET_IFNAME"):
        # Gloo takes exact names, and no mark in front of them.
        env["GLOO_SOCKET_IFNAME"] = "" if value == AUTO else str(value)
        readers["GLOO_SOCKET_IFNAME"] = f"Gloo of {support.said(installed, 'torch')}"
    return Spelled.by_several(readers, env=env) if env else support.no_torch(installed)


def _hca(value: Value, installed: Installed, launcher: str) -> Spelled | Text:
    return support.by_variable(installed, "nccl", "NCCL_IB_HCA", _exact(value))


SPELLINGS: Mapping[str, Spell] = {"backend": _backend, "hca": _hca, "interface": _interface}
