"""Names that belong to programs which no list here covers: plugins, MPI, UCX. Nothing is said against those."""

from __future__ import annotations

import re

from unhang.facts import variables

# Network, tuner and profiler plugins read names of their own below NCCL_, as do builds of NCCL by others, nccl-tests and inspectors.
# IBEXT, SHARP, UCX, PLUGIN_P2P: nccl-rdma-sharp-plugins (HPC-X, NVIDIA/nccl#676); SPCX: HPC-X's for Spectrum-X; FASTRAK, GPUDIRECTTCPX, SHIMNET,
# TUNER_CONFIG_PATH: Google's; TUNER, PROFILE, PROFILER, INSPECTOR: those that come with NCCL's sources; CTRAN, COLLTRACE: Meta's NCCLX.
PLUGINS = re.compile(
    r"NCCL_(?:IBEXT|SHARP|UCX|PLUGIN|SPCX|GPUDIRECTTCPX|FASTRAK|TCPX|TCPXO|SHIMNET|GIB|TUNER(?!_PLUG)|PROFILE|PROFILER(?!_PLUG)|INSPECTOR|CTRAN|COLLTRACE|TESTS"
    r"|OFI|EFA|FALCON|RDMA_SHARP|DYNAMIC|NVLSTREE_TUNER|BOOTSTRAP_UID|CROSS_NIC_PLUGIN|KEY_STORE)_\w+|OFI_NCCL_\w+|NCCL_NET_GDR_PLUGIN"
)
# MSCCL, MSCCLPP: Microsoft's, also inside RCCL; HCCL: Ascend and Habana; CCL: oneCCL; MCCL: Moore Threads, MetaX; BKCL: Kunlun.
_FOREIGN = re.compile(
    r"(?:UCX|UCC|UCCL|FI|RDMAV|OMPI_MCA|OMPI|I_MPI|MV2|SHARP|PMIX|PMI|HCCL|CCL|RCCL|MSCCL|MSCCLPP|MCCL|BKCL)_\w+|NCCL_\w+_PLUGIN_\w+"
)


def foreign(name: str) -> bool:
    """Whether a program reads it that no list here covers."""
    return PLUGINS.fullmatch(name) is not None or _FOREIGN.fullmatch(name) is not None or _of_a_build(name)


def _of_a_build(name: str) -> bool:
    """NCCL_ROOT, NCCL_VERSION: build tools, module files and images set them; they do nothing when a program runs."""
    return variables.TOUCHES.fullmatch(name) is not None and not variables.touches(name)
