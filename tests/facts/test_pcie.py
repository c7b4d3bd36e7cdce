import struct

import pytest

from unhang.facts import pcie
from unhang.facts.host import Host, NotHere

BRIDGE, GPU, NIC, SWITCH = "0x060400", "0x030200", "0x020700", "0x068000"
METAL = {"/proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu sse2 avx512f\n", "/proc/cmdline": "quiet intel_iommu=on iommu=pt ro\n"}


def function(path, kind, *, vendor="0x10de", numa="0", **files):
    """One device of the bus: `path` leads from the host bridge to it, as /sys/devices does."""
    address = path.rpartition("/")[2]
    at = f"/sys/devices/{path}"
    laid = {"class": kind, "vendor": vendor, "device": "0x2330", "numa_node": numa} | files
    return {f"{at}/{name}": text if text.startswith("-> ") else f"{text}\n" for name, text in laid.items()} | {
        f"/sys/bus/pci/devices/{address}": f"-> ../../../devices/{path}"
    }


def with_acs(control, *, at=0x148):
    """4096 bytes of configuration space: advanced error reporting first, access control behind it."""
    config = bytearray(4096)
    struct.pack_into("<I", config, 0x100, 0x0001 | 2 << 16 | at << 20)
    struct.pack_into("<IHH", config, at, 0x000D | 1 << 16, 0x5F, control)
    return bytes(config)


def configured(host, address, config):
    (host.path("/sys/bus/pci/devices") / address).resolve().joinpath("config").write_bytes(config)


ROOT = "pci0000:3a/0000:3a:00.0/0000:3b:00.0"
TWO_BEHIND_ONE_SWITCH = (
    function("pci0000:3a/0000:3a:00.0", BRIDGE, vendor="0x8086")
    | function(ROOT, BRIDGE, vendor="0x1000")
    | function(f"{ROOT}/0000:3c:00.0", BRIDGE, vendor="0x1000")
    | function(f"{ROOT}/0000:3c:04.0", BRIDGE, vendor="0x1000")
    | function(f"{ROOT}/0000:3c:08.0", BRIDGE, vendor="0x1000")
    | function(
        f"{ROOT}/0000:3c:00.0/0000:3d:00.0",
        GPU,
        current_link_width="16",
        max_link_width="16",
        current_link_speed="2.5 GT/s PCIe",
        max_link_speed="32.0 GT/s PCIe",
        driver="-> ../../../../bus/pci/drivers/nvidia",
        iommu_group="-> ../../../../kernel/iommu_groups/27",
        aer_dev_fatal="Undefined 0\nData Link Protocol 2\nSurprise Down Error 1\nTOTAL_ERR_FATAL 1",
    )
    | function(f"{ROOT}/0000:3c:04.0/0000:3e:00.0", GPU, current_link_width="0", max_link_width="255")
    | function(f"{ROOT}/0000:3c:08.0/0000:3f:00.0", NIC, vendor="0x15b3")
    | {"/sys/kernel/iommu_groups/27/type": "DMA-FQ\n", "/sys/class/iommu/dmar0": None, "/sys/class/iommu/dmar1": None}
    | METAL
)


def test_what_a_device_says(machine):
    host = machine(TWO_BEHIND_ONE_SWITCH)
    seen = pcie.collect(host)
    gpu = next(d for d in seen.devices if d.address == "0000:3d:00.0")
    assert gpu.path == ("pci0000:3a", "0000:3a:00.0", "0000:3b:00.0", "0000:3c:00.0")
    assert (gpu.kind, gpu.driver, gpu.numa_node, gpu.width, gpu.width_max, gpu.speed_max_gt_s) == (
        "gpu",
        "nvidia",
        0,
        16,
        16,
        32.0,
    )
    assert (gpu.iommu_type, gpu.aer_fatal, gpu.answers) == ("DMA-FQ", 3, None)
    asleep = next(d for d in seen.devices if d.address == "0000:3e:00.0")
    assert (asleep.width, asleep.width_max) == (None, None)
    assert (seen.iommus, seen.iommu_options, seen.virtual) == (2, ("intel_iommu=on", "iommu=pt"), "")
    assert [d.address for d in seen.devices if d.kind == "bridge"] == [
        "0000:3a:00.0",
        "0000:3b:00.0",
        "0000:3c:00.0",
        "0000:3c:04.0",
        "0000:3c:08.0",
    ]


def test_access_control_is_read_from_the_extended_space(machine):
    host = machine(TWO_BEHIND_ONE_SWITCH)
    for address, config in {
        "0000:3a:00.0": bytes(4096),
        "0000:3b:00.0": bytes(4096),
        "0000:3c:00.0": with_acs(0x1D),
        "0000:3c:04.0": with_acs(0),
        "0000:3c:08.0": with_acs(0x41),
    }.items():
        configured(host, address, config)
    seen = pcie.collect(host)
    acs = {d.address: d.acs for d in seen.devices if d.kind == "bridge"}
    assert acs["0000:3c:00.0"] == ("source-validation", "request-redirect", "completion-redirect", "upstream-forwarding")
    assert acs["0000:3c:04.0"] == acs["0000:3a:00.0"] == ()
    assert acs["0000:3c:08.0"] == ("source-validation", "direct-translated")
    assert seen.unread == ()
    assert pcie.SUBJECT.summary(seen) == "2 GPUs, 1 NIC; ACS redirects on 1 bridges; IOMMU in use"


def test_without_root_access_control_is_unknown_where_it_matters(machine):
    host = machine(TWO_BEHIND_ONE_SWITCH)
    for d in pcie.collect(host).devices:
        configured(host, d.address, b"\x00\x10\x01\xc0" + bytes(60))
    seen = pcie.collect(host)
    assert seen.unread == ("access control (ACS) of the PCIe bridges between GPUs and NICs (needs root)",)
    assert {d.acs for d in seen.devices if d.kind == "bridge"} == {None}
    # A laptop with one NIC behind a root port: nothing lies between.
    laptop = machine(
        function("pci0000:00/0000:00:1c.0", BRIDGE) | function("pci0000:00/0000:00:1c.0/0000:02:00.0", "0x020000", vendor="0x10ec") | METAL
    )
    assert pcie.collect(laptop).unread == ()


@pytest.mark.parametrize("next_at", [0x100, 0x101, 0xFFF])
def test_a_chain_of_capabilities_that_leads_nowhere_ends(machine, next_at):
    host = machine(TWO_BEHIND_ONE_SWITCH)
    config = bytearray(4096)
    struct.pack_into("<I", config, 0x100, 0x0001 | 2 << 16 | next_at << 20)
    configured(host, "0000:3c:00.0", bytes(config))
    assert next(d for d in pcie.collect(host).devices if d.address == "0000:3c:00.0").acs == ()


def test_a_gpu_that_fell_off_reads_as_all_ones(machine):
    host = machine(TWO_BEHIND_ONE_SWITCH)
    configured(host, "0000:3d:00.0", b"\xff" * 64)
    configured(host, "0000:3e:00.0", b"\xff" * 64)
    host.lay("/sys/devices/" + f"{ROOT}/0000:3c:04.0/0000:3e:00.0/power_state", "D3cold\n")
    seen = {d.address: d.answers for d in pcie.collect(host).devices}
    assert (seen["0000:3d:00.0"], seen["0000:3e:00.0"]) == (False, None)


def device(path, numa=0):
    plain = dict.fromkeys(("driver", "width", "width_max", "speed_max_gt_s", "iommu_type", "acs", "aer_fatal", "answers"))
    names = path.split("/")
    return pcie.Device(address=names[-1], kind="gpu", vendor="", device="", path=tuple(names[:-1]), numa_node=numa, **plain)


@pytest.mark.parametrize(
    ("first", "second", "distance"),
    [
        ("pci3a/rp/up/down0/gpu0", "pci3a/rp/up/down1/gpu1", "PIX"),
        ("pci3a/rp/up/down0/up2/down2/gpu0", "pci3a/rp/up/down1/gpu1", "PXB"),
        ("pci3a/rp/up/down0/gpu0", "pci3a/rp/up/down1/up2/down2/gpu1", "PXB"),
        ("pci3a/rp/up/down0/bridge/gpu0", "pci3a/rp/up/down1/gpu1", "PXB"),
        ("pci3a/rp0/gpu0", "pci3a/rp1/gpu1", "PHB"),
        ("pci00/gpu0", "pci00/gpu1", "PHB"),
        ("pci3a/rp0/gpu0", "pci5d/rp0/gpu1", "NODE"),
    ],
)
def test_distances_are_those_of_nvidia_smi(first, second, distance):
    assert pcie.distance(device(first), device(second)) == distance
    assert pcie.distance(device(second), device(first)) == distance


def test_other_processors_and_the_ports_between():
    assert pcie.distance(device("pci3a/rp0/gpu0"), device("pcib0/rp0/gpu1", numa=1)) == "SYS"
    between = pcie.ports_between(device("pci3a/rp/up/down0/gpu0"), device("pci3a/rp/up/down1/gpu1"))
    assert between == ("down0", "down1")
    assert pcie.ports_between(device("pci3a/rp0/gpu0"), device("pci3a/rp1/gpu1")) == ()


@pytest.mark.parametrize(
    ("files", "virtual"),
    [
        (METAL, ""),
        ({"/proc/cpuinfo": "flags\t: fpu hypervisor\n", "/sys/class/dmi/id/sys_vendor": "QEMU\n"}, "QEMU"),
        ({"/proc/cpuinfo": "flags\t: fpu hypervisor\n"}, "a virtual machine"),
        ({"/proc/cpuinfo": "Features\t: fp asimd\n"}, None),
        ({"/proc/cpuinfo": "Features\t: fp\n", "/sys/class/dmi/id/sys_vendor": "NVIDIA\n", "/sys/class/dmi/id/product_name": "GH200\n"}, ""),
        ({"/proc/cpuinfo": "Features\t: fp\n", "/sys/class/dmi/id/sys_vendor": "QEMU\n"}, "QEMU"),
    ],
)
def test_whether_it_is_a_virtual_machine(machine, files, virtual):
    assert pcie.virtual(machine(files)) == virtual


def test_nothing_of_the_kind(machine):
    with pytest.raises(NotHere, match="no PCI bus"):
        pcie.collect(machine({"/sys/class": None}))
    with pytest.raises(FileNotFoundError):
        pcie.collect(machine({"/proc/cpuinfo": ""}))
    with pytest.raises(NotHere, match="no GPU, NIC"):
        pcie.collect(machine(function("pci0000:00/0000:00:02.0", "0x030000", vendor="0x8086")))


def test_damaged_files_are_survived(machine):
    files = function(
        f"{ROOT}/0000:3c:00.0/0000:3d:00.0",
        GPU,
        numa="-1",
        current_link_width="\u00b2",
        max_link_width="many",
        current_link_speed="Unknown",
        aer_dev_fatal="\x00\n\nno number\nData Link 9 x",
    )
    host = machine(files | {"/sys/bus/pci/devices/0000:99:00.0/class": "0x030200\n", "/sys/bus/pci/devices/0000:99:00.0/vendor": "0x10de\n"})
    seen = pcie.collect(host)
    (gpu,) = [d for d in seen.devices if d.kind == "gpu"]
    assert (gpu.numa_node, gpu.width, gpu.width_max, gpu.aer_fatal) == (None, None, None, 0)
    assert "where 0000:99:00.0 is on the PCI bus" in seen.unread


def test_this_machine():
    try:
        assert pcie.collect(Host()).devices
    except NotHere as e:
        assert str(e)
