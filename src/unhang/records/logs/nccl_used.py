"""What one process used, by its own log of NCCL (NCCL_DEBUG=INFO): transports, network, what it connected, algorithms where they are printed.

The wording is that of net.cc, p2p.cc, shm.cc, init.cc and enqueue.cc of NCCL 2.20 to 2.29.
"""

from __future__ import annotations

import re
from pathlib import Path

from unhang.records.logs.nccl import INTERFACE, TRANSPORT
from unhang.records.logs.signature import compiled

TRANSPORTS = "NCCL transports"
NETWORK = "NCCL network"
CONNECTED = "NCCL connected"
ALGORITHMS = "NCCL algorithms"

# Trees are connected when a collective first needs them (2.22 and later), before that always.
_CONNECTED = r"Connected (?:all )?(?P<what>rings|trees|NVLS[\w ]{0,20}?|[Cc]ollnet[\w ]{0,20}?)(?:,|\s*$| comm )"
# NCCL_DEBUG_SUBSYS=TUNING, by the first rank of each communicator.
_ALGORITHM = r"(?P<op>[A-Z]\w{1,30}): \d{1,20} Bytes -> Algo (?P<algorithm>\w{1,30}) proto (?P<protocol>\w{1,30})"
# Which of several adapters or links it is differs between ranks.
_NUMBER = re.compile(r"/\d+(?=/|$)")
_MAX_LINES = 1_000_000


def read(path: Path) -> dict[str, str]:
    """What the log says, by the names above; a name is missing if nothing of the kind was printed. Raises OSError."""
    found: dict[str, set[str]] = {}
    with path.open(errors="replace") as lines:
        for _, line in zip(range(_MAX_LINES), lines, strict=False):
            if "] via " in line and (hit := compiled(TRANSPORT.pattern).search(line)):
                found.setdefault(TRANSPORTS, set()).add(_NUMBER.sub("", hit["via"]))
            elif " : Using " in line and (hit := compiled(INTERFACE.pattern).search(line)) and hit["kind"] != "Bootstrap":
                found.setdefault(NETWORK, set()).add(f"{hit['kind'].removeprefix('NET/')} {hit['interface'].strip()}")
            elif "Connected " in line and (hit := compiled(_CONNECTED).search(line)):
                found.setdefault(CONNECTED, set()).add(hit["what"])
            elif " -> Algo " in line and (hit := compiled(_ALGORITHM).search(line)):
                found.setdefault(ALGORITHMS, set()).add(f"{hit['op']} {hit['algorithm']}/{hit['protocol']}")
    return {name: ", ".join(sorted(values)) for name, values in found.items()}
