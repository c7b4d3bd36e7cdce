"""What the causes around GPUs find on a machine: each fault, and the sane machine beside it."""

from dataclasses import replace

import pytest
from tests.tables import for_each

from unhang.facts import container, gpu, kernel_log, pcie
from unhang.facts.nvml import Gpu, NvLink, Process
from unhang.facts.snapshot import Part, Snapshot
from unhang.knowledge import catalogue

GIB = 1024**3
ABOUT = (
    "gpu-hardware",
    "p2p-broken",
    "nvlink-nvswitch-fabric",
    "driver-reboot-needed",
    "mig-slices",
    "gpu-busy-exclusive",
    "gpu-oom",
    "duplicate-gpu",
    "device-mapping",
)
XID = "NVRM: Xid (PCI:0000:00:00): 79, pid=811, GPU has fallen off the bus."


def card(index, **more):
    return Gpu(
        **{
            "index": index,
            "address": f"0000:{index:02x}:00.0",
            "name": "NVIDIA H100",
            "uuid": f"GPU-{index:08x}-aaaa",
            "memory_total_bytes": 80 * GIB,
            "memory_used_bytes": GIB // 2,
            "processes": (),
            "compute_mode": "default",
            "mig": False,
            "ecc": True,
            "ecc_volatile_uncorrected": 0,
            "ecc_aggregate_uncorrected": 4,
            "remap_pending": False,
            "remap_failed": False,
            "recovery": "none",
            "pcie_width": 16,
            "pcie_width_max": 16,
            "slowdowns": ("power-cap",),
        }
        | more
    )


def switched(index, *, down=(), **more):
    found = tuple(NvLink(link=n, active=n not in down, remote_kind="switch" if n not in down else None) for n in range(18))
    return card(index, nvlinks=found, **({"fabric": "completed"} | more))


def machine_with(*cards, link="NV18", p2p="ok", **more):
    pairs = tuple(gpu.Pair(first=a.index, second=b.index, link=link, p2p=p2p) for i, a in enumerate(cards) for b in cards[i + 1 :])
    plain = {
        "driver": "570.86.15",
        "open_module": True,
        "nvml_driver": "570.86.15",
        "nvml_error": None,
        "cuda": "12.8",
        "gpus": cards,
        "pairs": pairs,
        "libraries": (gpu.Library(name="libcuda", version="570.86.15", path="/usr/lib/libcuda.so.570.86.15"),),
        "visible": None,
        "nvswitches": (),
        "fabric_manager": None,
        "kernel_drivers": {c.address: "nvidia" for c in cards},
    }
    return gpu.Gpus(**(plain | more))


def around(kind="bare", devices=()):
    values = dict.fromkeys(container.Container.__dataclass_fields__)
    return container.Container(
        **(values | {"kind": kind, "signs": (), "devices": devices, "nvidia_gpus_on_bus": 0, "infiniband_on_bus": 0, "unread": ()})
    )


def log(*events):
    return kernel_log.KernelLog(source="/dev/kmsg", uptime_s=1e6, events=events)


def event(kind="xid", *, age=60.0, text=XID, **more):
    return kernel_log.Event(kind=kind, text=text, first_age_s=age, last_age_s=age, **more)


def on_bus(address, kind="gpu", *, path=("pci0000:3a", "rp", "up"), **more):
    names = ("driver", "numa_node", "width", "width_max", "speed_max_gt_s", "iommu_type")
    plain = {"aer_fatal": 0, "address": address, "kind": kind, "vendor": "0x10de", "device": "0x2330", "path": path, "acs": (), "answers": True}
    return pcie.Device(**(dict.fromkeys(names) | plain | ({"driver": "nvidia"} if kind == "gpu" else {}) | more))


def bus(*devices, virtual=""):
    ends = [d for d in devices if d.kind in ("gpu", "nic")]
    between = tuple(
        pcie.Between(first=a.address, second=b.address, distance=pcie.distance(a, b))
        for i, a in enumerate(ends)
        for b in ends[i + 1 :]
        if a.kind == "gpu"
    )
    return pcie.Pcie(devices=devices, between=between, iommus=0, iommu_options=(), virtual=virtual)


def found(gpus=None, bus=None, log=None, kind="bare", devices=()):
    """All findings of all causes around GPUs, as (cause, severity, says)."""
    parts = {"gpu": gpus, "pcie": bus, "kernel": log, "container": around(kind, devices)}
    host = Snapshot(host="node7", taken="", parts={id: Part(state="read", facts=f) for id, f in parts.items() if f is not None})
    causes = catalogue.load()
    findings = [f for id in ABOUT for f in causes[id].on_host(host)]
    assert all(f.area in host.parts and f.evidence and f.leads_to and f.remedies for f in findings)
    return findings


def told(*args, **more):
    return [(f.cause, f.severity, f.says) for f in found(*args, **more)]


def test_sane_machines_give_nothing():
    manager = gpu.FabricManager(running=True, version="570.86.15")
    switches = ("0000:05:00.0",)
    assert told(machine_with(*(switched(i) for i in range(8)), nvswitches=switches, fabric_manager=manager), bus(on_bus("0000:00:00.0")), log()) == []
    assert told(machine_with(*(card(i) for i in range(8)), link="PIX", visible="0,1,2,3")) == []
    # A laptop, its screen on the GPU.
    desktop = (Process(pid=900, kind="graphics", name="/usr/lib/xorg/Xorg", used_bytes=300 * 1024**2),)
    assert told(machine_with(card(0, memory_total_bytes=8 * GIB, processes=desktop, slowdowns=()), visible="0")) == []
    # A pod with one of the machine's GPUs: the fabric manager is out of its sight.
    pod = machine_with(switched(0, fabric=None), nvswitches=switches, fabric_manager=gpu.FabricManager(running=None, version=None))
    assert told(pod, bus(on_bus("0000:00:00.0"), on_bus("0000:01:00.0")), kind="kubernetes") == []
    assert told() == []
    assert told(machine_with(Gpu(index=0, address=None)), bus(on_bus("0000:00:00.0")), log()) == []


@for_each(
    ("more", "severity", "says"),
    [
        ({"recovery": "reset the GPU"}, "error", "needs recovery: reset the GPU"),
        ({"recovery": "drain peer-to-peer traffic"}, "warning", "needs recovery"),
        ({"remap_failed": True, "remap_pending": True}, "error", "could not replace a faulty row"),
        ({"remap_pending": True}, "warning", "faulty row of memory whose replacement waits for a reset"),
        ({"retirement_pending": True, "remap_pending": None}, "warning", "faulty page of memory"),
        ({"ecc_volatile_uncorrected": 2}, "warning", "met 2 uncorrected memory errors"),
        ({"slowdowns": ("heat", "power-cap"), "temperature_c": 91}, "warning", "is slowed down at 91 °C: the hardware sees it too hot"),
        ({"slowdowns": ("power-brake",)}, "warning", "the power supply brakes"),
        ({"pcie_width": 4}, "warning", "runs on 4 of 16 PCIe lanes"),
    ],
)
def test_the_condition_of_a_gpu(more, severity, says):
    (one,) = found(machine_with(card(0), card(1, **more)))
    assert (one.cause, one.severity) == ("gpu-hardware", severity)
    assert one.says.startswith("GPU 1 (0000:01:00.0) ") and says in one.says
    assert all(r.command is None or "0000:01:00.0" in r.command for r in one.remedies if r.id == "reset-gpu")


def test_a_gpu_that_is_lost():
    gpus = machine_with(card(0), Gpu(index=1, address="0000:01:00.0", error="GPU is lost"))
    dead = bus(on_bus("0000:00:00.0"), on_bus("0000:01:00.0", answers=False))
    (one,) = found(gpus, dead, log(event(device="0000:01:00.0", code=79)))
    assert (one.severity, one.says) == ("error", "GPU 1 (0000:01:00.0) cannot be reached: GPU is lost")
    assert XID in [e.text for e in one.evidence]
    # Where NVML no longer counts it, the bus tells.
    (two,) = found(machine_with(card(0)), dead, log(event(device="0000:01:00.0", code=79)))
    assert (two.area, two.severity, two.says) == ("pcie", "error", "the GPU at 0000:01:00.0 no longer answers on the PCIe bus")
    # Held by another driver, or for a virtual machine: none of ours.
    assert found(machine_with(card(0)), bus(on_bus("0000:01:00.0", answers=False, driver="vfio-pci"))) == []


@pytest.mark.parametrize(
    ("code", "age", "severity"),
    [(79, 60, "warning"), (79, 3 * 86400, "note"), (95, 60, "warning"), (63, 60, "warning"), (92, 60, "note"), (119, None, "warning")],
)
def test_xids_of_a_gpu_that_works_since(code, age, severity):
    ((cause, how, says),) = told(machine_with(card(0)), None, log(event(device="0000:00:00.0", code=code, age=age)))
    assert (cause, how) == ("gpu-hardware", severity)
    assert f"GPU 0000:00:00.0: Xid {code}: " in says


def test_xids_of_the_application_are_not_the_gpus():
    assert told(machine_with(card(0)), None, log(event(device="0000:00:00.0", code=31), event(device="0000:00:00.0", code=13))) == []


def test_xid_of_a_gpu_that_nvml_does_not_list():
    gone = log(event(device="0000:07:00.0", code=79, age=3 * 86400), event(device="0000:07:00.0", code=63))
    ((_, severity, says),) = told(machine_with(card(0)), None, gone)
    assert severity == "error" and "(3 days ago)" in says and says.endswith("; also Xid 63")
    # In a pod it may be somebody else's, who has it in use.
    assert [s for _, s, _ in told(machine_with(card(0)), bus(on_bus("0000:07:00.0")), gone, kind="kubernetes")] == ["note"]
    # Without NVML nobody says whether it works.
    unseen = machine_with(card(0), nvml_error="libnvidia-ml.so.1: cannot open shared object file")
    assert [s for _, s, _ in told(unseen, None, log(event(device="0000:07:00.0", code=79)))] == ["warning"]


def test_a_driver_that_does_not_answer():
    ((cause, severity, says),) = told(machine_with(nvml_error="no answer within 15 s"))
    assert (cause, severity, says) == ("gpu-hardware", "error", "the driver does not answer: NVML gives no answer within 15 s")


def test_fatal_errors_on_the_way_to_a_gpu():
    way = (on_bus("0000:3c:00.0", "bridge", aer_fatal=3), on_bus("0000:00:00.0", path=("pci0000:3a", "0000:3c:00.0")))
    other = on_bus("0000:80:00.0", "bridge", aer_fatal=9)
    ((_, severity, says),) = told(machine_with(card(0)), bus(*way, other))
    assert (severity, says) == ("warning", "0000:3c:00.0, on the way to a GPU, counts 3 fatal PCIe errors since boot")


@pytest.mark.parametrize(("age", "severity"), [(60.0, "warning"), (90_000.0, "note")])
def test_fatal_errors_that_the_kernel_only_told_of(age, severity):
    way = (on_bus("0000:3c:00.0", "bridge", aer_fatal=None), on_bus("0000:00:00.0", path=("pci0000:3a", "0000:3c:00.0")))
    fatal = event("pcie-error", age=age, device="0000:3c:00.0", severity="Uncorrected (Fatal)", text="pcieport 0000:3c:00.0: PCIe Bus Error: ")
    ((_, found_as, says),) = told(machine_with(card(0)), bus(*way), log(fatal))
    assert (found_as, says) == (severity, f"0000:3c:00.0, on the way to a GPU, had fatal PCIe errors ({kernel_log.ago(age)})")
    for harmless in (replace(fatal, severity="Uncorrected (Non-Fatal)"), replace(fatal, device="0000:80:00.0")):
        assert told(machine_with(card(0)), bus(*way), log(harmless)) == []


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"fabric": "in-progress"}, "GPUs 0 and 1: not registered with the NVLink fabric (in-progress); the fabric manager does not run"),
        (
            {"fabric": "completed", "fabric_error": "NVML error 999"},
            "GPUs 0 and 1: not registered with the NVLink fabric (NVML error 999); the fabric manager does not run",
        ),
    ],
)
def test_a_fabric_that_is_not_ready(state, says):
    stopped = gpu.FabricManager(running=False, version=None)
    gpus = machine_with(switched(0, **state), switched(1, **state), nvswitches=("a",), fabric_manager=stopped)
    assert told(gpus) == [("nvlink-nvswitch-fabric", "error", says)]
    assert told(machine_with(switched(0, **state, mig=True))) == [("mig-slices", "note", "GPU 0 of 1: in MIG mode")]


def test_a_manager_that_does_not_run_or_does_not_fit():
    old = [switched(i, fabric=None) for i in range(2)]
    stopped = gpu.FabricManager(running=False, version="570.86.15")
    assert told(machine_with(*old, nvswitches=("a", "b"), fabric_manager=stopped)) == [
        ("nvlink-nvswitch-fabric", "error", "there are 2 NVSwitches, and no fabric manager runs")
    ]
    other = gpu.FabricManager(running=True, version="550.54.15")
    for gpus, severity in ((old, "error"), ([switched(0)], "warning")):
        assert told(machine_with(*gpus, nvswitches=("a",), fabric_manager=other)) == [
            ("nvlink-nvswitch-fabric", severity, "the fabric manager is version 550.54.15, the driver 570.86.15")
        ]


def test_nvlinks_that_are_down():
    ((cause, severity, says),) = told(machine_with(switched(0), switched(1, down=(3, 7)), switched(2)))
    assert (cause, severity, says) == ("nvlink-nvswitch-fabric", "warning", "GPU 1 (0000:01:00.0): 16 NVLinks are up, 18 on its neighbours")
    # Bridges between some pairs only.
    bridged = tuple(NvLink(link=n, active=n < 4, remote_kind="gpu" if n < 4 else None) for n in range(12))
    assert told(machine_with(card(0, nvlinks=bridged), card(1, nvlinks=bridged), card(2))) == []
    assert [s for _, _, s in told(machine_with(switched(0, fabric_degraded=True)))] == ["GPU 0: the NVLink fabric runs at a reduced bandwidth"]


@pytest.mark.parametrize(
    ("e", "severity"),
    [
        (event(device="0000:00:00.0", code=74), "warning"),
        (event(device="0000:00:00.0", code=74, age=200_000.0), "note"),
        (event("sxid", device="0000:c1:00.0", code=20034, severity="Fatal"), "warning"),
        (event("sxid", device="0000:c1:00.0", code=28006, severity="Non-fatal"), None),
    ],
)
def test_nvlink_in_the_kernel_log(e, severity):
    assert [(c, s) for c, s, _ in told(machine_with(switched(0)), None, log(e))] == ([("nvlink-nvswitch-fabric", severity)] if severity else [])


REDIRECT = ("source-validation", "request-redirect", "completion-redirect", "upstream-forwarding")


def behind_a_switch(acs, **more):
    ports = [on_bus(f"0000:3c:0{n}.0", "bridge", acs=acs) for n in (0, 4, 8)]
    gpus = [on_bus(f"0000:0{n}:00.0", path=("pci0000:3a", "rp", "up", ports[n].address), **more) for n in (0, 1)]
    return [*gpus, on_bus("0000:17:00.0", "nic", vendor="0x15b3", path=("pci0000:3a", "rp", "up", ports[2].address)), *ports]


def test_access_control_between_gpus():
    pcie_only = machine_with(card(0), card(1), link="PIX")
    (one,) = found(pcie_only, bus(*behind_a_switch(REDIRECT)))
    assert (one.cause, one.area, one.severity) == ("p2p-broken", "pcie", "warning")
    assert one.says.startswith("3 PCIe bridges between GPUs send their traffic around through the processor")
    assert "0000:3c:00.0 0000:3c:04.0 0000:3c:08.0" in one.remedies[0].command
    # With NVLink only the NIC is left.
    (two,) = found(machine_with(card(0), card(1)), bus(*behind_a_switch(REDIRECT)))
    assert two.says.startswith("3 PCIe bridges between GPUs and NICs") and "GPUDirect" in two.leads_to
    assert "host-memory" not in {r.id for r in two.remedies}
    for sane in (
        bus(*behind_a_switch(())),
        bus(*behind_a_switch(("source-validation",))),
        bus(*behind_a_switch(REDIRECT), virtual="QEMU"),
        bus(*behind_a_switch(None)),
    ):
        assert told(pcie_only, sane) == []


def test_an_iommu_that_translates():
    pcie_only = machine_with(card(0), card(1), link="PHB")
    assert [(c, s) for c, s, _ in told(pcie_only, bus(*behind_a_switch((), iommu_type="DMA-FQ")))] == [("p2p-broken", "warning")]
    assert told(pcie_only, bus(*behind_a_switch((), iommu_type="identity"))) == []
    assert told(pcie_only, bus(*behind_a_switch((), iommu_type="DMA-FQ"), virtual="QEMU")) == []
    assert told(machine_with(card(0), card(1)), bus(*behind_a_switch((), iommu_type="DMA-FQ"))) == []
    no_p2p = machine_with(card(0), card(1), link="PHB", p2p="chipset not supported")
    assert [s for _, s, _ in told(no_p2p, bus(*behind_a_switch((), iommu_type="DMA-FQ")))] == ["note"]


def test_gpus_without_peer_access():
    consumer = machine_with(card(0), card(1), link="PHB", p2p="chipset not supported")
    assert told(consumer) == [("p2p-broken", "note", "GPUs 0 and 1 cannot read each other's memory: chipset not supported")]
    assert [(c, s) for c, s, _ in told(machine_with(card(0), card(1), p2p="disabled by registry key"))] == [("p2p-broken", "warning")]


def test_accesses_that_the_iommu_refused():
    fault = event("iommu-fault", device="0000:00:00.0", text="DMAR: [DMA Write] Request device [00:00.0] fault addr 0xb0")
    assert [(c, s) for c, s, _ in told(machine_with(card(0)), None, log(fault))] == [("p2p-broken", "warning")]
    assert told(machine_with(card(0)), None, log(replace(fault, device="0000:99:00.0"))) == []
    adapter = bus(on_bus("0000:99:00.0", "nic"))
    ((_, _, says),) = told(machine_with(card(0)), adapter, log(replace(fault, device="0000:99:00.0")))
    assert says.startswith("the IOMMU refused accesses of adapter 0000:99:00.0 (")


def libraries(*versions, name="libnvidia-ml"):
    return tuple(gpu.Library(name=name, version=v, path=f"/usr/lib/{name}.so.{v}") for v in versions)


def test_driver_and_libraries_that_differ():
    mismatch = "RM has detected an NVML/RM version mismatch."
    says = "the kernel runs the NVIDIA module 570.86.15, its libraries are 575.57.08"
    assert told(machine_with(libraries=libraries("575.57.08"), nvml_error=mismatch)) == [("driver-reboot-needed", "error", says)]
    assert told(machine_with(libraries=libraries("575.57.08"), nvml_error="Unknown Error"))[0][:2] == ("driver-reboot-needed", "error")
    # NVML works: whatever else lies about, the right one is found.
    assert told(machine_with(card(0), libraries=libraries("575.57.08"))) == []
    assert told(machine_with(card(0), libraries=libraries("570.86.15", "575.57.08"), nvml_error="Not Found")) == []
    says = "libcuda is 575.57.08, the driver 570.86.15"
    assert told(machine_with(card(0), libraries=libraries("575.57.08", name="libcuda"))) == [("driver-reboot-needed", "warning", says)]
    assert told(machine_with(card(0), libraries=libraries("570.86.15", "575.57.08", name="libcuda"))) == []


def test_a_module_that_is_not_loaded():
    absent = {"driver": None, "nvml_error": "Driver Not Loaded", "libraries": libraries("570.86.15")}
    assert [(c, s) for c, s, _ in told(machine_with(**absent, kernel_drivers={"0000:00:00.0": None}))] == [("driver-reboot-needed", "warning")]
    assert told(machine_with(**absent, kernel_drivers={"0000:00:00.0": "vfio-pci"})) == []
    assert told(machine_with(**absent, kernel_drivers={})) == []


def test_a_program_with_libraries_of_another_version():
    api = event("driver-mismatch", text="NVRM: API mismatch: the client 'python' (pid 811) has the version 550.54.15, but")
    assert [(c, s) for c, s, _ in told(machine_with(card(0)), None, log(api))] == [("driver-reboot-needed", "warning")]
    assert told(machine_with(card(0)), None, log(replace(api, last_age_s=90_000.0))) == []


def test_slices():
    (one,) = found(machine_with(card(0, mig=True), card(1), card(2, mig=True)))
    assert (one.cause, one.severity, one.says) == ("mig-slices", "warning", "GPUs 0 and 2 of 3: in MIG mode")
    assert one.remedies[0].command == "sudo nvidia-smi -i 0,2 -mig 0"


COMPUTE = Process(pid=4711, kind="compute", name="/opt/venv/bin/python3", used_bytes=30 * GIB)


def test_a_gpu_for_one_process():
    exclusive = card(0, compute_mode="exclusive-process")
    busy = replace(exclusive, processes=(COMPUTE,), memory_used_bytes=30 * GIB)
    says = "GPU 0 (0000:00:00.0) serves one process only (exclusive-process), and process 4711 has it"
    assert told(machine_with(busy))[0] == ("gpu-busy-exclusive", "error", says)
    assert told(machine_with(exclusive)) == [("gpu-busy-exclusive", "note", "GPU 0: one process each (exclusive-process)")]
    # The server of MPS shares it.
    mps = replace(exclusive, processes=(replace(COMPUTE, name="nvidia-cuda-mps-server", used_bytes=GIB // 10),))
    assert [(c, s) for c, s, _ in told(machine_with(mps))] == [("gpu-busy-exclusive", "note"), ("gpu-oom", "note")]
    assert [(c, s) for c, s, _ in told(machine_with(card(0, compute_mode="prohibited")))] == [("gpu-busy-exclusive", "error")]


def test_memory_that_others_have():
    (one,) = found(machine_with(card(0), card(1, processes=(COMPUTE,), memory_used_bytes=30 * GIB, utilization_percent=97)))
    assert (one.cause, one.severity) == ("gpu-oom", "warning")
    assert one.says == "GPU 1 (0000:01:00.0) is in use: 30 GiB of 80 GiB taken by 4711 (python3), at 97 %"
    assert one.remedies[0].command == "ps -o pid,user,etime,args -p 4711"
    hidden = machine_with(card(0, memory_used_bytes=30 * GIB))
    assert told(hidden)[0][2].endswith("30 GiB of 80 GiB taken; which processes have it cannot be seen from here")
    small = machine_with(card(0, processes=(replace(COMPUTE, used_bytes=GIB // 2),)))
    assert [(c, s) for c, s, _ in told(small)] == [("gpu-oom", "note")]


@for_each(
    ("visible", "expected"),
    [
        ("0,1", None),
        ("1, 0", None),
        ("", ("device-mapping", "warning", "it hides all 2 GPUs")),
        ("-1", ("device-mapping", "warning", "it hides all 2 GPUs")),
        ("NoDevFiles", ("device-mapping", "warning", "it hides all 2 GPUs")),
        ("0,1,2,3", ("device-mapping", "error", "there is no GPU 2 among the 2 here; CUDA shows the 2 before it")),
        ("GPU-00000001,GPU-99999999", ("device-mapping", "error", "there is no GPU GPU-99999999 among the 2 here; CUDA shows the 1 before it")),
        ("GPU-00000001", ("device-mapping", "note", "GPUs are named by UUID")),
        ("0,0", ("duplicate-gpu", "error", "CUDA_VISIBLE_DEVICES=0,0 names 0 more than once")),
        ("MIG-3f2a9c10-55ff-5c1d-9d1e-0a1b2c3d4e5f", None),
    ],
)
def test_the_visible_gpus(visible, expected):
    answers = told(machine_with(card(0), card(1), visible=visible))
    if expected is None:
        assert answers == []
    else:
        ((cause, severity, says),) = answers
        assert (cause, severity) == expected[:2] and says.endswith(expected[2])
    # What cannot be counted is not judged.
    assert [c for c, _, _ in told(machine_with(card(0), visible="7", nvml_error="Not Found"))] == []
    assert told(machine_with(card(0, mig=True), visible="7"))[0][0] == "mig-slices"


def test_device_files_that_are_closed():
    closed = (container.Device(path="/dev/nvidia0", usable=False), container.Device(path="/dev/nvidia-caps/nvidia-cap1", usable=False))
    gpus = machine_with(card(0))
    assert told(gpus, devices=closed) == [("device-mapping", "error", "/dev/nvidia0 may not be opened by this user")]
    # container-capability tells of those.
    assert told(gpus, devices=closed, kind="docker") == []
    assert told(gpus, devices=closed[1:]) == []


def test_a_container_that_lost_its_gpus():
    lost = machine_with(nvml_error="Unknown Error")
    (one,) = found(lost, kind="podman")
    assert (one.cause, one.severity, one.says) == ("device-mapping", "error", "the container has lost its GPUs: NVML says Unknown Error")
    assert one.remedies[0].command == "podman restart CONTAINER"
    assert told(lost) == []
