"""Hosts to try things on: `python -m tests.cluster 4` opens a shell on the login host of four, and ends them with it.

    python -m tests.cluster 4 COMMAND...   runs a command there instead
    ssh node2                              from that shell, or from one host to another

Hosts and switch can be entered from another terminal as well: it says how. `ip link set port2p0 down` in the switch pulls node2's cable.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.cluster.hosts import Cluster, lacking


def main() -> int:
    if len(sys.argv) < 2 or not sys.argv[1].isdecimal():
        print(__doc__, file=sys.stderr)
        return 2
    if (why := lacking()) is not None:
        print(f"no cluster can be made here: {why}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as directory, Cluster(int(sys.argv[1]), Path(directory)) as cluster:
        for name, command in (("switch", cluster.in_switch("bash")), *((node.name, node.inside("bash")) for node in cluster.nodes)):
            print(f"{name}: {shlex.join(command)}", file=sys.stderr)
        return subprocess.call(cluster.login.inside(*(sys.argv[2:] or ["bash"])))


if __name__ == "__main__":
    sys.exit(main())
