import pytest
from tests.tables import for_each

from unhang.facts import job


@pytest.mark.parametrize(
    ("environ", "hosts", "first"),
    [
        ({}, None, None),
        ({"NNODES": "2", "NODE_RANK": "1"}, 2, False),
        ({"PET_NNODES": "1:4", "PET_NODE_RANK": "0"}, 4, True),
        ({"SLURM_JOB_NUM_NODES": "1"}, 1, None),
        ({"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "RANK": "9", "GROUP_RANK": "1"}, 2, False),
        ({"WORLD_SIZE": "2"}, None, None),  # the number of hosts on some platforms, of processes on others
        ({"NNODES": "two"}, None, None),
    ],
)
def test_hosts_and_the_first_of_them(environ, hosts, first):
    found = job.of(environ)
    assert (found.hosts, found.first) == (hosts, first)


@pytest.mark.parametrize(("text", "port"), [("29500", 29500), ("", None), ("0", None), ("70000", None), ("²", None), ("abc", None)])
def test_ports(text, port):
    assert job.of({"MASTER_PORT": text}).master_port == port


@for_each(
    ("name", "asked", "port", "taken"),
    [
        ("eth0", "eth", None, True),
        ("eth0", "=eth", None, False),
        ("eth0", "=eno1,eth0", None, True),
        ("docker0", "^docker,lo", None, False),
        ("eth0", "^docker,lo", None, True),
        ("eth0", "^=eth0", None, False),
        ("eth01", "^=eth0", None, True),
        ("mlx5_1", "mlx5_1", 1, True),
        ("mlx5_10", "mlx5_1", 1, True),
        ("mlx5_10", "=mlx5_1:1", 1, False),
        ("mlx5_1", "=mlx5_1:2", 1, False),
        ("mlx5_1", "=mlx5_1:1:0", 1, True),
        ("eth0", "=", None, True),
    ],
)
def test_what_nccl_takes(name, asked, port, taken):
    assert job.matches(name, asked, port=port) is taken


def test_a_setting_stands_in_the_environment_or_in_a_file(machine):
    host = machine({"/etc/nccl.conf": "# site\nNCCL_SOCKET_IFNAME = eno\nNCCL_IB_HCA=mlx5\n", "/home/u/.nccl.conf": "NCCL_IB_HCA==mlx5_2\n"})
    host.environ = {"HOME": "/home/u"}
    assert (job.setting(host, "NCCL_IB_HCA").value, job.setting(host, "NCCL_IB_HCA").place) == ("=mlx5_2", "/home/u/.nccl.conf")
    assert job.setting(host, "NCCL_SOCKET_IFNAME").value == "eno"
    assert job.setting(host, "NCCL_DEBUG") is None
    host.environ = {"NCCL_SOCKET_IFNAME": "eth0"}
    assert job.setting(host, "NCCL_SOCKET_IFNAME").place == "the environment"
