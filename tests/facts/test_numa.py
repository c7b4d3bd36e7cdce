import pytest

from unhang.facts import numa
from unhang.facts.host import Host, NotHere

NODES = "/sys/devices/system/node"
PCI = "/sys/bus/pci/devices"


def node(number, cpus, memory_kib):
    return {
        f"{NODES}/node{number}/cpulist": f"{cpus}\n",
        f"{NODES}/node{number}/meminfo": f"Node {number} MemTotal:       {memory_kib} kB\nNode {number} MemFree:        {memory_kib // 2} kB\n",
    }


def device(address, kind, vendor="0x10de", at=0, **names):
    files = {f"{PCI}/{address}/class": f"{kind}\n", f"{PCI}/{address}/vendor": f"{vendor}\n", f"{PCI}/{address}/numa_node": f"{at}\n"}
    return files | {f"{PCI}/{address}/{of}/{name}": None for of, name in names.items()}


def two_sockets(**more):
    files = {f"{NODES}/possible": "0-1\n", f"{NODES}/has_memory": "0-1\n", "/proc/sys/kernel/numa_balancing": "1\n"}
    files |= node(0, "0-55,112-167", 1056_000_000) | node(1, "56-111,168-223", 1056_000_000)
    files |= device("0000:18:00.0", "0x030200", at=0) | device("0000:9d:00.0", "0x030200", at=1)
    files |= device("0000:19:00.0", "0x020700", "0x15b3", 0, net="ibs10", infiniband="mlx5_0")
    # A virtual function without a driver, a management controller's screen, a disk.
    files |= device("0000:19:00.3", "0x020700", "0x15b3", 0) | device("0000:03:00.0", "0x030000", "0x1a03") | device("0000:01:00.0", "0x010802")
    return files | more


def test_two_sockets(machine):
    status = "Name: x\nCpus_allowed_list:\t0-55\nMems_allowed_list:\t0-1\n"
    seen = numa.collect(machine(two_sockets(**{"/proc/self/status": status})))
    assert [(n.id, n.cpu_count, n.memory_bytes) for n in seen.nodes] == [
        (0, 112, 1056_000_000 * 1024),
        (1, 112, 1056_000_000 * 1024),
    ]
    assert (seen.cpus_allowed, seen.memory_allowed, seen.balancing) == ("0-55", (0, 1), True)
    assert [(d.kind, d.address, d.node, d.names) for d in seen.devices] == [
        ("gpu", "0000:18:00.0", 0, ()),
        ("network", "0000:19:00.0", 0, ("ibs10", "mlx5_0")),
        ("gpu", "0000:9d:00.0", 1, ()),
    ]
    assert numa.SUBJECT.summary(seen) == "2 nodes with 224 CPUs and 2.0 TiB; GPUs: 1 at node 0, 1 at node 1"
    assert seen.unread == ()


def test_a_node_without_memory_and_one_without_cpus(machine):
    seen = numa.collect(
        machine(node(0, "0-7", 64_000_000) | node(1, "8-15", 0) | node(2, "", 96_000_000) | device("0000:01:00.0", "0x030200", at=-1))
    )
    assert [(n.cpu_count, n.memory_bytes == 0) for n in seen.nodes] == [(8, False), (8, True), (0, False)]
    assert seen.gpus[0].node is None
    assert "without memory: 1; GPUs: 1 at node ?" in numa.SUBJECT.summary(seen)


def test_without_nodes(machine):
    with pytest.raises(NotHere, match="knows no NUMA"):
        numa.collect(machine({"/sys/class": None}))
    with pytest.raises(FileNotFoundError):
        numa.collect(machine({"/proc/cpuinfo": ""}))
    with pytest.raises(NotHere, match="knows no NUMA"):
        numa.collect(machine({f"{NODES}/online": "0\n"}))


def test_a_node_that_cannot_be_read_is_told(machine):
    seen = numa.collect(machine(node(0, "0-3", 1000) | {f"{NODES}/node1/cpulist": "x-y\n", f"{NODES}/node3/meminfo": ""}))
    assert ([n.id for n in seen.nodes], seen.unread) == ([0], ("NUMA nodes 1, 3",))


@pytest.mark.parametrize("text", ["", "\x00", "0-", "-", "9" * 50, "Node 0 MemTotal: lots kB", "0-99999999\n"])
def test_damaged(machine, text):
    files = dict.fromkeys((*node(0, "0", 1), *device("0000:01:00.0", "x"), "/proc/self/status", "/proc/sys/kernel/numa_balancing"), text)
    numa.SUBJECT.summary(numa.collect(machine(files)))


@pytest.mark.parametrize(("text", "numbers"), [("0-2,8", (0, 1, 2, 8)), ("\n", ()), ("5", (5,))])
def test_lists(text, numbers):
    assert numa.numbered(text) == numbers
    assert numa.listed(numbers) == text.strip()


def test_of_this_machine():
    try:
        seen = numa.collect(Host())
    except NotHere:
        return
    assert seen.nodes and sum(n.cpu_count for n in seen.nodes) > 0
