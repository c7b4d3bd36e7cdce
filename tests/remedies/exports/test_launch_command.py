"""Commands behind --: launchers of which a form starts the script, and what no form carries."""

from __future__ import annotations

import shlex

import pytest
from tests.tables import for_each

from unhang.errors import UnhangError
from unhang.remedies import lint
from unhang.remedies.exports import forms
from unhang.remedies.exports.form_settings import Layout
from unhang.remedies.exports.launch_command import Typed, export, taken_apart
from unhang.report import language

SCRIPT = ("train.py", "--lr", "1")
TAKEN = [
    ("train.py --lr 1", Typed(command=SCRIPT)),
    ("train.py torchrun", Typed(command=("train.py", "torchrun"))),
    ("./train --lr 1", Typed(command=("./train", "--lr", "1"))),
    ("python train.py --lr 1", Typed(command=SCRIPT)),
    ("/usr/bin/python3.11 -u train.py --lr 1", Typed(command=SCRIPT)),
    ("python -m pkg.train --lr 1", Typed(command=("-m", "pkg.train", "--lr", "1"))),
    ("torchrun --nproc-per-node 4 train.py --lr 1", Typed(command=SCRIPT, processes=4)),
    ("torchrun --standalone --nproc_per_node=4 -m pkg.train", Typed(command=("-m", "pkg.train"), processes=4)),
    ("python -m torch.distributed.run --nproc-per-node=4 train.py --lr 1", Typed(command=SCRIPT, processes=4)),
    (
        "torchrun --nnodes 2 --node-rank 0 --master-addr node0 --master-port 1234 train.py --lr 1",
        Typed(command=SCRIPT, nodes=2, address="node0", port=1234),
    ),
    (
        "torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=node0:1234 train.py",
        Typed(command=("train.py",), nodes=2, address="node0", port=1234),
    ),
    ("torchrun --nnodes=1 --master-addr=localhost train.py", Typed(command=("train.py",), nodes=1)),
    ("accelerate launch train.py --lr 1", Typed(command=SCRIPT)),
    ("accelerate launch --multi_gpu --num_processes 8 --num_machines 2 train.py --lr 1", Typed(command=SCRIPT, nodes=2, processes=4)),
    ("deepspeed --num_gpus 8 train.py --deepspeed ds.json", Typed(command=("train.py", "--deepspeed", "ds.json"), processes=8)),
]


@for_each(("words", "typed"), TAKEN, ids=[t[0] for t in TAKEN])
def test_it_is_taken_apart(words, typed):
    assert taken_apart(shlex.split(words)) == typed


REFUSED = [
    ("torchrun --max-restarts 3 train.py", "torchrun --max-restarts 3: no form carries that"),
    ("torchrun --nproc-per-node gpu train.py", "needs a number"),
    ("torchrun --nnodes 1:4 train.py", "needs a number"),
    ("torchrun --nproc-per-node 2", "without a script"),
    ("torchrun --nproc-per-node 2 accelerate launch train.py", "inside of another"),
    ("accelerate launch --config_file a.yaml train.py", "no form carries that"),
    ("accelerate launch --num_processes 3 --num_machines 2 train.py", "does not divide"),
    ("deepspeed --include localhost:0,1 train.py", "no form carries that"),
    ("srun torchrun train.py", "srun in front of torchrun"),
    ("unhang run --set backend=gloo torchrun train.py", "unhang in front of torchrun"),
    ("conda run -n env torchrun train.py", "conda in front of torchrun"),
    ("bash train.sh", "bash is no script"),
    ("uv run train.py", "uv is no script"),
    ("llamafactory-cli train a.yaml", "starts torchrun by itself"),
    ("python", "name the script"),
    ("python -c pass", "name the script"),
]


@for_each(("words", "says"), REFUSED, ids=[r[0] for r in REFUSED])
def test_it_is_refused_in_one_line(words, says):
    with pytest.raises(UnhangError) as e:
        taken_apart(shlex.split(words))
    assert says in str(e.value) and "\n" not in str(e.value) and e.value.hint


@for_each("name", [n for n in forms.NAMES if n != "llamafactory"])
def test_a_module_is_started_as_one(name):
    layout = Layout(command=("-m", "pkg.train", "--lr", "1"))
    if name == "ray":
        with pytest.raises(UnhangError, match="not a module"):
            export(name, {}, layout)
        return
    found = export(name, {}, layout)
    whole = "".join((found.text, *found.companions.values()))
    words = whole.replace('", "', " ").replace("\n", " ")
    assert ("--module" if name == "deepspeed" else "-m") + " pkg.train --lr 1" in words
    assert name == "lightning" or all(lint.check("file", text)[1] == () for text in (found.text, *found.companions.values()))


@for_each("words", ["-m", "-m --lr 1", "--lr 1", "./train.sh", "numactl -N0 train.py", "torchrun --nproc-per-node 2 ./train.sh", "python train"])
@for_each("name", [n for n in forms.NAMES if n != "llamafactory"])
def test_what_is_no_script_is_not_exported(name, words):
    layout = Layout(command=taken_apart(shlex.split(words)).command)
    with pytest.raises(UnhangError, match=r"no script of Python|without a module|not a module") as e:
        export(name, {}, layout)
    assert e.value.hint


def test_that_is_said_in_chinese_too(monkeypatch):
    monkeypatch.setattr(language, "spoken", lambda: "zh")
    for words in (("./train.sh",), ("-m",), ("train.py", "\udce9")):
        with pytest.raises(UnhangError) as e:
            export("torchrun", {}, Layout(command=words))
        assert any("\u4e00" <= c <= "\u9fff" for c in language.refusal(str(e.value)))
