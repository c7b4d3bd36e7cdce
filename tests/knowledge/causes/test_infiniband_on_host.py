"""Adapters of one host, as the causes judge them."""

from tests.tables import for_each

from unhang.facts import snapshot, snapshot_file
from unhang.knowledge import catalogue

CAUSES = tuple(catalogue.load()[id] for id in ("ib-port-down", "ib-config", "ib-transport-retry", "gdr-peer-memory", "nic-hardware"))
TWO = {"NNODES": "2"}
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01\n"
V1, V2 = "fe80:0000:0000:0000:0e42:a1ff:fe12:345{}\n", "0000:0000:0000:0000:0000:ffff:0a00:000{}\n"
GPU = {
    "/proc/driver/nvidia/version": OPEN,
    "/proc/driver/nvidia/gpus/0000:1b:00.0/information": "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 5\n",
    "/proc/sys/kernel/osrelease": "5.15.0-91-generic\n",
    "/dev/infiniband/uverbs0": "",
    "/sys/class/net/lo/mtu": "65536",
}


def port(i, *, state="4: ACTIVE", physical="5: LinkUp", layer="InfiniBand", rate="400 Gb/sec (4X NDR)", slot=None, board="MT_0838", **more):
    base = f"/sys/class/infiniband/mlx5_{i}"
    where = {"state": state, "phys_state": physical, "link_layer": layer, "rate": rate, "pkeys/0": "0xffff"}
    where |= {k.replace("__", "/"): v for k, v in more.items()}
    files = {f"{base}/ports/1/{k}": f"{v}\n" for k, v in where.items()}
    return files | {f"{base}/device": f"-> ../../../{slot or f'0000:{i + 16:02x}:00.0'}", f"{base}/board_id": board, f"{base}/fw_ver": "28.39.2048"}


def roce(i, *, gids=True, **more):
    table = {"gids__0": V1.format(i), "gid_attrs__types__0": "IB/RoCE v1"}
    table |= {"gids__3": V2.format(i), "gid_attrs__types__3": "RoCE v2"} if gids else {}
    return port(i, **{"layer": "Ethernet", "rate": "100 Gb/sec (4X EDR)"} | table | more)


def rails(n, make=port):
    return {k: v for i in range(n) for k, v in make(i).items()}


DOWN = {"state": "1: DOWN", "physical": "2: Polling", "rate": "10 Gb/sec (4X SDR)"}


def found(machine, files, *, environ=None):
    host = machine(GPU | files, environ=environ)
    host.interfaces = {"lo": ("127.0.0.1/8",)}
    taken = snapshot.take(host, only=["infiniband", "network", "container"])
    taken = snapshot_file.decode(snapshot_file.encode(taken), name="itself")
    assert taken.parts["infiniband"].state in ("read", "absent")
    return [f for c in CAUSES for f in c.on_host(taken)]


@for_each("environ", [{}, TWO])
@for_each(
    "files",
    [
        {},  # no adapter
        rails(8),
        rails(8, roce),
        # A DGX: eight rails, and Ethernet ports for storage of which one has no cable.
        rails(8) | roce(8, board="MT_0223") | roce(9, board="MT_0223", gids=False, **DOWN),
        # One port of a card is spare, and nobody plugged it in.
        roce(0, slot="0000:5e:00.0") | roce(1, slot="0000:5e:00.1", **DOWN),
        {k: v for i in range(4) for f in (0, 1) for k, v in roce(2 * i + f, slot=f"0000:5{i}:00.{f}", **(DOWN if f else {})).items()},
        # An adapter of EFA, which NCCL's own transport leaves alone.
        port(0, layer="Unspecified", rate="100 Gb/sec (4X EDR)"),
        rails(2) | {"/proc/driver/nvidia/version": CLOSED, "/sys/module/nvidia_peermem/version": "535.183.01"},
        # A workstation: GPUDirect RDMA is not for these.
        rails(1) | {"/proc/driver/nvidia/version": CLOSED, "/proc/driver/nvidia/gpus/0000:1b:00.0/information": "Model: NVIDIA GeForce RTX 4090\n"},
        rails(2) | port(0, counters__link_downed="3", counters__symbol_error="40", hw_counters__local_ack_timeout_err="12"),
        # In a container the types of entries that are not its own cannot be read.
        port(0, layer="Ethernet", gids__0=V1.format(0)),
    ],
)
def test_a_sane_machine(machine, files, environ):
    assert found(machine, files, environ=environ) == []


def test_a_port_without_a_subnet_manager(machine):
    files = port(0, state="2: INIT", rate="100 Gb/sec (4X EDR)")
    (one,) = found(machine, files)
    assert (one.cause, one.area, one.severity, one.remedies[0].id) == ("ib-port-down", "infiniband", "warning", "subnet-manager")
    assert one.says == "mlx5_0 port 1 (InfiniBand) is INIT: no subnet manager has set it up; no port is active"
    assert found(machine, files, environ=TWO)[0].severity == "error"
    assert found(machine, files, environ=TWO | {"NCCL_IB_DISABLE": "1"}) == []


def test_one_rail_of_eight_is_down(machine):
    (one,) = found(machine, rails(8) | port(7, **DOWN))
    assert (one.severity, one.says) == ("warning", "mlx5_7 port 1 (InfiniBand) is DOWN: physical state Polling; 7 other ports are active")
    assert one.remedies[0].command == "sudo mlxlink -d mlx5_7 -c"
    assert one.remedies[2].command.startswith("export NCCL_IB_HCA==mlx5_0:1,")
    (one,) = found(machine, rails(8) | port(7, **DOWN), environ={"NCCL_IB_HCA": "mlx5"})
    assert one.severity == "error"
    assert found(machine, rails(8) | port(7, **DOWN), environ={"NCCL_IB_HCA": "^mlx5_7"}) == []


def test_a_port_that_is_off_on_purpose(machine):
    (one,) = found(machine, rails(4) | port(4, state="1: DOWN", physical="3: Disabled"))
    assert one.severity == "note"
    (one,) = found(machine, port(0, slot="0000:5e:00.0") | port(1, slot="0000:5e:00.1", **DOWN))
    assert one.severity == "note"


def test_a_degraded_link(machine):
    (one,) = found(machine, rails(4) | port(2, rate="100 Gb/sec (1X NDR)"))
    assert (one.severity, one.says) == ("warning", "mlx5_2 port 1 runs at 100 Gb/sec (1X NDR); 3 others like it run at 400")
    (one,) = found(machine, port(0, rate="100 Gb/sec (1X NDR)"))
    assert "four lanes" in one.says
    # Ethernet of one lane is what it is.
    assert found(machine, roce(0, rate="25 Gb/sec (1X EDR)")) == []


def test_counters(machine):
    many = {"counters__link_downed": "40", "hw_counters__local_ack_timeout_err": "50000", "counters__port_rcv_packets": "1000000"}
    flapping, lossy = found(machine, rails(4) | port(1, **many))
    assert (flapping.cause, flapping.severity) == ("ib-port-down", "note")
    assert flapping.says == "mlx5_1 port 1 counted 40 link_downed since its driver was loaded, the others 0"
    # Without -x a shell of its own would read the path once more.
    assert flapping.remedies[0].command.startswith("watch -d -n 5 -x cat /sys/class/infiniband/mlx5_1/")
    assert lossy.says == "mlx5_1 port 1 counted 50000 local_ack_timeout_err since its driver was loaded, 50 for each thousand packets"
    # All alike: the switch was restarted, or the host has been up for long.
    assert found(machine, rails(4, lambda i: port(i, **many | {"counters__port_rcv_packets": "9" * 12}))) == []


def test_gids_of_roce(machine):
    (one,) = found(machine, roce(0), environ={"NCCL_IB_GID_INDEX": "5"})
    assert (one.cause, one.severity) == ("ib-config", "error")
    assert one.says == "NCCL_IB_GID_INDEX=5, and entry 5 of mlx5_0 port 1 is empty"
    assert one.remedies[0].command.endswith("export NCCL_IB_GID_INDEX=3")
    (one,) = found(machine, roce(0), environ={"NCCL_IB_GID_INDEX": "0"})
    assert (one.severity, "of type IB/RoCE v1" in one.says) == ("warning", True)
    for sane in ("3", "-1", ""):
        assert found(machine, roce(0), environ={"NCCL_IB_GID_INDEX": sane}) == []
    (one,) = found(machine, roce(0, gids=False), environ=TWO)
    assert (one.severity, one.remedies[0].command) == ("warning", "ip -br addr show ETH; export NCCL_IB_HCA=^=mlx5_0")


def test_adapters_that_are_named_and_not_there(machine):
    (one,) = found(machine, rails(2), environ={"NCCL_IB_HCA": "=mlx5_8:1"})
    assert (one.severity, one.says) == ("warning", "NCCL_IB_HCA==mlx5_8:1 leaves none of the adapters: mlx5_0, mlx5_1")


def test_a_container_without_the_devices(machine):
    """One fault is one finding; and only GPUs on several hosts need them."""
    bus = {"/sys/bus/pci/devices/0000:1b:00.0/vendor": "0x10de\n", "/sys/bus/pci/devices/0000:1b:00.0/class": "0x030200\n"}
    bus |= {"/dev/nvidiactl": "", "/dev/nvidia-uvm": ""}
    plain = {k: v for k, v in (GPU | rails(2)).items() if "uverbs" not in k}

    def told(files, environ):
        taken = snapshot.take(machine(plain | files, environ=environ), only=["infiniband", "container", "network"])
        return [
            (f.cause, f.severity) for cause in (catalogue.load()["ib-config"], catalogue.load()["container-capability"]) for f in cause.on_host(taken)
        ]

    docker = {"/.dockerenv": ""}
    assert told(docker | bus, TWO) == [("container-capability", "warning")]
    assert told(docker | bus, {}) == [("container-capability", "note")]
    assert told(docker, TWO) == [("container-capability", "note")]
    assert told(docker | bus, TWO | {"NCCL_IB_DISABLE": "1"}) == [("container-capability", "note")]
    assert told(bus, TWO) == [("ib-config", "warning")]
    assert told(docker | bus | {"/dev/infiniband/uverbs0": ""}, TWO) == []


def test_no_partition_key(machine):
    (one,) = found(machine, port(0, pkeys__0="0x0000", pkeys__1="0x8001"))
    assert (one.severity, one.remedies[0].command) == ("error", "export NCCL_IB_PKEY=1")
    assert found(machine, port(0, pkeys__0="0x0000", pkeys__1="0x8001"), environ={"NCCL_IB_PKEY": "1"}) == []


def test_rails_of_different_mtu(machine):
    files = {}
    for i, mtu in ((0, "9000"), (1, "1500")):
        bus = f"devices/pci0/0000:{i + 16:02x}:00.0"
        files |= roce(i) | {f"/sys/class/infiniband/mlx5_{i}/device": f"-> ../../../{bus}", f"/sys/{bus}/net/ens{i}/x": ""}
        files |= {f"/sys/class/net/ens{i}/mtu": mtu}
    (one,) = found(machine, files)
    assert (one.severity, one.remedies[0].command) == ("note", "sudo ip link set dev ens1 mtu 9000")


def test_gpu_memory_out_of_reach(machine):
    (one,) = found(machine, rails(2) | {"/proc/driver/nvidia/version": CLOSED}, environ=TWO)
    assert (one.cause, one.severity) == ("gdr-peer-memory", "warning")
    assert one.says.endswith("(the GPU driver is the closed one)")
    (one,) = found(machine, rails(2) | {"/proc/sys/kernel/osrelease": "5.4.0-150-generic\n"})
    assert (one.severity, "kernel 5.4.0-150-generic is older than 5.12" in one.says) == ("note", True)


def test_different_firmware(machine):
    (one,) = found(machine, rails(3) | {"/sys/class/infiniband/mlx5_1/fw_ver": "28.36.1010"})
    assert (one.cause, one.severity) == ("nic-hardware", "note")
    assert "28.36.1010 on mlx5_1; 28.39.2048 on mlx5_0, mlx5_2" in one.says
