import importlib.util
import sys

import pytest

from unhang.errors import CommandNotFound, UnhangError
from unhang.launch.command import argument, check_reach, launcher, left_behind, master, option, resolve, with_settings


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A PATH with launchers of another environment, and a script in the current directory."""
    for name, first in {
        "torchrun": "#!/opt/env/bin/python3",
        "accelerate": "#!/usr/bin/env python3",
        "deepspeed": "#!/bin/sh",
        "python": "#!/bin/sh",
        "python3": "#!/bin/sh",
    }.items():
        file = tmp_path / "bin" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(first + "\n")
        file.chmod(0o755)
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def environ(path, **more):
    return {"PATH": str(path / "bin"), **more}


def test_script_runs_under_the_elastic_agent(path):
    command = resolve(["train.py", "--lr", "1"], nproc_per_node=4, environ=environ(path))
    assert command.argv[1:] == ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", "train.py", "--lr", "1")
    assert command.argv[0] == str(path / "bin" / "python")
    assert (command.world_size, command.name, command.port) == (4, "train", None)


def test_the_python_beside_us_where_it_has_torch(path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert resolve(["train.py"], environ=environ(path)).argv[0] == sys.executable


def test_module(path):
    command = resolve(["pkg.train", "x"], module=True, nproc_per_node=2, python=sys.executable, environ=environ(path))
    assert command.argv[-3:] == ("-m", "pkg.train", "x")
    assert (command.name, command.module) == ("train", "pkg.train")
    assert resolve(["train.py"], environ=environ(path)).module is None


@pytest.mark.parametrize(
    ("words", "world", "port"),
    [
        (["torchrun", "--nproc-per-node", "8", "train.py"], 8, None),
        (["torchrun", "--nproc_per_node=2", "--nnodes=4", "--master_port=29501", "train.py"], 8, 29501),
        (["torchrun", "--nproc-per-node=auto", "train.py"], None, None),
        (["torchrun", "--nnodes=1:4", "--nproc-per-node=8", "train.py"], None, None),
        (["accelerate", "launch", "--num_machines", "2", "--num_processes", "16", "train.py"], 16, None),
        (["accelerate", "launch", "--main_process_port", "29600", "train.py"], None, 29600),
        (["deepspeed", "--num_gpus=8", "train.py", "--num_gpus", "3"], 8, None),
        (["torchrun", "train.py", "--nproc-per-node", "3"], None, None),
        (["torchrun", "--nproc-per-node", "2", "-m", "pkg.train", "--num_nodes", "4", "--master_port", "1"], 2, None),
        (["torchrun", "--standalone", "--nproc-per-node=2", "train", "--nnodes", "4"], 2, None),
        (["python3", "-m", "torch.distributed.run", "--nproc-per-node", "2", "--", "train", "--nnodes", "4"], 2, None),
        (["accelerate", "launch", "--multi_gpu", "--num_processes", "2", "-m", "pkg.train", "--num_processes", "9"], 2, None),
        (["python3", "train.py", "--deepspeed", "--num_gpus", "8"], None, None),
    ],
)
def test_what_a_launcher_promises(path, words, world, port):
    command = resolve(words, environ=environ(path))
    assert command.argv[0] == str(path / "bin" / words[0])
    assert (command.world_size, command.port) == (world, port)


def test_port_from_the_environment(path):
    assert resolve(["torchrun", "train.py"], environ=environ(path, MASTER_PORT="29777")).port == 29777


def test_the_interpreter_of_a_console_script(path):
    assert resolve(["torchrun", "train.py"], environ=environ(path)).python == "/opt/env/bin/python3"
    assert resolve(["accelerate", "launch", "train.py"], environ=environ(path)).python == str(path / "bin" / "python3")
    assert resolve(["deepspeed", "train.py"], environ=environ(path)).python == str(path / "bin" / "python")


@pytest.mark.parametrize(
    ("first", "python"),
    [
        ("#!/usr/bin/env -S python3 -u", "python3"),
        ("#!/usr/bin/env -S LC_ALL=C python3", "python3"),
        ("#!/usr/bin/env python3.99", None),
        ("#!/usr/bin/env -S", None),
        ("#!/usr/bin/env", None),
        # pyenv puts this in the place of each program of all its Pythons.
        ('#!/usr/bin/env bash\nset -e\nprogram="${0##*/}"\nexec "/opt/pyenv/libexec/pyenv" exec "$program" "$@"', None),
    ],
)
def test_only_a_python_that_env_finds_is_one(path, first, python):
    for name in ("bash", "pyenv"):
        (path / "bin" / name).write_text("#!/bin/sh\n")
        (path / "bin" / name).chmod(0o755)
    (path / "bin" / "torchrun").write_text(first + "\n")
    command = resolve(["torchrun", "train.py"], environ=environ(path))
    expected = (str(path / "bin" / (python or "python")), "command" if python else "guess")
    assert (command.python, command.python_from) == expected


@pytest.mark.parametrize(
    ("line", "python"),
    [
        ("""'''exec' '/a long/path/python3.12' "$0" "$@" """, "/a long/path/python3.12"),
        ("""'''exec' "/a/path/python" "$0" "$@" """, "/a/path/python"),
        ("""'''exec' /a/path/python "$0" "$@" """, "/a/path/python"),
        ("""'''exec' "$(dirname -- "$(realpath -- "$0")")"/'python3' "$0" "$@" """, "{bin}/python3"),
    ],
)
def test_the_interpreter_behind_a_shell(path, line, python):
    (path / "bin" / "torchrun").write_text(f"#!/bin/sh\n{line}\n' {3 * chr(39)}\nimport sys\n")
    assert resolve(["torchrun", "train.py"], environ=environ(path)).python == python.format(bin=path / "bin")


@pytest.mark.parametrize(
    ("words", "options", "error", "text"),
    [
        ([], {}, UnhangError, "no command"),
        (["missing.py"], {}, CommandNotFound, "missing.py: no such file"),
        (["nosuchlauncher"], {}, CommandNotFound, "nosuchlauncher: no such command"),
        ([""], {}, CommandNotFound, "the command is empty"),
        (["here.sh"], {}, CommandNotFound, "./here.sh is not executable"),
        (["./here.sh"], {}, CommandNotFound, "./here.sh is not executable"),
        (["ready.sh"], {}, CommandNotFound, "ready.sh is not on the PATH, and a file of that name is here"),
        (["./bin"], {}, CommandNotFound, "./bin is a directory"),
        (["folder.py"], {}, CommandNotFound, "folder.py is a directory"),
        (["./none/x"], {}, CommandNotFound, "./none/x: no such file"),
        (["torchrun", "train.py"], {"nproc_per_node": 2}, UnhangError, "--nproc-per-node"),
        (["train.py"], {"python": "/no/python"}, CommandNotFound, "/no/python"),
    ],
)
def test_bad_input(path, words, options, error, text):
    (path / "here.sh").write_text("")
    (path / "ready.sh").write_text("")
    (path / "ready.sh").chmod(0o755)
    (path / "folder.py").mkdir()
    with pytest.raises(error, match=text):
        resolve(words, environ=environ(path), **options)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["python", "train.py", "--lr", "1"], "leave out the word python: unhang run -n 2 train.py --lr 1"),
        (["./bin/python", "train.py"], "leave out the word ./bin/python: unhang run -n 2 train.py"),
        (["python3.1", "train.py"], "leave out the word python3.1: unhang run -n 2 train.py"),
        # Another Python than a script would be started with.
        (["python3.11", "-u", "-m", "pkg.train"], "leave out the word python3.11: unhang run -n 2 --python python3.11 -m pkg.train"),
        (["python3", "train.py"], "leave out the word python3: unhang run -n 2 --python python3 train.py"),
        (["./env/bin/python", "train.py"], "leave out the word ./env/bin/python: unhang run -n 2 --python ./env/bin/python train.py"),
        (["python", "-c", "1"], "name a script that ends in .py, or a module: unhang run -n 2 train.py"),
        (["python", "-m", "torch.distributed.run", "train.py"], "give torchrun its own option for the number of processes"),
        (["deepspeed", "train.py"], "give deepspeed its own option for the number of processes"),
    ],
)
def test_a_number_of_processes_for_a_command_of_its_own(path, words, hint):
    # Environments are links to the Python that they were made with; in their own directories they are the same by any name.
    (path / "env" / "bin").mkdir(parents=True)
    (path / "env" / "bin" / "python").symlink_to(path / "bin" / "python")
    (path / "bin" / "python3.1").symlink_to("python")
    with pytest.raises(UnhangError, match="is for a Python script or module") as raised:
        resolve(words, nproc_per_node=2, environ=environ(path))
    assert raised.value.hint == hint


@pytest.mark.parametrize(
    ("typed", "words", "python", "hint"),
    [
        (["-n", "2", "--set", "backend=gloo"], ["python", "t.py", "--lr", "1"], None, "unhang run -n 2 --set backend=gloo t.py --lr 1"),
        (["-n", "2", "--python", "/p q/python"], ["python3", "t.py"], "/p q/python", "unhang run -n 2 --python '/p q/python' t.py"),
        (["-n", "2", "--"], ["python", "t.py", "--json"], None, "unhang run -n 2 -- t.py --json"),
        (["-n", "2", "--quiet", "--"], ["python3", "-m", "pkg.t"], None, "unhang run -n 2 --quiet --python python3 -m -- pkg.t"),
    ],
)
def test_all_that_was_typed_stays_where_a_word_is_left_out(path, typed, words, python, hint):
    with pytest.raises(UnhangError) as raised:
        resolve(words, nproc_per_node=2, python=python, typed=typed, environ=environ(path))
    assert raised.value.hint == f"leave out the word {words[0]}: {hint}"


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["train.py"], "torchrun"),
        (["torchrun", "train.py"], "torchrun"),
        (["accelerate", "launch", "train.py"], "accelerate"),
        (["deepspeed", "train.py"], "deepspeed"),
        (["python", "train.py"], "python"),
        (["python", "-m", "llamafactory.cli", "train", "a.yaml"], "llamafactory"),
    ],
)
def test_who_starts_the_processes(path, words, kind):
    assert launcher(resolve(words, environ=environ(path))) == kind


@pytest.mark.parametrize(
    ("words", "options", "expected", "world"),
    [
        (["torchrun", "--nproc_per_node=8", "train.py"], ("--nproc-per-node", "2"), ["--nproc-per-node", "2", "train.py"], 2),
        (["torchrun", "--standalone", "train.py", "--nproc-per-node", "9"], ("--nproc-per-node", "2"),
         ["--nproc-per-node", "2", "--standalone", "train.py", "--nproc-per-node", "9"], 2),
        (["accelerate", "launch", "--multi_gpu", "--num_processes", "8", "train.py"], ("--num_processes", "2"),
         ["launch", "--multi_gpu", "--num_processes", "2", "train.py"], 2),
        (["accelerate", "launch", "train.py"], ("--mixed_precision", "bf16"), ["launch", "--mixed_precision", "bf16", "train.py"], None),
        (["deepspeed", "--num_gpus", "8", "train.py"], ("--num_gpus", "1"), ["--num_gpus", "1", "train.py"], 1),
    ],
)  # fmt: skip
def test_options_of_a_launcher_take_the_place_of_those_that_are_there(path, words, options, expected, world):
    command = with_settings(resolve(words, environ=environ(path)), options=[options])
    assert list(command.argv[1:]) == expected and command.world_size == world


@pytest.mark.parametrize(
    ("words", "devices", "expected", "world"),
    [
        (["--include", "localhost:4,5,6,7", "train.py"], "", ["--include", "localhost:4,5", "train.py"], 2),
        (["--include=node3:4,5,6,7", "train.py"], "0,1", ["--include", "node3:4,5", "train.py"], 2),
        (["-i", "localhost:4,5,6,7", "train.py"], "", ["--include", "localhost:4,5", "train.py"], 2),
        (["-ilocalhost:4,5,6,7", "train.py"], "", ["--include", "localhost:4,5", "train.py"], 2),
        (["train.py", "--include", "x"], "4,5,6,7", ["--include", "localhost:4,5", "train.py", "--include", "x"], 2),
        (["--num_gpus", "4", "train.py"], "4,5,6,7", ["--num_gpus", "2", "train.py"], 2),
        (["train.py"], "", ["--num_gpus", "2", "train.py"], 2),
    ],
)
def test_deepspeed_keeps_to_the_gpus_that_it_was_given(path, words, devices, expected, world):
    command = resolve(["deepspeed", *words], environ=environ(path))
    found = with_settings(command, options=[("--num_gpus", "2")], environ={"CUDA_VISIBLE_DEVICES": devices})
    assert list(found.argv[1:]) == expected and found.world_size == world


@pytest.mark.parametrize(
    ("words", "devices"),
    [
        (["--include", "a:0@b:0"], ""),
        (["--include", "localhost"], ""),
        (["--exclude", "localhost:0"], ""),
        (["-elocalhost:0"], ""),
        ([], "GPU-1f,GPU-2f"),
        ([], "3"),
    ],
)
def test_gpus_that_deepspeed_cannot_be_told_of_are_refused(path, words, devices):
    command = resolve(["deepspeed", *words, "train.py"], environ=environ(path))
    with pytest.raises(UnhangError, match="deepspeed"):
        with_settings(command, options=[("--num_gpus", "2")], environ={"CUDA_VISIBLE_DEVICES": devices})


def test_one_process_is_not_multi_gpu(path):
    words = ["accelerate", "launch", "--mixed_precision", "bf16", "--multi_gpu", "--num_processes", "8", "train.py", "--multi_gpu"]
    found = with_settings(resolve(words, environ=environ(path)), options=[("--num_processes", "1")])
    assert list(found.argv[1:]) == ["launch", "--mixed_precision", "bf16", "--num_processes", "1", "train.py", "--multi_gpu"]


def test_processes_of_a_script(path):
    command = resolve(["train.py", "--lr", "1"], nproc_per_node=4, environ=environ(path))
    assert option(command, "--nproc_per_node") == "4"
    command = with_settings(command, options=[("--nproc-per-node", "2")], arguments=["--batch", "8"])
    assert command.argv[1:] == ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py", "--lr", "1", "--batch", "8")
    assert command.world_size == 2


def test_an_option_of_no_known_launcher(path):
    with pytest.raises(UnhangError, match="no option --nproc-per-node"):
        with_settings(resolve(["python", "train.py"], environ=environ(path)), options=[("--nproc-per-node", "2")])


def test_fields_of_llama_factory_are_flags_without_a_file(path):
    words = ["python", "-m", "llamafactory.cli", "train"]
    with_file = with_settings(resolve([*words, "a.yaml"], environ=environ(path)), arguments=["ddp_timeout=60"])
    assert with_file.argv[-2:] == ("a.yaml", "ddp_timeout=60")
    without = with_settings(resolve([*words, "--stage", "sft"], environ=environ(path)), arguments=["ddp_timeout=60"])
    assert without.argv[-1] == "--ddp_timeout=60"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["torchrun", "--nnodes", "2", "--rdzv-endpoint", "node1:29400", "train.py"], ("node1", 2)),
        (["torchrun", "--nnodes=1:4", "--rdzv_endpoint=[fd00::1]:29400", "train.py"], ("fd00::1", 4)),
        (["torchrun", "--master-addr", "10.0.0.1", "train.py"], ("10.0.0.1", None)),
        (["accelerate", "launch", "--main_process_ip", "10.0.0.1", "--num_machines", "2", "train.py"], ("10.0.0.1", 2)),
        (["train.py"], (None, None)),
    ],
)
def test_where_the_ranks_meet(path, words, expected):
    assert master(resolve(words, environ=environ(path))) == expected


def test_flags_of_the_script_that_are_there(path):
    command = resolve(["train.py", "--batch", "8", "--lr=1", "ddp_timeout=5", "--last"], environ=environ(path))
    assert [argument(command, flag) for flag in ("--batch", "--lr", "ddp_timeout", "--last", "--no")] == ["8", "1", "5", "", None]


def test_what_the_file_of_llama_factory_says(path, tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("ddp_timeout: 180000000\nbf16: true\nlr: [1]\n")
    command = resolve(["python", "-m", "llamafactory.cli", "train", str(file), "bf16=false"], environ=environ(path))
    assert [argument(command, f) for f in ("ddp_timeout", "bf16", "lr", "batch")] == ["180000000", "false", None, None]
    file.write_text("{: [")
    assert argument(command, "ddp_timeout") is None


SEVERAL = "# first\nworker-0 slots=8\n\nworker-1 slots=8\n"


@pytest.mark.parametrize(
    ("hosts", "words", "refused"),
    [
        (SEVERAL, "--hostfile hosts", True),
        (SEVERAL, "-H hosts --launcher openmpi", True),
        (SEVERAL, "--hostfile=hosts --exclude worker-1:0", True),
        (SEVERAL, "--hostfile hosts --include worker-0@worker-1:0,1", True),
        ("worker-0 slots=8\n", "--hostfile hosts --force_multi", True),
        ("worker-0 slots=8\n", "--hostfile hosts", False),
        (SEVERAL, "--hostfile hosts --no_ssh --node_rank 0", False),
        (SEVERAL, "--hostfile hosts --launcher slurm", False),
        (SEVERAL, "--hostfile hosts --include worker-1:0,1", False),
        (SEVERAL, "--hostfile hosts --exclude worker-1", False),
        (SEVERAL, "--hostfile hosts --num_nodes 1", False),
        (SEVERAL, "--hostfile elsewhere", False),
        (SEVERAL, "--num_gpus 2", False),
    ],
)
def test_what_only_the_hook_applies_is_refused_where_deepspeed_leaves_it_behind(path, hosts, words, refused):
    (path / "hosts").write_text(hosts)
    command = resolve(["deepspeed", *words.split(), "train.py"], environ=environ(path))
    check_reach(command, {"NCCL_DEBUG": "INFO", "UNHANG_BACKEND": ""}, hostfile=path / "none")
    (path / ".deepspeed_env").write_text("OMP_NUM_THREADS=4\n")
    mine = {"HOME": str(path), "GLOO_SOCKET_IFNAME": "eth1", "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    left = left_behind(command, mine, hostfile=path / "none")
    assert (left and left[1]) == (("GLOO_SOCKET_IFNAME=eth1", "TORCH_DISTRIBUTED_DEBUG=DETAIL") if refused else None)
    wish = {"UNHANG_BACKEND": "gloo"}
    if refused:
        with pytest.raises(UnhangError, match="UNHANG_BACKEND: only unhang's hook applies that"):
            check_reach(command, wish, hostfile=path / "none")
    else:
        check_reach(command, wish, hostfile=path / "none")


def test_the_hostfile_that_deepspeed_reads_by_itself_counts(path):
    (path / "hosts").write_text(SEVERAL)
    with pytest.raises(UnhangError, match="on 2 hosts"):
        check_reach(resolve(["deepspeed", "train.py"], environ=environ(path)), {"UNHANG_TIMEOUT_S": "60"}, hostfile=path / "hosts")
    check_reach(resolve(["torchrun", "train.py"], environ=environ(path)), {"UNHANG_TIMEOUT_S": "60"}, hostfile=path / "hosts")
