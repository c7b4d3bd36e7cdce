"""unhang presets, and the settings of unhang run: as the user meets them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from tests.tables import for_each

UNHANG = (sys.executable, "-m", "unhang")
RANK = """
import json, os, sys
import torch.distributed as dist
dist.init_process_group("gloo")
names = ("UNHANG_LOADER_WORKERS", "UNHANG_PIN_MEMORY", "UNHANG_TIMEOUT_S", "GLOO_SOCKET_IFNAME", "TORCH_FR_BUFFER_SIZE")
if dist.get_rank() == 1:
    print(json.dumps({"world": dist.get_world_size(), "argv": sys.argv[1:], **{n: os.environ.get(n) for n in names}}), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def unhang(*argv, cwd, **environ):
    env = {**os.environ, "LC_ALL": "C.UTF-8", **environ}
    return subprocess.run([*UNHANG, *argv], cwd=cwd, env=env, capture_output=True, text=True, timeout=110)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text(RANK)
    return tmp_path


def test_all_presets_are_listed_with_what_is_rejected_here(tmp_path):
    done = unhang("presets", cwd=tmp_path)
    assert done.returncode == 0
    for name in ("auto", "basic", "gpu-cache", "prefetch", "conservative", "single-node", "debug", "infiniband", "ethernet"):
        assert f"\n{name}  " in done.stdout
    assert "not set here: batch" in done.stdout


def test_one_preset_says_why_and_what_it_costs(tmp_path):
    done = unhang("presets", "gpu_cache", cwd=tmp_path)
    assert "gpu-cache = 5000" in done.stdout and "cost: GPU memory for that many samples" in done.stdout and "rejected here" in done.stdout
    chinese = unhang("presets", "gpu-cache", "--lang", "zh", cwd=tmp_path).stdout
    assert "代价" in chinese and "本机不接受" in chinese
    told = json.loads(unhang("presets", "gpu-cache", "--json", cwd=tmp_path).stdout)
    assert told["schema"] == "unhang/presets/1" and told["presets"][0]["settings"][-1]["value"] == 5000


@pytest.mark.parametrize("mapped", [False, True])
def test_only_the_flags_of_the_script_bring_it_a_batch(folder, mapped):
    """A preset is for any script: what only the script can do reaches it by [arguments] alone, and is said to be left out otherwise."""
    (folder / "unhang.toml").write_text('[arguments]\nbatch = "--bs"\ngpu-cache = "--cache"\n' if mapped else "")
    listed = unhang("presets", cwd=folder).stdout
    sets = listed.partition("\ngpu-cache  ")[2].partition("sets: ")[2].partition("cost:")[0]
    assert ("batch=1024" in sets, "gpu-cache=5000" in sets) == (mapped, mapped) and "loader-workers=1" in sets
    done = unhang("run", "--preset", "gpu-cache", "--dry-run", "--json", "--python", sys.executable, "train.py", cwd=folder)
    command = " ".join(json.loads(done.stdout)["command"])
    assert ("--bs 1024" in command, "--cache 5000" in command) == (mapped, mapped)
    text = unhang("run", "--preset", "gpu-cache", "--dry-run", "--python", sys.executable, "train.py", cwd=folder)
    assert ("[arguments] of unhang.toml has no flag for it" in text.stdout + text.stderr) == (not mapped)


def test_what_builds_on_a_preset_costs_what_that_costs_too(tmp_path):
    (tmp_path / "unhang.toml").write_text('[presets.mine]\nbase = "conservative"\nprefetch = 4\n')
    cost = {n: json.loads(unhang("presets", n, "--json", cwd=tmp_path).stdout)["presets"][0]["cost"] for n in ("basic", "gpu-cache", "mine")}
    assert cost["gpu-cache"] == f"{cost['basic']}; GPU memory for 5000 samples"
    assert cost["mine"].startswith("much slower") and cost["mine"].endswith("that of each setting of its own")


@pytest.mark.torch
def test_what_a_preset_shows_is_what_a_run_sets(tmp_path):
    for name in ("basic", "conservative"):
        [shown] = json.loads(unhang("presets", name, "--json", "--python", sys.executable, cwd=tmp_path).stdout)["presets"]
        argv = ("run", "--preset", name, "--dry-run", "--json", "--python", sys.executable, "true")
        done = json.loads(unhang(*argv, cwd=tmp_path).stdout)["settings"]
        [of_run] = [s["environment"] for s in done["settings"] if s["key"] == "loader-workers"]
        assert [s["sets"] for s in shown["settings"] if s["key"] == "loader-workers"] == [f"{n}={v}" for n, v in of_run.items()]


def test_all_settings_are_listed(tmp_path):
    done = unhang("presets", "--settings", cwd=tmp_path)
    assert "cumem-host  " in done.stdout and "values: on, off" in done.stdout
    assert len(json.loads(unhang("presets", "--settings", "--json", cwd=tmp_path).stdout)["settings"]) == 29


@for_each(
    ("argv", "says"),
    [
        (("presets", "consrvative"), "did you mean conservative?"),
        (("run", "--preset", "none", "true"), "presets: auto, basic"),
        (("run", "--set", "shn=off", "true"), "did you mean shm?"),
        (("run", "--set", "shm", "true"), "a value is missing"),
        (("run", "--set", "shm=maybe", "true"), "it is on or off"),
        (("run", "--fallback-limit", "29s", "true"), "it is a time from 30 seconds"),
        (("run", "--hang-after", "0.4", "true"), "it is a time from 0.5 seconds"),
        (("doctor", "--live", "--fix", "--fix-limit", "1x"), "such as 1800, 30m or 2h"),
        (("run", "--trial-limit", "1s", "true"), "a time from 5 seconds"),
        (("run", "--trial-limit", "soon", "true"), "such as 1800, 30m or 2h"),
        (("run", "--timeout", "soon", "true"), "such as 1800, 30m or 2h"),
        (("run", "--set", "timeout=60", "--timeout", "120", "true"), "--timeout 120 and --set timeout=60 contradict each other"),
        (("run", "--set", "backend=gloo", "--set", "backend=nccl", "true"), "--set backend=gloo and --set backend=nccl contradict each other"),
        (("run", "--set", "batch=8", "true"), "[arguments] of unhang.toml has no flag for it"),
        (("run", "--set", "batch=8", "true"), "change the number in the script, or give the script its own flag (train.py --batch-size 8)"),
        (("run", "--set", "interface=lo,nosuch0", "true"), "this machine has no nosuch0"),
        (("run", "--set", "interface=nosuch0", "true"), "interfaces of this machine: lo"),
    ],
)
def test_what_is_wrong_starts_nothing(tmp_path, argv, says):
    done = unhang(*argv, cwd=tmp_path)
    assert done.returncode == 2 and says in done.stderr and list(tmp_path.iterdir()) == []


def test_a_broken_unhang_toml_names_file_and_key(tmp_path):
    (tmp_path / "unhang.toml").write_text("[run]\nshm = 'maybe'\n")
    done = unhang("run", "true", cwd=tmp_path)
    assert done.returncode == 2 and f"{tmp_path / 'unhang.toml'}: [run] shm=maybe" in done.stderr


@pytest.mark.parametrize("argv", [("run", "true"), ("presets",)])
def test_an_unhang_toml_that_is_no_file_is_not_passed_over(tmp_path, argv):
    (tmp_path / "unhang.toml").mkdir()
    done = unhang(*argv, cwd=tmp_path)
    assert done.returncode == 2 and f"cannot read {tmp_path / 'unhang.toml'}: Is a directory" in done.stderr


def test_presets_in_a_circle_are_named(tmp_path):
    (tmp_path / "unhang.toml").write_text("[presets.a]\nbase = 'b'\n[presets.b]\nbase = 'c'\n[presets.c]\nbase = 'b'\n")
    done = unhang("run", "--preset", "a", "--dry-run", "true", cwd=tmp_path)
    assert done.returncode == 2 and "[presets.b] builds on itself: b -> c -> b" in done.stderr


@pytest.mark.parametrize(("environ", "in_file"), [({"NNODES": "2"}, False), ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, False), ({}, True)])
def test_an_interface_that_other_hosts_may_have_is_only_warned_of(tmp_path, environ, in_file):
    if in_file:
        (tmp_path / "unhang.toml").write_text("[run]\ninterface = 'nosuch0'\n")
    typed = () if in_file else ("--set", "interface=nosuch0")
    done = unhang("run", *typed, "--dry-run", "--python", sys.executable, "true", cwd=tmp_path, **environ)
    assert done.returncode == 0 and "this machine has no nosuch0 (it has lo" in done.stdout


def test_the_interface_that_a_remedy_names_can_be_typed(tmp_path):
    done = unhang("run", "--set", "interface=auto", "--dry-run", "--python", sys.executable, "true", cwd=tmp_path)
    assert done.returncode == 0 and "this machine has no" not in done.stdout + done.stderr


def test_a_preset_of_the_file_that_is_not_there_names_the_file(tmp_path):
    (tmp_path / "unhang.toml").write_text("[run]\npreset = 'basc'\n")
    done = unhang("run", "true", cwd=tmp_path)
    assert done.returncode == 2 and f"{tmp_path / 'unhang.toml'}: [run] preset: there is no preset 'basc'" in done.stderr
    assert "presets: auto, basic" in done.stderr


def test_a_preset_in_place_of_ours_is_called_so(tmp_path):
    (tmp_path / "unhang.toml").write_text("[presets.basic]\nloader-workers = 2\n[presets.small]\nbase = 'basic'\n")
    said = f"preset basic is the one of {tmp_path / 'unhang.toml'}, in place of unhang's own"
    assert unhang("presets", cwd=tmp_path, COLUMNS="250").stdout.count("in place of unhang's own") == 1
    assert said in unhang("presets", "basic", cwd=tmp_path, COLUMNS="250").stdout
    assert f"# {said}" in unhang("run", "--preset", "basic", "--dry-run", "--python", sys.executable, "true", cwd=tmp_path).stdout
    assert "in place of" not in unhang("run", "--preset", "debug", "--dry-run", "--python", sys.executable, "true", cwd=tmp_path).stdout


@pytest.mark.torch
def test_a_dry_run_shows_where_each_setting_comes_from(folder):
    (folder / "unhang.toml").write_text('[run]\npin_memory = true\n[arguments]\nbatch = "--batch-size"\n')
    done = unhang(
        "run", "-n", "4", "--preset", "conservative", "--timeout", "1h", "--set", "processes=2", "--dry-run", "train.py",
        cwd=folder, UNHANG_PERSISTENT_WORKERS="1",
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert "# timeout = 3600  [--timeout]  UNHANG_TIMEOUT_S=3600 " in done.stdout and "PET_RDZV_CONF=join_timeout=3600,timeout=3600" in done.stdout
    assert f"# pin-memory = on  [{folder / 'unhang.toml'} [run]]  UNHANG_PIN_MEMORY=1, read by unhang's hook" in lines
    assert "# UNHANG_PERSISTENT_WORKERS=1 was there already and is kept (persistent-workers would set 0)" in lines
    assert "# --nproc-per-node=4 was there already; processes sets 2" in lines
    assert "UNHANG_LOADER_WORKERS=0" in lines and "UNHANG_PERSISTENT_WORKERS=0" not in lines
    assert lines[-1].endswith("--nproc-per-node 2 train.py --batch-size 512")
    assert sorted(p.name for p in folder.iterdir()) == ["train.py", "unhang.toml"]


@pytest.mark.torch
def test_a_dry_run_as_json(folder):
    done = unhang("run", "--preset", "conservative", "--dry-run", "--json", "train.py", cwd=folder)
    told = json.loads(done.stdout)
    by_key = {s["key"]: s for s in told["settings"]["settings"]}
    assert told["settings"]["preset"] == "conservative" and told["environment"]["UNHANG_LOADER_WORKERS"] == "0"
    assert by_key["batch"]["refused"] and by_key["loader-workers"]["environment"] == {"UNHANG_LOADER_WORKERS": "0"}


@pytest.mark.torch
@pytest.mark.integration
def test_the_ranks_get_what_was_chosen(folder):
    (folder / "unhang.toml").write_text('[arguments]\nbatch = "--batch-size"\n')
    done = unhang(
        "run", "-n", "2", "--preset", "conservative", "--set", "interface=lo", "--set", "trace-entries=500", "--run-dir", "r", "train.py",
        cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (line,) = [x for x in done.stdout.splitlines() if x.startswith("{")]
    assert json.loads(line) == {
        "world": 2,
        "argv": ["--batch-size", "512"],
        "UNHANG_LOADER_WORKERS": "0",
        "UNHANG_PIN_MEMORY": "0",
        "UNHANG_TIMEOUT_S": "1800",
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCH_FR_BUFFER_SIZE": "500",
    }
    run = json.loads((folder / "r" / "run.json").read_bytes())
    assert run["settings"]["preset"] == "conservative" and run["environment"]["GLOO_SOCKET_IFNAME"] == "lo"
    assert "unhang: --set: interface=lo trace-entries=500" in done.stderr


NOT_ACTIVATED = "Usual cause: the environment of the training is not activated"


@pytest.mark.parametrize(
    ("argv", "says", "helps"),
    [
        (("--timeout", "30m"), "unhang: --timeout: {python} has no torch\n", NOT_ACTIVATED),
        (("--set", "timeout=30m"), "unhang: --set timeout: {python} has no torch\n", NOT_ACTIVATED),
        (("--set", "shm=off", "--set", "p2p=off"), "unhang: --set shm: {python} has no torch; nor p2p\n", NOT_ACTIVATED),
        (("--set", "batch=8"), "unhang: --set batch: only the script", "change the number in the script"),
    ],
)
def test_a_python_without_torch_is_named(tmp_path, argv, says, helps):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    done = unhang("run", "--python", str(python), *argv, "true", cwd=tmp_path)
    assert done.returncode == 2 and says.format(python=python) in done.stderr and helps in done.stderr
    if helps == NOT_ACTIVATED:
        done = unhang("run", "--python", str(python), *argv, "true", cwd=tmp_path, LC_ALL="zh_CN.UTF-8")
        assert f"{python} 中没有 torch" in done.stderr and "没有激活训练所用的环境" in done.stderr and "用 --python PATH 指定" in done.stderr


@pytest.fixture
def torchless(tmp_path):
    """A directory for the PATH whose python has no torch, and a script of a shell that starts another."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    (tmp_path / "train.py").write_text("import os\nprint('limit', os.environ.get('UNHANG_TIMEOUT_S'))\n")
    (tmp_path / "act.sh").write_text(f"{sys.executable} train.py\n")
    return python


def asked(tmp_path, torchless, *argv, **environ):
    """`unhang run` beside which there is no torch, as where it has an environment of its own."""
    beside = "import importlib.util as u; find = u.find_spec; u.find_spec = lambda n, *a: None if n == 'torch' else find(n, *a); "
    code = f"{beside}from unhang.cli.main import entry; entry()"
    env = {**os.environ, "LC_ALL": "C.UTF-8", "PATH": f"{torchless.parent}:{os.environ['PATH']}", **environ}
    return subprocess.run([sys.executable, "-c", code, "run", *argv], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=110)


@pytest.mark.parametrize(
    ("argv", "becomes"),
    [
        (("--timeout", "60"), "UNHANG_TIMEOUT_S=60"),
        (("--set", "loader-workers=0"), "UNHANG_LOADER_WORKERS=0"),
        (("--set", "shm=off"), "NCCL_SHM_DISABLE=1"),
        (("--preset", "conservative"), "UNHANG_LOADER_WORKERS=0"),
    ],
)
def test_a_script_of_a_shell_may_start_another_python(tmp_path, torchless, argv, becomes):
    done = asked(tmp_path, torchless, *argv, "--dry-run", "bash", "act.sh")
    assert done.returncode == 0, done.stderr
    (said,) = [line for line in done.stdout.splitlines() if "which Python bash starts is not known here" in line]
    assert f"({torchless} has none)" in said and becomes in done.stdout.splitlines()
    assert "torch 2." not in done.stdout


@pytest.mark.parametrize(
    ("argv", "says", "says_zh"),
    [
        (("--timeout", "60"), "releases, it is told where a rank does not take timeout; --python", "写出，如有 rank 未采用 timeout 会另行说明；可用"),
        (
            ("--set", "p2p=off", "--set", "shm=off"),
            "releases, whether ranks read the variables of p2p, shm is not known; --python",
            "写出，rank 是否读取 p2p、shm 的变量则无从得知；可用",
        ),
        (
            ("--set", "p2p=off", "--set", "loader-workers=0"),
            "releases, it is told where a rank does not take loader-workers, whether ranks read the variables of p2p is not known; --python",
            "写出，如有 rank 未采用 loader-workers 会另行说明，rank 是否读取 p2p 的变量则无从得知；可用",
        ),
    ],
)
def test_only_of_what_the_hook_applies_it_is_told_whether_ranks_take_it(tmp_path, torchless, argv, says, says_zh):
    assert says in asked(tmp_path, torchless, *argv, "--dry-run", "bash", "act.sh").stdout
    assert says_zh in asked(tmp_path, torchless, *argv, "--dry-run", "bash", "act.sh", LC_ALL="zh_CN.UTF-8").stdout


def test_what_it_starts_gets_the_setting(tmp_path, torchless):
    done = asked(tmp_path, torchless, "--timeout", "60", "bash", "act.sh", LC_ALL="zh_CN.UTF-8")
    assert done.returncode == 0 and done.stdout == "limit 60\n", done.stderr
    assert done.stderr.count("无法得知 bash 会启动哪个 Python") == 1


@pytest.mark.parametrize(
    ("argv", "helps"),
    [
        (("--timeout", "60", "python", "train.py"), "give the interpreter by its path: unhang run --timeout 60 /path/to/python train.py"),
        (
            ("--quiet", "--timeout", "60", "--", "python", "a b"),
            "give the interpreter by its path: unhang run --timeout 60 --quiet -- /path/to/python 'a b'",
        ),
        (
            ("--timeout", "60", "--python", sys.executable, "python", "train.py"),
            f"give the interpreter by its path: unhang run --timeout 60 {sys.executable} train.py",
        ),
        (
            ("--timeout", "60", "--run-dir", "r", "--forget", "python", "train.py"),
            "give the interpreter by its path: unhang run --timeout 60 --run-dir r --forget /path/to/python train.py",
        ),
        (("--timeout", "60", "torchrun", "train.py"), "give the launcher by its path: unhang run --timeout 60 /path/to/torchrun train.py"),
        (("--timeout", "60", "train.py"), "activate it, or name its Python with --python PATH"),
    ],
)
def test_a_command_that_is_a_python_without_torch(tmp_path, torchless, argv, helps):
    torchrun = torchless.with_name("torchrun")
    torchrun.write_text(f"#!{torchless}\n")
    torchrun.chmod(0o755)
    done = asked(tmp_path, torchless, *argv)
    assert done.returncode == 2 and f"{torchless} has no torch" in done.stderr
    assert f"Try: {helps}\n" in done.stderr
    assert "no effect" in done.stderr if "--python" in argv else "no effect" not in done.stderr


def test_what_is_to_be_typed_instead_of_a_number_before_a_python(tmp_path, torchless):
    done = asked(
        tmp_path, torchless, "-n", "2", "--set", "backend=gloo", "--run-dir", "r", "--python", sys.executable, "--", "python", "t.py", "--lr", "1"
    )
    assert done.returncode == 2
    assert f"Try: leave out the word python: unhang run -n 2 --set backend=gloo --python {sys.executable} --run-dir r -- t.py --lr 1\n" in done.stderr


def test_a_python_that_is_named_in_vain_is_told(tmp_path, torchless):
    said = f"--python {sys.executable} has no effect: python is itself a Python, {torchless}, and runs"
    done = asked(tmp_path, torchless, "--python", sys.executable, "python", "train.py")
    assert (done.returncode, done.stdout) == (0, "limit None\n") and said in done.stderr
    done = asked(tmp_path, torchless, "--python", sys.executable, "python", "train.py", LC_ALL="zh_CN.UTF-8")
    assert f"--python {sys.executable} 不起作用" in done.stderr
    assert "no effect" not in asked(tmp_path, torchless, "--python", str(torchless), "python", "train.py").stderr


def test_two_pythons_of_one_directory_are_the_same_where_their_names_lead_to_one(tmp_path, torchless):
    torchless.with_name("python3").symlink_to("python")
    torchless.with_name("python3.99").write_bytes(torchless.read_bytes())
    torchless.with_name("python3.99").chmod(0o755)
    (tmp_path / "link").symlink_to("bin")
    for python, told in (("python3", False), ("link/python", False), ("bin/../bin/python3", False), ("python3.99", True), (sys.executable, True)):
        done = asked(tmp_path, torchless, "--python", python, "--dry-run", "python", "train.py")
        assert (f"--python {python} has no effect" in done.stderr) is told, python


def test_a_python_that_a_launcher_does_not_run_is_told(tmp_path, torchless):
    torchrun = torchless.with_name("torchrun")
    torchrun.write_text(f'#!{torchless}\nprint("ran")\n')
    torchrun.chmod(0o755)
    other = tmp_path / "other" / "python"
    other.parent.mkdir()
    other.symlink_to(sys.executable)
    said = f"--python {other} has no effect: torchrun starts its ranks with its own Python, {torchless}"
    done = asked(tmp_path, torchless, "--python", str(other), "torchrun", "train.py")
    assert (done.returncode, done.stdout) == (0, "ran\n") and f"unhang: {said}\n" in done.stderr
    # Settings are for what really runs.
    refused = asked(tmp_path, torchless, "--python", str(other), "--timeout", "60", "torchrun", "train.py")
    assert refused.returncode == 2 and f"{torchless} has no torch" in refused.stderr
    beside = other.with_name("torchrun")
    beside.write_text(f"#!{other}\n")
    beside.chmod(0o755)
    done = asked(tmp_path, torchless, "--python", str(other), "torchrun", "train.py")
    assert f"unhang: {said}; name {beside} for the other one\n" in done.stderr
    refused = asked(tmp_path, torchless, "--python", str(other), "--timeout", "60", "torchrun", "train.py")
    assert f"give the launcher by its path: unhang run --timeout 60 {beside} train.py" in refused.stderr
    assert "不起作用：torchrun 用它自己的 Python" in asked(tmp_path, torchless, "--python", str(other), "torchrun", "x", LC_ALL="zh_CN.UTF-8").stderr
    for python, words in ((torchless, ("torchrun", "train.py")), (other, ("torchrun", "--no-python", "train.sh"))):
        assert "no effect" not in asked(tmp_path, torchless, "--python", str(python), *words).stderr
