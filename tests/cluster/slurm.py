"""Slurm on a cluster's hosts: slurmctld and munged on `login`, a slurmd on every other, all with files of their own."""

from __future__ import annotations

import subprocess
import time

from tests.cluster.hosts import Cluster

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "sinfo")
_READY_S = 60

# Without systemd and cgroups, and lost hosts noticed as soon as Slurm allows.
_CONF = """
ClusterName=tests
SlurmctldHost=login({login})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
SlurmdTimeout=15
SlurmctldTimeout=15
KillWait=5
InactiveLimit=0
PropagateResourceLimits=NONE
NodeName=node[1-{size}] NodeAddr={network}.[1-{size}] CPUs=2 RealMemory=2000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
# Only versions from 23.11 on can do without a plugin for cgroups.
_CGROUP_CONF = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"


class Slurm:
    """Started by making one; it ends with the cluster. Raises RuntimeError where a host does not join within a minute."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.folder = folder = cluster.directory / "slurm"
        (folder / "state").mkdir(parents=True)
        (folder / "munge.key").write_bytes(bytes(range(256)) * 4)
        (folder / "munge.key").chmod(0o600)
        network = cluster[1].address.rpartition(".")[0]
        (folder / "slurm.conf").write_text(_CONF.format(folder=folder, login=cluster.login.address, size=cluster.size, network=network))
        (folder / "cgroup.conf").write_text(_CGROUP_CONF)
        # It refuses files of a folder that others may write.
        munged = ["munged", "--force", f"--socket={folder}/munge.sock", f"--key-file={folder}/munge.key", f"--pid-file={folder}/munged.pid"]
        cluster.login.run([*munged, f"--log-file={folder}/munged.log", f"--seed-file={folder}/munge.seed", "--num-threads=4"])
        self.run("slurmctld")
        for node in cluster.nodes:
            (folder / node.name).mkdir()
            node.run(["env", f"SLURM_CONF={folder}/slurm.conf", "slurmd", "-N", node.name])
        until = time.monotonic() + _READY_S
        while self.run("sinfo", "-h", "-o", "%T %D").stdout.split() != ["idle", str(cluster.size)]:
            if time.monotonic() > until:
                raise RuntimeError("\n".join(log.read_text(errors="replace")[-2000:] for log in sorted(folder.glob("*.log"))))
            time.sleep(0.1)

    def inside(self, *command: str) -> list[str]:
        """The command line that runs a command where the user of the cluster sits."""
        return self.cluster.login.inside("env", f"SLURM_CONF={self.folder}/slurm.conf", *command)

    def run(self, *command: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.inside(*command), capture_output=True, text=True, timeout=timeout_s, check=True, stdin=subprocess.DEVNULL)
