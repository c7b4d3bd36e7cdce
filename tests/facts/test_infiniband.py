import pytest

from unhang.facts import infiniband
from unhang.facts.host import NotHere

ZERO = "0000:0000:0000:0000:0000:0000:0000:0000\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC version: 12\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 2024\n"


def port(device, number=1, *, state="4: ACTIVE", physical="5: LinkUp", layer="InfiniBand", rate="400 Gb/sec (4X NDR)", bus="0000:5e:00.0", **more):
    base = f"/sys/class/infiniband/{device}"
    files = {
        f"{base}/device": f"-> ../../../{bus}",
        f"{base}/board_id": "MT_0000000838\n",
        f"{base}/fw_ver": "28.39.2048\n",
        f"{base}/ports/{number}/state": f"{state}\n",
        f"{base}/ports/{number}/phys_state": f"{physical}\n",
        f"{base}/ports/{number}/link_layer": f"{layer}\n",
        f"{base}/ports/{number}/rate": f"{rate}\n",
    }
    return files | {f"{base}/ports/{number}/{k.replace('__', '/')}": v for k, v in more.items()}


def test_a_port_of_infiniband(machine):
    counters = {"counters__symbol_error": "12\n", "counters__link_downed": "N/A (no PMA)\n", "hw_counters__local_ack_timeout_err": "7\n"}
    keys = {"pkeys__0": "0xffff\n", "pkeys__1": "0x0000\n", "gids__0": "fe80:0000:0000:0000:0c42:a103:00ab:cdef\n", "gids__1": ZERO}
    files = port("mlx5_0", **counters, **keys) | {"/dev/infiniband/uverbs0": "", "/dev/infiniband/rdma_cm": ""}
    seen = infiniband.collect(machine(files | {"/sys/module/nvidia_peermem/version": "570.86.15\n"}))
    (device,) = seen.devices
    (one,) = device.ports
    assert (device.board_id, device.firmware, device.slot) == ("MT_0000000838", "28.39.2048", "0000:5e:00")
    assert (one.state, one.physical_state, one.link_layer, one.rate_gbps, one.lanes) == ("ACTIVE", "LinkUp", "InfiniBand", 400, 4)
    assert (one.pkeys, one.counters) == ({"0": "0xffff"}, {"symbol_error": 12, "local_ack_timeout_err": 7})
    assert [(g.index, g.type, g.ipv4) for g in one.gids] == [(0, None, None)]
    assert (seen.verbs_devices, seen.verbs_usable, seen.peer_memory) == (("/dev/infiniband/uverbs0",), True, "nvidia_peermem")
    assert infiniband.SUBJECT.summary(seen) == "1 adapter, 1 of 1 ports active at 400 Gb/s (InfiniBand)"


def test_a_port_of_roce(machine):
    gids = {
        "gids__0": "fe80:0000:0000:0000:0e42:a1ff:fe12:3456\n", "gid_attrs__types__0": "IB/RoCE v1\n", "gid_attrs__ndevs__0": "ens1f0np0\n",
        "gids__3": "0000:0000:0000:0000:0000:ffff:0a00:0007\n", "gid_attrs__types__3": "RoCE v2\n", "gid_attrs__ndevs__3": "ens1f0np0\n",
        "gids__4": ZERO,
    }  # fmt: skip
    files = port("mlx5_0", layer="Ethernet", rate="25 Gb/sec (1X EDR)", **gids)
    bus = "/sys/devices/pci0000:5d/0000:5e:00.0"
    files["/sys/class/infiniband/mlx5_0/device"] = "-> ../../../devices/pci0000:5d/0000:5e:00.0"
    files |= {f"{bus}/net/ens1f0np0/mtu": "9000\n", "/sys/class/net/ens1f0np0/mtu": "9000\n"}
    seen = infiniband.collect(machine(files))
    assert seen.devices[0].net_devices == ("ens1f0np0",)
    assert seen.net_mtu_bytes == {"ens1f0np0": 9000}
    assert [(g.index, g.type, g.ipv4) for g in seen.devices[0].ports[0].gids] == [
        (0, "IB/RoCE v1", None),
        (3, "RoCE v2", "10.0.0.7"),
    ]
    assert seen.verbs_usable is None


@pytest.mark.parametrize(
    ("kernel", "driver", "dmabuf"),
    [
        ("5.15.0-91-generic", OPEN, True),
        ("5.4.0", OPEN, False),
        ("6.8.0", CLOSED, False),
        ("6.8.0", None, None),
        (None, OPEN, None),
        ("odd", OPEN, None),
    ],
)
def test_dmabuf(machine, kernel, driver, dmabuf):
    files = port("mlx5_0") | ({"/proc/sys/kernel/osrelease": kernel} if kernel else {}) | ({"/proc/driver/nvidia/version": driver} if driver else {})
    assert infiniband.collect(machine(files)).dmabuf is dmabuf


@pytest.mark.parametrize(
    ("environ", "used"),
    [
        ({}, ["mlx5_0", "mlx5_1"]),
        ({"NCCL_IB_DISABLE": "0"}, ["mlx5_0", "mlx5_1"]),
        ({"NCCL_IB_DISABLE": "1"}, []),
        ({"NCCL_NET": "Socket"}, []),
        ({"NCCL_IB_HCA": "=mlx5_1:1"}, ["mlx5_1"]),
        ({"NCCL_IB_HCA": "^mlx5_1"}, ["mlx5_0"]),
        ({"NCCL_IB_HCA": "="}, ["mlx5_0", "mlx5_1"]),
    ],
)
def test_what_nccl_would_use(machine, environ, used):
    efa = port("rdmap0s6", layer="Unspecified", state="4: ACTIVE")
    host = machine(port("mlx5_0") | port("mlx5_1", layer="Ethernet") | port("mlx5_2", state="1: DOWN") | efa, environ=environ)
    assert [d.name for d, _ in infiniband.active(infiniband.collect(host))] == used


def test_where_there_is_none(machine):
    with pytest.raises(NotHere, match="is missing"):
        infiniband.collect(machine({"/sys/class/net/lo/mtu": "65536"}))
    with pytest.raises(NotHere, match="is empty"):
        infiniband.collect(machine({"/sys/class/infiniband": None}))
    with pytest.raises(OSError):
        infiniband.collect(machine())


@pytest.mark.parametrize("junk", ["", "\0", ":", "4:", "1.2.3 Gb/sec (4X", "9" * 40, "x y z\n" * 3])
def test_damaged_files(machine, junk):
    more = dict.fromkeys(("gids__0", "gids__x", "gid_attrs__types__0", "pkeys__0", "pkeys__y", "counters__symbol_error"), junk)
    files = dict.fromkeys(port("mlx5_0", **more), junk)
    files |= {"/proc/sys/kernel/osrelease": junk, "/proc/driver/nvidia/version": junk, "/proc/driver/nvidia/gpus/0/information": junk}
    infiniband.SUBJECT.summary(infiniband.collect(machine(files)))


def test_a_device_without_ports_is_not_called_whole(machine):
    assert infiniband.collect(machine({"/sys/class/infiniband/mlx5_0/fw_ver": "1\n"})).unread == ("the state of some ports",)
