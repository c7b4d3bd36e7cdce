import pytest

from unhang.facts import snapshot
from unhang.knowledge import catalogue
from unhang.remedies import settings_file

CAUSE = catalogue.load()["cumem-host-numa"]

NODES, PCI = "/sys/devices/system/node", "/sys/bus/pci/devices"


def found(machine, nodes, gpus, *, allowed=None, environ=None, files=None):
    """`nodes` are pairs of CPU list and KiB, `gpus` the node of each."""
    laid = {} if allowed is None else {"/proc/self/status": f"Mems_allowed_list:\t{allowed}\n"}
    for i, (cpus, kib) in enumerate(nodes):
        laid |= {f"{NODES}/node{i}/cpulist": f"{cpus}\n", f"{NODES}/node{i}/meminfo": f"Node {i} MemTotal: {kib} kB\n"}
    for i, node in enumerate(gpus):
        address = f"{PCI}/0000:{i:02x}:00.0"
        laid |= {f"{address}/class": "0x030200\n", f"{address}/vendor": "0x10de\n", f"{address}/numa_node": f"{node}\n"}
    return list(CAUSE.on_host(snapshot.take(machine(laid | (files or {}), environ=environ or {}), only=["numa", "container"])))


GOOD = [("0-7", 1 << 20), ("8-15", 1 << 20)]
NO_MEMORY = [("0-7", 1 << 20), ("8-15", 0)]


def test_gpus_at_a_node_without_memory(machine):
    (one,) = found(machine, NO_MEMORY, [0, 0, 1, 1])
    assert (one.severity, one.area) == ("error", "numa")
    assert one.says == "2 GPUs of 4 at NUMA node 1, which has no memory"
    assert "2.24" in one.leads_to
    assert one.evidence[0].text == "cpulist: 8-15; MemTotal: 0 B"
    assert [(s.name, s.value) for s in settings_file.proposed([one])] == [("NCCL_CUMEM_HOST_ENABLE", "0")]


def test_a_node_without_cpus(machine):
    (one,) = found(machine, [("0-7", 1 << 20), ("", 1 << 20)], [0, 1])
    assert one.says == "1 GPU of 2 at NUMA node 1, which has no CPUs"


def test_all_at_such_nodes_agree(machine):
    (one,) = found(machine, [("0-7", 1 << 20), ("8-15", 0), ("", 0)], [1, 2])
    assert (one.severity, one.says) == ("note", "2 GPUs of 2 at NUMA nodes 1, 2, which have no memory and no CPUs")


@pytest.mark.parametrize(
    ("files", "remedies"), [({}, ["cumem-host-off", "see-numa"]), ({"/.dockerenv": ""}, ["cumem-host-off", "cap-sys-nice", "see-numa"])]
)
def test_memory_that_this_process_may_not_use(machine, files, remedies):
    (one,) = found(machine, GOOD, [0, 1], allowed="0", files=files)
    assert (one.severity, [r.id for r in one.remedies]) == ("warning", remedies)
    assert one.says == "1 GPU of 2 at NUMA nodes whose memory this process may not use (it may use node 0)"


@pytest.mark.parametrize(
    ("nodes", "gpus", "more"),
    [
        (GOOD, [0, 0, 1, 1], {"allowed": "0-1"}),
        (GOOD[:1], [0, 0], {}),
        # A virtual machine that names no node; a job that has only the GPUs of its node is not told apart from one that does not use the others.
        (GOOD, [-1, -1], {"allowed": "0"}),
        (NO_MEMORY, [0, 0], {}),
        (NO_MEMORY, [1], {}),
        (NO_MEMORY, [], {}),
        # Grace: the GPUs' own memory is nodes without CPUs, and nodes with nothing are kept for MIG.
        ([("0-71", 1 << 20), ("72-143", 1 << 20), ("", 1 << 20), ("", 1 << 20), ("", 0), ("", 0)], [0, 1], {"allowed": "0-5"}),
        (NO_MEMORY, [0, 1], {"environ": {"NCCL_CUMEM_HOST_ENABLE": "0"}}),
    ],
)
def test_sane(machine, nodes, gpus, more):
    assert found(machine, nodes, gpus, **more) == []
