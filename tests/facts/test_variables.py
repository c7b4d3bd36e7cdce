"""Variables of an environment and of NCCL's own files, and the libraries that may read them; secrets have no value."""

from __future__ import annotations

import json

import pytest
from tests.tables import for_each

from unhang.facts import snapshot, snapshot_file, variable_readers, variables
from unhang.facts.host import Host

SITE = "/opt/venv/lib/python3.11/site-packages"


def test_environment_and_files_of_nccl(machine):
    host = machine(
        {
            "/home/u/.nccl.conf": "# mine\nNCCL_DEBUG=WARN\nNCCL_ALGO = no\nNCCL_SOCKET_IFNAME==ens1f0\n",
            "/etc/nccl.conf": "NCCL_DEBUG=TRACE\nNCCL_PSK=secret\n",
            "/sys/class/net/eth0/mtu": "1500",
            "/sys/class/net/bonding_masters": "bond0\n",
            "/sys/class/infiniband/mlx5_0": None,
        },
        environ={
            "HOME": "/home/u",
            "NCCL_IB_HCA": "mlx5",
            "NCCL_VERSION": "2.27.5",
            "EDITOR": "vi",
            "ACCELERATE_TOKEN": "abc",
            "CUDA_VISIBLE_DEVICES": "0,1",
        },
    )
    seen = variables.collect(host)
    assert {(s.name, s.value, s.source.rpartition("/")[2], s.line) for s in seen.settings} == {
        ("NCCL_IB_HCA", "mlx5", "environment", None),
        ("ACCELERATE_TOKEN", None, "environment", None),
        ("CUDA_VISIBLE_DEVICES", "0,1", "environment", None),
        ("NCCL_DEBUG", "WARN", ".nccl.conf", 2),
        ("NCCL_SOCKET_IFNAME", "=ens1f0", ".nccl.conf", 4),
        ("NCCL_PSK", None, "nccl.conf", 2),
    }
    assert seen.names == ("EDITOR", "HOME", "NCCL_VERSION")
    assert (seen.interfaces, seen.adapters, seen.gpus) == (("eth0",), ("mlx5_0",), 2)


@pytest.mark.parametrize(("nccl", "read"), [("2.27.5", "INFO"), ("2.22.3", "WARN")])
def test_the_file_that_is_named_is_read_since_2_23(machine, nccl, read):
    host = machine({"/x.conf": "NCCL_DEBUG=INFO\n", "/h/.nccl.conf": "NCCL_DEBUG=WARN\n"}, environ={"HOME": "/h", "NCCL_CONF_FILE": "/x.conf"})
    assert {s.name: s.value for s in variables.collect(host, {"nccl": nccl}).settings}["NCCL_DEBUG"] == read


def test_odd_files(machine):
    host = machine({"/etc/nccl.conf": "=\n==\nA\n A=b \n\x00=1\n#N=1\nÄ=1\n"})
    assert [(s.name, s.value) for s in variables.collect(host).settings][:1] == [("A", "b")]
    assert variables.collect(machine()).interfaces is None


def test_this_machine_and_its_snapshot():
    seen = variables.collect(Host())
    taken = snapshot.take(Host(), only=["variables"])
    assert snapshot_file.decode(snapshot_file.encode(taken), name="x").get(variables.SUBJECT).libraries == seen.libraries
    assert variables.SUBJECT.summary(seen)


@pytest.mark.parametrize(
    "name", ["NCCL_DEBUG", "TORCH_NCCL_NAN_CHECK", "MASTER_ADDR", "GLOO_SOCKET_IFNAME", "PET_NNODES", "DEEPSPEED_TIMEOUT", "OMP_NUM_THREADS"]
)
def test_touches(name):
    assert variables.touches(name)


@pytest.mark.parametrize(
    "name", ["NCCL_VERSION", "NCCL_HOME", "LIBNCCL_PACKAGE", "PATH", "TORCH_HOME", "TORCH_CUDA_ARCH_LIST", "HF_TOKEN", "NV_LIBNCCL_PACKAGE"]
)
def test_does_not_touch(name):
    assert not variables.touches(name)


@for_each(
    ("name", "kept"),
    [
        *(
            (name, False)
            for name in ("NCCL_PSK", "ACCELERATE_API_KEY", "HF_TOKEN", "HFTOKEN", "TOKEN_X", "A_TOKENS", "WANDB_API_KEY", "A_KEY", "A_KEY2")
        ),
        *((name, False) for name in ("ACCELERATE_PASS", "A_TOKEN_LENGTH_TOKEN", "GITHUB_PAT", "DB_PWD", "X_APIKEY", "TOKEN", "MY_TOKEN_2")),
        *(
            (name, True)
            for name in ("TOKENIZERS_PARALLELISM", "TOKENIZER_PATH", "MAX_TOKENS", "NUM_TOKENS", "KEYBOARD", "NCCL_IB_PKEY", "NCCL_DEBUG")
        ),
        *((name, True) for name in ("FORWARD_COMPASS", "NCCL_PATH", "OMP_PATTERN", "TOKEN_LIMIT", "A_TOKEN_COUNT")),
    ],
)
def test_secrets(name, kept):
    assert (variables.kept(name, "v") == "v") is kept


@pytest.mark.parametrize("known", [True, False])
def test_interfaces_are_those_that_something_can_be_bound_to(machine, known):
    flags = {"eth0": ("0x1003", "up"), "off": ("0x1002", "down"), "unplugged": ("0x1003", "down"), "bare": ("0x1003", "up")}
    host = machine({f"/sys/class/net/{n}/{f}": text for n, two in flags.items() for f, text in zip(("flags", "operstate"), two, strict=True)})
    if known:
        host.interfaces = dict.fromkeys(("eth0", "off", "unplugged"), ("10.0.0.7/24",))
    seen = variables.collect(host)
    # Names alone tell nothing more where no address is known.
    assert set(seen.interfaces) == ({"eth0", "unplugged"} if known else set(flags))
    assert set(seen.running) == ({"eth0"} if known else set(flags))


def test_what_is_not_in_sys_is_not_here_and_without_sys_not_known(machine):
    assert variables.collect(machine({"/sys/class/net/eth0/mtu": "1500"})).adapters == ()
    assert variables.collect(machine()).adapters is None


# As torch.cuda counts them.
@for_each(
    ("value", "shown", "end"),
    [
        ("0,1", ("0", "1"), None),
        ("0,0", (), "0"),
        ("0,00", (), "00"),
        ("abc", (), "abc"),
        ("0,2,-1,1", ("0", "2"), "-1"),
        ("1x", ("1",), None),
        ("0,GPU-1", ("0",), "GPU-1"),
        ("GPU-1,2", ("GPU-1",), "2"),
        ("MIG-a/0/0,MIG-b", ("MIG-a/0/0", "MIG-b"), None),
        ("", (), ""),
    ],
)
def test_visible_gpus(value, shown, end):
    assert variables.visible_gpus(value) == (shown, end)


@pytest.mark.parametrize(("value", "gpus"), [(None, 2), ("1", 1), ("0,1,9", 2), ("9,0", 0), ("0,0", 0), ("-1", 0), ("GPU-1", 1)])
def test_gpus_that_a_process_sees(machine, value, gpus):
    bus = "/proc/driver/nvidia/gpus"
    host = machine({f"{bus}/0000:01:00.0": None, f"{bus}/0000:02:00.0": None}, environ={} if value is None else {"CUDA_VISIBLE_DEVICES": value})
    seen = variables.collect(host)
    assert (seen.gpus, seen.installed) == (gpus, 2)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("OMP_NUM_THREAD", "4", True),
        ("WOLRD_SIZE", "8", True),
        ("MASTER_PROT", "29500", True),
        ("CUDA_VISIBLE_DEVICE", "GPU-8932f937-d72c-4106", False),
        ("EDITOR", "vi", False),
        ("MYSQL_PW", "1234", False),
        ("TORCH_TOKEN", "abc", False),
    ],
)
def test_other_values_are_kept_where_they_are_plain_and_the_name_is_near(machine, name, value, shown):
    assert (variables.collect(machine(environ={name: value})).plain == {name: value}) is shown


def test_installed_libraries(machine):
    host = machine(
        {
            f"{SITE}/torch-2.9.1+cu128.dist-info": None,
            f"{SITE}/torch/lib/libtorch_cpu.so": "x",
            f"{SITE}/torch/lib/libcusparse.so": "x",
            f"{SITE}/nvidia_nccl_cu12-2.27.5.dist-info": None,
            f"{SITE}/nvidia/nccl/lib/libnccl.so.2": "x",
            f"{SITE}/LLaMA_Factory_Utils-1.0.dist-info": None,
            f"{SITE}/llamafactory-0.9.3.dist-info/direct_url.json": json.dumps({"url": "file:///src/LF", "dir_info": {"editable": True}}),
            "/src/LF/src/llamafactory/x.py": "",
            f"{SITE}/pytorch_lightning-2.5.0.dist-info": None,
            f"{SITE}/deepspeed-0.19.8.dist-info/direct_url.json": "not json",
        },
        environ={"VIRTUAL_ENV": "/opt/venv"},
    )
    found = {library.id: library for library in variable_readers.installed(host)}
    assert {id: one.version for id, one in found.items()} == {
        "torch": "2.9.1+cu128", "nccl": "2.27.5", "llamafactory": "0.9.3", "lightning": "2.5.0", "deepspeed": "0.19.8",
    }  # fmt: skip
    assert found["torch"].binaries == (f"{SITE}/torch/lib/libtorch_cpu.so",) and found["torch"].sources == (f"{SITE}/torch",)
    assert found["llamafactory"].sources == ("/src/LF/src/llamafactory",) and found["deepspeed"].sources == ()


def test_the_systems_nccl_where_there_is_no_torch(machine):
    host = machine({"/usr/lib/x86_64-linux-gnu/libnccl.so.2": "-> libnccl.so.2.22.3", "/usr/lib/x86_64-linux-gnu/libnccl.so.2.22.3": "x"})
    assert {one.id: one.version for one in variable_readers.installed(host)} == {"nccl": "2.22.3"}
    assert variable_readers.installed(machine()) == ()


@pytest.mark.parametrize(("rocm", "read"), [(True, "rccl"), (False, "nccl")])
def test_rccl_has_files_of_its_own(machine, rocm, read):
    host = machine(
        {f"{where}{which}.conf": f"NCCL_DEBUG={which}" for where in ("/h/.", "/etc/") for which in ("nccl", "rccl")}, environ={"HOME": "/h"}
    )
    (one,) = variables.collect(host, {"torch": "2.9.1"} | ({"rccl": ""} if rocm else {"nccl": "2.27.5"})).settings
    assert (one.value, one.source) == (read, f"/h/.{read}.conf")


def test_a_file_that_is_named_relative_is_read_where_we_stand(machine, tmp_path, monkeypatch):
    (tmp_path / "here.conf").write_text("NCCL_IB_TIMEOUT=22\n")
    monkeypatch.chdir(tmp_path)
    seen = variables.collect(Host(environ={"NCCL_CONF_FILE": "here.conf"}), {"nccl": "2.27.5"})
    assert ("NCCL_IB_TIMEOUT", str(tmp_path / "here.conf")) in {(s.name, s.source) for s in seen.settings} and not seen.missing
    # On a machine of which only the files are there nobody knows where a process is started.
    elsewhere = variables.collect(machine({"/here.conf": "NCCL_DEBUG=INFO\n"}, environ={"NCCL_CONF_FILE": "here.conf"}), {"nccl": "2.27.5"})
    assert [s.name for s in elsewhere.settings] == ["NCCL_CONF_FILE"]
    assert any("here.conf is relative" in one for one in elsewhere.unread) and not elsewhere.missing


@pytest.mark.parametrize(("nccl", "missing"), [("2.27.5", "/gone.conf"), ("2.22.3", "")])
def test_a_file_that_is_named_and_not_there(machine, nccl, missing):
    assert variables.collect(machine(environ={"NCCL_CONF_FILE": "/gone.conf", "HOME": "/h"}), {"nccl": nccl}).missing == missing
    assert variables.collect(machine(environ={"HOME": "/h"}), {"nccl": nccl}).missing == ""
