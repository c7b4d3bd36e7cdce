"""Names that belong to programs which no list here covers: plugins, MPI, UCX. Nothing is said against those."""

from __future__ import annotations

import re

from unhang.facts import variables

# Network and tuner plugins read names of their own below NCCL_; nccl-tests and inspectors, too.
PLUGINS = re.compile(
    r"NCCL_(?:GPUDIRECTTCPX|FASTRAK|TCPX|TCPXO|SHIMNET|SHARP|UCX|PLUGIN|TUNER_CONFIG|INSPECTOR|PROFILE|TESTS|OFI|EFA|FALCON|GIB|RDMA_SHARP|DYNAMIC|NVLSTREE_TUNER|BOOTSTRAP_UID"
    r"|CROSS_NIC_PLUGIN|KEY_STORE)_\w+|OFI_NCCL_\w+|NCCL_NET_GDR_PLUGIN"
)
_FOREIGN = re.compile(r"(?:UCX|UCC|FI|RDMAV|OMPI_MCA|OMPI|I_MPI|MV2|SHARP|PMIX|PMI|HCCL|CCL|RCCL)_\w+|NCCL_\w+_PLUGIN_\w+")


def foreign(name: str) -> bool:
    """Whether a program reads it that no list here covers."""
    return PLUGINS.fullmatch(name) is not None or _FOREIGN.fullmatch(name) is not None or _of_a_build(name)


def _of_a_build(name: str) -> bool:
    """NCCL_ROOT, NCCL_VERSION: build tools, module files and images set them; they do nothing when a program runs."""
    return variables.TOUCHES.fullmatch(name) is not None and not variables.touches(name)
