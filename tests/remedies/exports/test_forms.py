"""Every form: read by its own parser, clean by --check, and words that would do harm stay words."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.chinese import zh
from tests.tables import for_each

from unhang.errors import UnhangError
from unhang.remedies import lint
from unhang.remedies.exports import forms
from unhang.remedies.exports.form_settings import Layout, master
from unhang.remedies.exports.forms import shell
from unhang.remedies.exports.launch_command import export
from unhang.settings.catalogue import PRESETS, SETTINGS, parse

CHOICES = {"default": {}, "gloo": {"backend": "gloo"}, "conservative": PRESETS["conservative"].settings, "debug": PRESETS["debug"].settings}
HOSTILE = (
    "train.py",
    "a b",
    "it's",
    'say "x"',
    "$(touch harm)",
    "`touch harm`",
    "two\nlines",
    "# no comment",
    "{{ 7 * 7 }}",
    "${HOME}",
    "$(HOME)",
    "$$",
    "a: b",
)
YAML = ("accelerate", "llamafactory", "kubernetes", "kubernetes-job", "skypilot")
# `--check` reads no Python.
PYTHON = ("lightning", "ray")


def parsed(name, text):
    if name in YAML:
        return list(yaml.safe_load_all(text))
    if name == "deepspeed" and text.startswith("{"):
        return json.loads(text)
    if name in PYTHON:
        return compile(text, name, "exec")
    if name == "dockerfile":
        assert all(not line or line.split()[0] in ("#", "FROM", "WORKDIR", "RUN", "ENV", "COPY", "ENTRYPOINT") for line in text.splitlines())
        return json.loads(text.splitlines()[-1].partition(" ")[2])
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr
    if shutil.which("shellcheck"):
        told = subprocess.run(["shellcheck", "--exclude=SC2016", "-"], input=text, capture_output=True, text=True, timeout=60, check=False)
        assert told.returncode == 0, told.stdout
    return text


def read_back(name, file, text, **counts):
    if name in PYTHON:
        assert compile(text, file, "exec") and "--check" not in text
        return name, ()
    return lint.check(file, text, **counts)


@for_each("nodes", [1, 2])
@for_each("choice", CHOICES)
@for_each("name", forms.NAMES)
def test_is_valid_and_clean(name, choice, nodes):
    if name == "bash" and nodes > 1:
        with pytest.raises(UnhangError, match="one host"):
            export(name, CHOICES[choice], Layout(nodes=nodes))
        return
    found = export(name, CHOICES[choice], Layout(nodes=nodes))
    assert found.text.endswith("\n")
    for text in (found.text, *found.companions.values()):
        assert parsed(name, text)
        assert read_back(name, "file", text, nodes=nodes, processes=2) == (name if text == found.text else "bash", ())


@for_each("processes", [1, 2, 8])
@for_each("nodes", [1, 2])
@for_each("name", forms.NAMES)
def test_every_preset_and_layout_reads_back_clean(name, nodes, processes, tmp_path):
    if name == "bash" and nodes > 1:
        return
    for choice, gpus, address in itertools.product(({}, {"backend": "gloo"}, *(p.settings for p in PRESETS.values())), (True, False), ("", "node0")):
        found = export(name, choice, Layout(nodes=nodes, processes=processes, gpus=gpus, address=address))
        for behind, text in {"": found.text, **found.companions}.items():
            file = forms.form(name).file + behind
            assert read_back(name, file, text, nodes=nodes, processes=processes) == ("bash" if behind else name, ()), text
            if name in YAML:
                assert list(yaml.safe_load_all(text))


VALUES = ("on", "off", "0", "1", "2", "16", "45", "30m", "auto", "eth0", "gloo", "nccl", "bf16", "no", "INFO", "warn", "Ring", "Simple")
COMMANDS = st.sampled_from(((), ("train.py", "--lr", "1e-4", "it's"), ("-m", "pkg.mod", "-x"), ("a b.py",)))


def taken(setting):
    """Values that it takes, its example among them."""
    found = []
    for text in (setting.example, *VALUES):
        with contextlib.suppress(UnhangError):
            found.append(parse(setting.key, text))
    return st.sampled_from(found)


LAYOUTS = st.fixed_dictionaries(
    {
        "nodes": st.sampled_from((1, 2, 3)),
        "processes": st.sampled_from((1, 2, 8)),
        "gpus": st.booleans(),
        "address": st.sampled_from(("", "node0", "fd00::1")),
        "given_port": st.sampled_from((None, 29501)),
        "command": COMMANDS,
    }
)


@pytest.mark.parametrize("name", forms.NAMES)
@given(
    choice=st.fixed_dictionaries({}, optional={key: taken(one) for key, one in SETTINGS.items() if key != "processes"}),
    layout=LAYOUTS,
    with_unhang=st.sampled_from((None, True, False)),
    arguments=st.sampled_from(({}, {"batch": "--batch-size", "precision": "--precision"})),
)
def test_whatever_is_written_reads_back_clean(name, choice, layout, with_unhang, arguments):
    # What is wrong with the choice itself is told whoever has made it: GPUs of one host that talk over the network, tries that outlast the timeout.
    if choice.get("shm") is False:
        choice.pop("p2p", None)
    if choice.get("timeout", 1800) < 600:
        choice.pop("ib-timeout", None)
    where = Layout(**{**layout, "command": ()} if name == "llamafactory" else layout)
    try:
        found = export(name, choice, where, with_unhang=with_unhang, arguments=arguments)
    except UnhangError:
        return
    for behind, text in {"": found.text, **found.companions}.items():
        for counts in ({}, {"nodes": where.nodes, "processes": where.processes}):
            form, problems = read_back(name, forms.form(name).file + behind, text, **counts)
            assert (form, [p for p in problems if not p.note]) == ("bash" if behind else name, []), text
        assert not any(line != line.rstrip() or re.match(r"\S+ NOT carried: \S+=(True|False):", line) for line in text.splitlines()), text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("stag=sft",), "no field `stag`"),
        (("dataset=a", "mine=1"), "no field `mine`"),
        (("stage=nope",), "stage is nope"),
        (("bf16=true", "fp16=true"), "bf16 and fp16 are both on"),
        (("dataloader_prefetch_factor=2",), "without workers"),
    ],
)
def test_fields_that_llamafactory_refuses_are_not_written(words, says):
    with pytest.raises(UnhangError, match=re.escape(says)) as e:
        export("llamafactory", {}, Layout(command=words))
    assert e.value.hint and zh(e.value.message)
    assert ("LLaMA-Factory" in e.value.hint) == (says == "no field `mine`") or says == "bf16 and fp16 are both on"


@for_each("name", [n for n in forms.NAMES if n not in ("llamafactory",)])
def test_hostile_words_stay_words(name, tmp_path):
    found = export(name, {"backend": "gloo", "interface": "eth0"}, Layout(command=HOSTILE, image="a/b:c"))
    texts = {"": found.text, **found.companions}
    for text in texts.values():
        got = parsed(name, text)
    assert "49" not in found.text.replace("{{ 7 * 7 }}", "").replace("29500", "")
    if name == "kubernetes":
        assert of_kubernetes(got[1]["spec"]["trainer"]["command"])[-len(HOSTILE) :] == list(HOSTILE)
    if name == "kubernetes-job":
        assert of_kubernetes(got[0]["spec"]["template"]["spec"]["containers"][0]["command"])[-len(HOSTILE) :] == list(HOSTILE)
    if name == "dockerfile":
        assert tuple(got[-len(HOSTILE) :]) == HOSTILE
    if name == "ray":
        line = next(line for line in found.text.splitlines() if line.startswith("SCRIPT = "))
        assert eval(line.removeprefix("SCRIPT = ")) == list(HOSTILE)
    if name in ("torchrun", "slurm", "bash", "deepspeed", "skypilot"):
        script = yaml.safe_load(found.text)["run"] if name == "skypilot" else found.companions.get(".start.sh", found.text)
        assert started(script, tmp_path, "1" if name == "bash" else "ds.json")[: len(HOSTILE)] == list(HOSTILE)
        assert not (tmp_path / "harm").exists()


def of_kubernetes(words):
    """As a container gets them: $(NAME) is a variable, $$ one $."""
    return [re.sub(r"\$(\$|\((\w+)\))", lambda m: "$" if m[1] == "$" else f"<{m[2]}>", word) for word in words]


def started(script, tmp_path, first):
    """The words behind the last option that a launcher is started with, from a script that is run with a launcher that prints them."""
    bin = tmp_path / "bin"
    bin.mkdir()
    for name in ("unhang", "torchrun", "deepspeed"):
        (bin / name).write_text('#!/bin/bash\nprintf "%s\\0" "$@"\n')
        (bin / name).chmod(0o755)
    (bin / "srun").write_text('#!/bin/bash\nshift; exec "$@"\n')
    (bin / "srun").chmod(0o755)
    (bin / "scontrol").write_text("#!/bin/bash\necho node0\n")
    (bin / "scontrol").chmod(0o755)
    env = {"PATH": f"{bin}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[0-1]", "HOME": str(tmp_path)}
    done = subprocess.run(
        ["bash", "-c", script, "bash", first], env=env, cwd=tmp_path, capture_output=True, timeout=20, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    words = done.stdout.decode().split("\0")
    return words[words.index("train.py") :]


def test_gloo_is_each_forms_own_way():
    texts = {name: export(name, {"backend": "gloo"}, Layout()) for name in forms.NAMES}
    assert "backend" not in yaml.safe_load(texts["accelerate"].text)
    assert "unhang run --set backend=gloo accelerate launch" in texts["accelerate"].text
    assert yaml.safe_load(texts["llamafactory"].text)["ddp_backend"] == "gloo"
    assert 'process_group_backend="gloo"' in texts["lightning"].text
    assert 'TorchConfig(backend="gloo"' in texts["ray"].text
    assert "--set backend=gloo deepspeed" in texts["deepspeed"].companions[".start.sh"]
    for name in ("torchrun", "slurm", "skypilot"):
        assert "unhang run --set backend=gloo torchrun" in texts[name].text
    assert not any("UNHANG_" in one.text for one in texts.values())


def test_fields_of_llamafactory_keep_their_type():
    """Its reader of files converts nothing: "5" > 0 would end it."""
    given = {"max_steps": 5, "learning_rate": 1e-4, "use_cpu": True, "save_strategy": "no", "dataset": "a,b", "resume_from_checkpoint": None}
    words = [f"{key}={'null' if value is None else value}" for key, value in given.items()]
    read = yaml.safe_load(export("llamafactory", {}, Layout(command=(*words, "lora_target=[1, 2]"))).text)
    assert {key: read[key] for key in given} == given
    assert read["lora_target"] == [1, 2]


def test_fields_of_llamafactory_keep_their_types():
    command = ("cutoff_len=1024", "learning_rate=1e-5", "do_eval=false", "run_name=it's 1", "output_dir=a b/$x", "seed=nan")
    text = export("llamafactory", {}, Layout(command=command)).text
    read = yaml.safe_load(text)
    assert (read["cutoff_len"], read["learning_rate"], read["do_eval"]) == (1024, 0.00001, False)
    assert (read["run_name"], read["output_dir"], read["seed"]) == ("it's 1", "a b/$x", "nan")


@pytest.mark.parametrize("choice", [{}, {"backend": "gloo"}])
def test_deepspeed_on_several_hosts_has_a_hostfile_and_leaves_none(choice, tmp_path):
    # Without one it refuses --num_nodes above 1.
    script = export("deepspeed", choice, Layout(nodes=2, processes=8, address="node0")).companions[".start.sh"]
    bin, left = tmp_path / "bin", tmp_path / "left"
    bin.mkdir()
    left.mkdir()
    # As DeepSpeed looks for it: a regular file, opened anew. unhang run hands its children none of its files.
    reads = (
        "import os, sys\nfor word in sys.argv[1:]:\n  print(word)\n  name, _, path = word.partition('=')\n"
        "  if name == '--hostfile':\n    assert os.path.isfile(path)\n    print(open(path).read())\n"
    )
    (bin / "deepspeed").write_text(f"#!{sys.executable}\n{reads}")
    (bin / "unhang").write_text(f"#!{sys.executable}\nimport subprocess, sys\nsys.exit(subprocess.run(sys.argv[4:], close_fds=True).returncode)\n")
    for one in bin.iterdir():
        one.chmod(0o755)
    env = {"PATH": f"{bin}:{os.environ['PATH']}", "NODE_RANK": "1", "TMPDIR": str(left)}
    done = subprocess.run(["bash", "-c", script, "bash", "ds.json"], env=env, capture_output=True, text=True, timeout=20, check=True)
    assert not list(left.iterdir())
    words = done.stdout.splitlines()
    assert words[1:3] == ["host-0 slots=8", "host-1 slots=8"] and {"--no_ssh", "--node_rank=1", "--master_addr=node0"} <= set(words)


def test_accelerate_on_cpus_starts_what_it_says():
    # MULTI_CPU starts a single process, whatever num_processes is.
    text = export("accelerate", {}, Layout(gpus=False)).text
    assert yaml.safe_load(text)["distributed_type"] == "MULTI_GPU" and "env ACCELERATE_USE_CPU=true accelerate launch" in text


def test_nothing_is_dropped_in_silence():
    choice = PRESETS["conservative"].settings
    for name in forms.NAMES:
        for through in (None, False):
            if through is False and name == "bash":
                continue
            found = export(name, choice, Layout(), with_unhang=through)
            whole = "".join((found.text, *found.companions.values()))
            for key in choice:
                refused = key in {r.key for r in found.refused}
                native = key in forms.form(name).native
                spelt = f"--set {key}=" in whole or f'"{key}=' in whole or f"# {key}" in whole or key in ("cumem-host", "p2p", "ib", "nvls", "debug")
                assert refused or native or spelt, (name, through, key)
                if refused and name != "deepspeed":
                    assert f"NOT carried: {key}=" in whole


def test_workers_that_are_not_there_are_refused():
    for name in ("lightning", "llamafactory"):
        found = export(name, {"prefetch": 2, "persistent-workers": True}, Layout())
        assert {r.key for r in found.refused} == {"prefetch", "persistent-workers"}
        assert "prefetch_factor" not in found.text.replace("NOT carried", "")
        assert not export(name, {"prefetch": 2, "loader-workers": 1}, Layout()).refused


def test_the_menu_begins_with_the_first_way_without_a_terminal(tmp_path):
    script = export("bash", {}, Layout()).text
    bin = tmp_path / "bin"
    bin.mkdir()
    (bin / "unhang").write_text('#!/bin/bash\necho "$@"\n')
    (bin / "unhang").chmod(0o755)

    def run(*words):
        env = {"PATH": f"{bin}:{os.environ['PATH']}"}
        return subprocess.run(
            ["bash", "-c", script, "bash", *words], env=env, capture_output=True, text=True, timeout=20, check=False, stdin=subprocess.DEVNULL
        )

    assert run().stdout == "run --set backend=gloo torchrun --standalone --nproc-per-node=2 train.py\n"
    assert "--set shm=off" in run("2").stdout and "--nproc-per-node=1" in run("3", "--lr", "1").stdout
    assert run("doctor").stdout == "doctor --live\n" and run("4").returncode == 2


@pytest.mark.parametrize("text", ["a", "a b", "it's", "two\nlines\t'x'\\", "\x01", "$(x)", ""])
def test_a_word_of_bash_is_one_word_on_one_line(text):
    assert "\n" not in shell(text)
    done = subprocess.run(["bash", "-c", f"printf %s {shell(text)}"], capture_output=True, timeout=20, check=True)
    assert done.stdout.decode() == text
    if "\n" not in text and "\x01" not in text:
        assert shlex.split(shell(text)) == [text]


@pytest.mark.parametrize("wrong", [{"nodes": 0}, {"given_port": 70000}, {"name": "A b"}, {"address": "a;b"}, {"image": "a b"}, {"command": ("a\0",)}])
def test_a_layout_that_no_launcher_takes(wrong):
    with pytest.raises(UnhangError):
        Layout(**wrong)


@for_each("nodes", [1, 2])
@for_each("name", [n for n in forms.NAMES if n != "bash"])
def test_what_a_form_says_that_it_has_a_place_for_stands_in_its_file(name, nodes):
    marks = {"address": "node77", "port": "23456", "name": "tune-it", "image": "my/image:7"}
    found = export(name, {}, Layout(nodes=nodes, address="node77", given_port=23456, name="tune-it", image="my/image:7"))
    texts = [line for text in (found.text, *found.companions.values()) for line in text.splitlines() if "NOT carried" not in line]
    there = {what for what, mark in marks.items() if any(mark in line for line in texts)}
    layout = Layout(nodes=nodes)
    assert there == {what for what in marks if forms.form(name).has_place_for(what, layout)}
    assert {r.key.removeprefix("master ") for r in found.refused} == {"address", "port"} - there
    assert all(name in forms.with_place_for(what, layout) for what in there)


@for_each("name", forms.NAMES)
def test_flags_of_the_script_are_carried_by_every_form(name):
    found = export(name, {"gpu-cache": 5000}, Layout(), arguments={"gpu-cache": "--cache-size"})
    assert not found.refused
    text = "\n".join((found.text, *found.companions.values()))
    assert re.search(r"--cache-size\W+5000\b", text)


def test_a_port_that_was_named_is_slurms(tmp_path):
    plain, named = (export("slurm", {}, Layout(nodes=2, given_port=port)).text for port in (None, 12345))
    assert "SLURM_JOB_ID % 20000" in plain and 'MASTER_PORT="${MASTER_PORT:-12345}"' in named and "% 20000" not in named
    assert lint.check("train.sbatch", named, nodes=2, processes=2) == ("slurm", ())


def test_masters():
    assert master("node0") == ("node0", None) and master("node0:1234") == ("node0", 1234)
    assert master("[fe80::1]:99") == ("fe80::1", 99) and master("fe80::1") == ("fe80::1", None)


def test_an_unknown_form_lists_all():
    with pytest.raises(UnhangError, match="accelrate") as e:
        forms.form("accelrate")
    assert all(name in e.value.hint for name in forms.NAMES)


@for_each("name", forms.NAMES)
def test_how_unhang_is_installed_is_true(name):
    """No package index has it: its name there could be anybody's."""
    found = export(name, {"backend": "gloo"}, Layout())
    for text in (found.text, *found.companions.values()):
        assert not re.search(r"pip install [^.\n]*\bunhang\b", text.replace("/opt/unhang", ".").replace("./unhang", "."))
