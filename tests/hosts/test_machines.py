"""Whole machines, laid out as kernel and driver write them, judged end to end: every finding is named, and a machine without faults has none."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import typer
from tests.chinese import english, in_chinese
from tests.hosts import pci
from tests.hosts.containers import docker, docker_v1, given, pod, wsl2
from tests.hosts.gpus import fabric_manager, nvlink_gpus, one_gpu, pcie_gpus, torch
from tests.hosts.linux import group, kernel_log, looks, nodes
from tests.hosts.machines import cloud_vm, laptop, server
from tests.hosts.network import infiniband, roce
from tests.hosts.part import GIB, MIB, Part, all_of, lay_out
from tests.tables import for_each
from typer.testing import CliRunner

from unhang import encoding
from unhang.cli import doctor as cli
from unhang.diagnosis import doctor
from unhang.facts import snapshot, snapshot_file

NO_KERNEL_LOG = ("no source of the kernel log",)
NO_FIREWALL_TOOLS = {"firewall": ("firewall rules (neither nft nor iptables-save is installed)",)}
# A container has no /dev/kmsg, and its image neither journalctl nor dmesg, nft nor iptables.
INSIDE = NO_FIREWALL_TOOLS | {"kernel": NO_KERNEL_LOG}
ACS_HIDDEN = {"pcie": ("access control (ACS) of the PCIe bridges between GPUs and NICs (needs root)",)}
NO_GPU, NO_RDMA, NO_TORCH = {"gpu"}, {"infiniband"}, {"libraries"}
BARE = NO_GPU | NO_RDMA | NO_TORCH


def dgx(*parts: Part, manages: bool = True, **more) -> Part:
    """Eight H100s at NVSwitches; `rails` are an adapter for each."""
    return all_of(server(), torch(), fabric_manager(running=manages), nvlink_gpus(8, **more), *parts)


def pcie_server(number: int, *parts: Part, **more) -> Part:
    return all_of(server(), torch(), pcie_gpus(number, **more), *parts)


def adapter(make, **more) -> Part:
    """A server with one adapter."""
    port, way = pci.slot(0xE0, node=1)
    return server() | port | make(0, way, node=1, **more)


def second_of_two_hosts() -> Part:
    """In a job of Slurm, which sets up groups of its own."""
    job = "/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0"
    return group(job, memory=512 * GIB, used=2 * GIB) | Part(
        files={"/proc/self/cgroup": f"0::{job}\n"},
        environ={
            "SLURM_JOB_ID": "4711",
            "SLURM_JOB_NUM_NODES": "2",
            "NODE_RANK": "1",
            "MASTER_ADDR": "node6",
            "MASTER_PORT": "29500",
        },
        names_known={"node6": ("10.0.0.6",)},
    )


REDIRECTED = "send their traffic around through the processor (ACS request redirect): 0000:12:00.0, 0000:12:01.0, 0000:2a:00.0, 0000:2a:01.0"
# Half of its lanes is all that a laptop's GPU is wired for, and all that some clouds show.
DISCRETE = "pci0000:00/0000:00:01.0/0000:01:00.0"
SMALL = {"lanes": 8, "memory_gib": 24, "nvmlDeviceGetCudaComputeCapability": (8, 6)}
DESKTOP = {"nvmlDeviceGetGraphicsRunningProcesses": [SimpleNamespace(pid=2101, usedGpuMemory=4 * MIB)]}
XID_79 = (
    "NVRM: GPU at PCI:0000:2b:00: GPU-0000002b-0000-0000-0000-000000000000",
    "NVRM: Xid (PCI:0000:2b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    "NVRM: GPU 0000:2b:00.0: GPU has fallen off the bus.",
)


def examined(machine, whole: Part):
    """What `unhang doctor` says of it, through a snapshot that was saved."""
    taken = snapshot.take(lay_out(machine, whole))
    seen = doctor.examine(snapshot_file.decode(snapshot_file.encode(taken), name="itself"))
    assert [text for text in in_chinese(seen) if english(text)] == []
    return seen


def told(seen) -> list[tuple[str, str, str, str]]:
    assert seen.not_examined == ()
    assert all(f.leads_to and f.remedies for f in seen.findings)
    return [(f.cause, f.area, f.severity, f.says) for f in seen.findings]


def not_seen(seen) -> dict[str, tuple[str, ...]]:
    """What could not be looked at, by area."""
    why = {a.id: a.unread or (a.summary,) for a in seen.areas if a.state == "unknown" or a.unread}
    return why | {"kernel": NO_KERNEL_LOG} if why.get("kernel", ("",))[0].startswith("the kernel log may not be read: /dev/kmsg: No such") else why


def absent(seen) -> set[str]:
    # Nobody has recorded a baseline on any of them.
    return {a.id for a in seen.areas if a.state == "absent"} - {"speed"}


@for_each(
    ("whole", "unread", "without"),
    [
        pytest.param(server(), {}, BARE, id="server"),
        pytest.param(laptop(), {"firewall": ("firewall rules (needs root)",)}, BARE, id="laptop"),
        pytest.param(cloud_vm(), {}, BARE, id="cloud-vm"),
        pytest.param(
            all_of(laptop(), torch(), one_gpu(DISCRETE, "NVIDIA GeForce GTX 1650", kind=pci.VGA, device="0x1f91", **SMALL, **DESKTOP)),
            {"firewall": ("firewall rules (needs root)",)},
            NO_RDMA,
            id="laptop-with-a-gpu",
        ),
        pytest.param(
            all_of(cloud_vm(), torch(), one_gpu("pci0000:00/0000:00:1e.0", "NVIDIA A10G", device="0x2237", **SMALL)),
            {},
            NO_RDMA,
            id="cloud-vm-with-a-gpu",
        ),
        pytest.param(dgx(), {}, NO_RDMA, id="nvlink"),
        pytest.param(dgx(second_of_two_hosts(), rails=infiniband), {}, set(), id="nvlink-infiniband-second-of-two-hosts"),
        pytest.param(dgx(rails=roce), {}, set(), id="nvlink-roce"),
        pytest.param(all_of(cloud_vm(), torch(), nvlink_gpus(8, switches=0)), {}, NO_RDMA, id="nvlink-in-a-cloud-vm"),
        pytest.param(pcie_server(4), {}, NO_RDMA, id="pcie-4"),
        pytest.param(pcie_server(8), {}, NO_RDMA, id="pcie-8"),
        pytest.param(adapter(infiniband), {}, NO_GPU | NO_TORCH, id="infiniband"),
        pytest.param(adapter(roce), {}, NO_GPU | NO_TORCH, id="roce"),
        pytest.param(docker(shm_bytes=16 * GIB), INSIDE, BARE | {"pcie"}, id="docker"),
        pytest.param(docker_v1(memory=64 * GIB, used=GIB, cpus=16), INSIDE, BARE | {"pcie"}, id="docker-cgroup-v1"),
        pytest.param(all_of(docker(shm_bytes=16 * GIB), torch(), given(pcie_gpus(4), 4)), INSIDE | ACS_HIDDEN, NO_RDMA, id="docker-gpus"),
        pytest.param(
            all_of(pod(memory=256 * GIB, used=20 * GIB, cache=9 * GIB, cpus=32, shm_bytes=16 * GIB), torch(), given(nvlink_gpus(8), 2)),
            INSIDE,
            NO_RDMA,
            id="pod-two-of-eight-gpus",
        ),
    ],
)
def test_a_sane_machine_is_clean(machine, whole, unread, without):
    seen = examined(machine, whole)
    assert told(seen) == []
    assert not_seen(seen) == unread
    assert absent(seen) == without


# Each with all that is found, what could not be looked at, and what one remedy says to run or to set.
@for_each(
    ("whole", "findings", "unread", "id", "does"),
    [
        pytest.param(
            dgx(manages=False, registered=False),
            [
                (
                    "nvlink-nvswitch-fabric",
                    "gpu",
                    "error",
                    "GPUs 0 to 7: not registered with the NVLink fabric (in-progress); the fabric manager does not run",
                )
            ],
            {},
            "start-the-manager",
            "sudo systemctl enable --now nvidia-fabricmanager; systemctl status nvidia-fabricmanager --no-pager",
            id="fabric-manager-does-not-run",
        ),
        pytest.param(
            dgx(down={3: (4,)}),
            [("nvlink-nvswitch-fabric", "gpu", "warning", "GPU 3 (0000:5b:00.0): 17 NVLinks are up, 18 on its neighbours")],
            {},
            "check-links",
            "nvidia-smi nvlink --status; nvidia-smi nvlink --errorcounters; nvidia-smi topo -m; dmesg -T | grep -E 'SXid|Xid'",
            id="nvlink-down",
        ),
        pytest.param(
            dgx(kernel_log(*XID_79), lost={1}),
            [("gpu-hardware", "gpu", "error", "GPU 1 (0000:2b:00.0) cannot be reached: GPU is lost")],
            {"gpu": ("GPU 1: GPU is lost",)},
            "check-the-bus",
            "dmesg -T | grep -E 'AER|pcieport|Xid|NVRM'; nvidia-smi -q -d PCIE,TEMPERATURE,POWER",
            id="gpu-fell-off-the-bus",
        ),
        pytest.param(
            pcie_server(4, kernel_log(*XID_79)),
            [
                (
                    "gpu-hardware",
                    "kernel",
                    "warning",
                    "GPU 0000:2b:00.0: Xid 79: the GPU has fallen off the bus (60 s ago)",
                )
            ],
            {},
            "check-the-bus",
            "dmesg -T | grep -E 'AER|pcieport|Xid|NVRM'; nvidia-smi -q -d PCIE,TEMPERATURE,POWER",
            id="gpu-is-back",
        ),
        pytest.param(
            dgx(acs=True, rails=infiniband),
            [
                (
                    "p2p-broken",
                    "pcie",
                    "warning",
                    f"16 PCIe bridges between GPUs and NICs {REDIRECTED} and more",
                )
            ],
            {},
            "iommu-and-acs",
            f"for bridge in {' '.join(f'0000:{0x12 + 0x18 * i:02x}:0{n}.0' for i in range(8) for n in (0, 1))}; "
            "do sudo setpci -s $bridge ECAP_ACS+0x6.w=0000; done",
            id="nvlink-acs-before-the-nics",
        ),
        pytest.param(
            pcie_server(4, acs=True),
            [
                (
                    "p2p-broken",
                    "pcie",
                    "warning",
                    f"4 PCIe bridges between GPUs {REDIRECTED}",
                )
            ],
            {},
            "iommu-and-acs",
            "for bridge in 0000:12:00.0 0000:12:01.0 0000:2a:00.0 0000:2a:01.0; do sudo setpci -s $bridge ECAP_ACS+0x6.w=0000; done",
            id="pcie-acs",
        ),
        pytest.param(
            pcie_server(8, iommu="DMA-FQ"),
            [("p2p-broken", "pcie", "warning", "GPUs 0 to 7 copy to each other over PCIe, and the IOMMU translates addresses")],
            {},
            "host-memory",
            {"NCCL_P2P_DISABLE": "1"},
            id="pcie-iommu-translates",
        ),
        pytest.param(
            pcie_server(4, lanes={2: 8}),
            [("gpu-hardware", "gpu", "warning", "GPU 2 (0000:2b:00.0) runs on 8 of 16 PCIe lanes")],
            {},
            "check-the-bus",
            "dmesg -T | grep -E 'AER|pcieport|Xid|NVRM'; nvidia-smi -q -d PCIE,TEMPERATURE,POWER",
            id="pcie-lanes",
        ),
        pytest.param(
            pcie_server(4, across_sockets=False),
            [
                (
                    "p2p-broken",
                    "gpu",
                    "note",
                    "4 pairs of GPUs (0 and 2, 0 and 3, 1 and 2 and more) cannot read each other's memory: topology not supported",
                )
            ],
            {},
            "host-memory",
            {"NCCL_P2P_DISABLE": "1"},
            id="pcie-no-peers-across-sockets",
        ),
        pytest.param(
            pcie_server(4, nodes([("0-63", 1024), ("64-127", 0)]), looks(memory_nodes="0")),
            [("cumem-host-numa", "numa", "error", "2 GPUs of 4 at NUMA node 1, which has no memory")],
            {},
            "cumem-host-off",
            {"NCCL_CUMEM_HOST_ENABLE": "0"},
            id="memoryless-node",
        ),
        pytest.param(
            all_of(docker(), torch(), given(nvlink_gpus(2), 2)),
            [("shm-exhausted", "shm", "error", "/dev/shm holds 64 MiB in all, what a container gets unless somebody asks for more")],
            INSIDE,
            "docker-shm-size",
            "docker run --shm-size=8g IMAGE",
            id="docker-small-shm",
        ),
        pytest.param(
            docker_v1(memory=4 * GIB, used=4 * GIB - 64 * MIB, oom_kills=2),
            [
                ("host-oom-or-killed", "memory", "error", "64 MiB of host memory are left: the control group may use 4 GiB, /dev/shm included"),
                ("host-oom-or-killed", "memory", "warning", "the OOM killer has ended 2 processes of this control group"),
            ],
            INSIDE,
            "find-the-killer",
            "dmesg -T | grep -iE 'killed process|oom-kill'; grep oom_kill /sys/fs/cgroup/memory/memory.*",
            id="docker-cgroup-v1-out-of-memory",
        ),
        pytest.param(
            all_of(
                pod(memory=64 * GIB, used=63 * GIB, cache=GIB, oom_kills=3, cpus=1.5, pids=1024, tasks=1000, shm_bytes=16 * GIB),
                torch(),
                given(nvlink_gpus(8), 2),
            ),
            [
                ("limits", "limits", "error", "the control group has 1000 of 1024 processes and threads: 24 are left"),
                ("limits", "limits", "warning", "what is started here has 1.5 of 128 CPUs, by the quota of the control group"),
                ("host-oom-or-killed", "memory", "warning", "2 GiB of host memory are left: the control group may use 64 GiB, /dev/shm included"),
                ("host-oom-or-killed", "memory", "warning", "the OOM killer has ended 3 processes of this control group"),
            ],
            INSIDE,
            "more-memory",
            "kubectl set resources deployment NAME --limits=memory=128Gi",
            id="pod-at-its-limits",
        ),
        pytest.param(
            pod(memory=64 * GIB, used=GIB, cpus=16),
            [("shm-exhausted", "shm", "error", "/dev/shm holds 64 MiB in all, what a container gets unless somebody asks for more")],
            INSIDE,
            "kubernetes-memory-volume",
            "kubectl patch deployment NAME --type=json -p '["
            '{"op":"add","path":"/spec/template/spec/volumes/-","value":{"name":"dshm","emptyDir":{"medium":"Memory"}}},'
            '{"op":"add","path":"/spec/template/spec/containers/0/volumeMounts/-","value":{"name":"dshm","mountPath":"/dev/shm"}}'
            "]'",
            id="pod-small-shm",
        ),
        pytest.param(
            adapter(infiniband, state="2: INIT"),
            [
                (
                    "ib-port-down",
                    "infiniband",
                    "warning",
                    "mlx5_0 port 1 (InfiniBand) is INIT: no subnet manager has set it up; no port is active",
                )
            ],
            {},
            "subnet-manager",
            "sudo systemctl start opensm || sudo systemctl start opensmd; sudo sminfo",
            id="infiniband-initializing",
        ),
        pytest.param(
            adapter(infiniband, state="1: DOWN", rate="10 Gb/sec (4X SDR)"),
            [("ib-port-down", "infiniband", "warning", "mlx5_0 port 1 (InfiniBand) is DOWN: physical state LinkUp; no port is active")],
            {},
            "cable-and-switch",
            "sudo mlxlink -d mlx5_0 -c",
            id="infiniband-down",
        ),
        pytest.param(
            adapter(roce, address=None),
            [("ib-config", "infiniband", "note", "mlx5_0 port 1 (RoCE) is active without a GID of type RoCE v2 with an IPv4 address")],
            {},
            "address-or-leave-out",
            "ip -br addr show ens0np0; export NCCL_IB_HCA=^=mlx5_0",
            id="roce-without-an-address",
        ),
        pytest.param(
            adapter(roce, address=None) | second_of_two_hosts(),
            [("ib-config", "infiniband", "warning", "mlx5_0 port 1 (RoCE) is active without a GID of type RoCE v2 with an IPv4 address")],
            {},
            "address-or-leave-out",
            "ip -br addr show ens0np0; export NCCL_IB_HCA=^=mlx5_0",
            id="roce-without-an-address-of-two-hosts",
        ),
        pytest.param(
            server(in_hosts="127.0.1.1"),
            [("dns-resolution", "names", "note", "this host's own name node7 resolves to 127.0.1.1, the loopback")],
            {},
            "own-name",
            "sudo sed -i '/^127\\.0\\.1\\.1/d' /etc/hosts; echo '10.0.0.7 node7' | sudo tee -a /etc/hosts",
            id="own-name-is-the-loopback",
        ),
        pytest.param(
            server(in_hosts="127.0.1.1") | second_of_two_hosts(),
            [("dns-resolution", "names", "warning", "this host's own name node7 resolves to 127.0.1.1, the loopback")],
            {},
            "gloo-interface",
            "export GLOO_SOCKET_IFNAME=eno1",
            id="own-name-is-the-loopback-of-two-hosts",
        ),
        pytest.param(
            wsl2(),
            [
                ("wsl-limits", "container", "note", "this is WSL (kernel 5.15.167.4-microsoft-standard-WSL2)"),
                ("dns-resolution", "names", "note", "this host's own name DESKTOP-7QKF2 resolves to 127.0.1.1, the loopback"),
            ],
            NO_FIREWALL_TOOLS,
            "gloo-interface",
            "export GLOO_SOCKET_IFNAME=eth0",
            id="wsl-one-gpu",
        ),
        pytest.param(
            wsl2(gpus=2, own_name="172.28.112.5"),
            [
                ("wsl-limits", "container", "warning", "this is WSL (kernel 5.15.167.4-microsoft-standard-WSL2)"),
                ("p2p-broken", "gpu", "note", "GPUs 0 and 1 cannot read each other's memory: not supported"),
            ],
            NO_FIREWALL_TOOLS,
            "no-p2p-no-shm",
            {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
            id="wsl-two-gpus",
        ),
        pytest.param(
            wsl2(gpus=0, own_name="172.28.112.5"),
            [
                (
                    "wsl-limits",
                    "container",
                    "note",
                    "this is WSL (kernel 5.15.167.4-microsoft-standard-WSL2); there is no /dev/dxg, so no GPU reaches it",
                )
            ],
            NO_FIREWALL_TOOLS,
            "native-linux",
            "uname -r",
            id="wsl-no-gpu",
        ),
        pytest.param(
            all_of(server(), torch(), fabric_manager(), nvlink_gpus(4, instances={0: 2, 1: 7})),
            [("mig-slices", "gpu", "warning", "GPUs 0 and 1 of 4: in MIG mode")],
            {},
            "whole-gpus",
            "sudo nvidia-smi -i 0,1 -mig 0",
            id="mig-slices-of-two",
        ),
        pytest.param(
            pcie_server(4, instances={2: 0, 3: 1}),
            [
                ("mig-slices", "gpu", "warning", "GPU 2 of 4: in MIG mode without a slice"),
                ("mig-slices", "gpu", "warning", "GPU 3 of 4: in MIG mode"),
            ],
            {},
            "one-slice-per-process",
            "CUDA_VISIBLE_DEVICES=$(nvidia-smi -L | grep -o 'MIG-[0-9a-f-]*' | head -1) python train.py",
            id="mig-without-slices",
        ),
        pytest.param(
            all_of(cloud_vm(), torch(), pcie_gpus(1, instances={0: 0})),
            [("mig-slices", "gpu", "error", "GPU 0 of 1: in MIG mode without a slice")],
            {},
            "whole-gpus",
            "sudo nvidia-smi -i 0 -mig 0",
            id="mig-without-slices-and-no-other-gpu",
        ),
    ],
)
def test_a_fault_is_found_and_nothing_else(machine, whole, findings, unread, id, does):
    seen = examined(machine, whole)
    assert told(seen) == findings
    assert not_seen(seen) == unread
    (one,) = (r for f in seen.findings for r in f.remedies if r.id == id)
    assert (one.command or one.env) == does


def test_the_lines_of_a_lost_gpu_stand_with_it(machine):
    (one,) = examined(machine, all_of(server(), nvlink_gpus(2, lost={1}), fabric_manager(), kernel_log(*XID_79))).findings
    assert [e.text for e in one.evidence] == ["GPU 1 (0000:2b:00.0): GPU is lost", *XID_79[1:]]


def test_a_saved_snapshot_is_judged_alike_on_the_command_line(machine, tmp_path):
    taken = snapshot.take(lay_out(machine, pcie_server(4, acs=True)))
    file = tmp_path / "node7.json"
    file.write_bytes(snapshot_file.encode(taken))
    app = typer.Typer()
    app.callback()(lambda: None)
    cli.register(app)
    ran = CliRunner().invoke(app, ["doctor", "--lang", "en", "--json", "--snapshot", str(file)])
    assert ran.exit_code == 1, ran.output
    found = json.loads(encoding.encode(doctor.examine(taken).findings))
    assert len(found) == 1
    assert json.loads(ran.stdout)["findings"] == found
