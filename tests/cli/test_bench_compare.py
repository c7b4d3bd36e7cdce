"""`unhang bench compare` before anything is started: its arms, and what it refuses."""

import json
import sys
from dataclasses import replace

import msgspec
import pytest
from tests.chinese import zh

from unhang import encoding
from unhang.bench.effective_settings import ARGUMENTS
from unhang.bench.records import Asked
from unhang.cli import app, bench_compare
from unhang.errors import UnhangError
from unhang.launch import command as commands
from unhang.report import language

ASKED = Asked(
    words=("train.py", "--token", "[redacted]"), hides=True, cwd="", arms={"a": "none", "b": "detail=on"}, argument=None, module=False,
    nproc_per_node=2, python=None, seed=1, margin=0.01, budget_s=60.0, steps=30,
)  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "batch.py").write_text("")
    (tmp_path / "bench").mkdir()
    language.chosen(None)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--a none train.py", "there is nothing to compare: --a and --b are needed, or --arg"),
        ("--a none --c detail=on train.py", "there is nothing to compare: --a and --b are needed, or --arg"),
        ("--a none --b detail=on", "no command to run"),
        ("--a none --b none train.py", "arms a and b are the same: none, none"),
        ("--a none --arg batch=1,2 train.py", "--arg and --a: choose one"),
        ("--arg batch=1 train.py", "--arg batch=1: it is a name and two values or more"),
        ("--arg batch=1,1 train.py", "arms a and b are the same: batch=1, batch=1"),
        (f"--arg lr={','.join(map(str, range(27)))} train.py", "--arg lr: 27 values are more than 26 arms"),
        ("--a none --b batch=512 train.py", "the batch of arm a is not known, and arm b sets 512"),
        ("--a batch=8 --b none train.py --accumulation 2", "the batch of arm b is not known, and arm a sets 8"),
        ("--a none --b accumulation=4 train.py --batch 8", "the accumulation of arm a is not known, and arm b sets 4"),
        ("--a none --b processes=4 -n 2 train.py", "a step has other samples in each arm, and the batch of a rank is not known"),
        ("--arg accumulation=1,2 train.py", "a step has other samples in each arm, and the batch of a rank is not known"),
        ("--a none --b detail train.py", "there is no preset 'detail'"),
        ("--a none --b auto,detail=on train.py", "there is no setting 'auto,detail'"),
        ("--a none --b detail=maybe train.py", "detail=maybe: "),
        ("--a shm=on --b shm=off train.py", "--a shm: "),
        ("--a none --b env.FROM_OUTSIDE=1 train.py", "arms a and b are the same: none, env.FROM_OUTSIDE=1"),
        ("--a none --b env.OMP_NUM_THREADS train.py", "--b env.OMP_NUM_THREADS: it is a variable and its value"),
        ("--a none --b env.9=1 train.py", "--b env.9=1: it is a variable and its value"),
        ("--a none --b env.OMP_NUM_THREADS=many train.py", "--b env.OMP_NUM_THREADS=many: it takes "),
        ("--a none --b env.OMP_NUM_THREAD=4 train.py", "--b env.OMP_NUM_THREAD: no such variable is known"),
        ("--a none --b env.HF_TOKEN=hf_0123456789abcdef train.py", "--b env.HF_TOKEN: its name suggests a credential"),
        ("--a none --b detail=on --margin 0% train.py", "Invalid value for '--margin': 0%: it is a percentage above 0 and below 100, such as 1%"),
        ("--a none --b detail=on --markdown nowhere/x.md train.py", "cannot write nowhere/x.md: there is no directory nowhere"),
        ("--a none --b detail=on other.py", "other.py: no such file"),
        ("amp train.py", "amp: precision: only the script can do this, and [arguments] of unhang.toml has no flag for it"),
        ("--budget 5m batch -- train.py", "batch: the command does not say how large the batch is now"),
        ("workers --a none --b detail=on train.py", "workers has arms of its own: it goes neither with --a nor with --arg"),
        ("bucket --steps 50", "no command to run"),
        ("wokers -n 2 train.py", "there is no ready-made comparison wokers"),
        ("batch.py", "there is nothing to compare: --a and --b are needed, or --arg"),
        ("--resume nowhere", "nowhere is not a directory of unhang bench: it has no bench.json"),
        ("--resume bench --steps 50", "--steps cannot be changed: bench goes on as it began"),
        ("--resume bench", "bench was started in /elsewhere"),
    ],
)
def test_bad_input_is_refused_before_anything_is_started(folder, monkeypatch, capsys, words, said):
    (folder / "bench" / "bench.json").write_bytes(encoding.encode(ASKED).replace(b'"cwd":""', b'"cwd":"/elsewhere"'))
    if "batch=" in words or "accumulation=" in words:
        (folder / "unhang.toml").write_text('[arguments]\nbatch = "--batch"\naccumulation = "--accumulation"\n')
    monkeypatch.setenv("FROM_OUTSIDE", "1")
    monkeypatch.setattr(sys, "argv", ["unhang", "bench", "compare", "--json", *words.split()])
    with pytest.raises(SystemExit) as left:
        app._answer()
    told = json.loads(capsys.readouterr().out)
    assert left.value.code == told["exitcode"] == 2 and told["error"].startswith(said)
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "the command holds a credential"),
        (["--", "train.py", "--token", "t0p5ecret9", "--lr", "1"], "this is another command than that of bench"),
    ],
)
def test_a_command_with_a_credential_is_typed_again(folder, monkeypatch, capsys, words, said):
    (folder / "bench" / "bench.json").write_bytes(encoding.encode(ASKED).replace(b'"cwd":""', f'"cwd":"{folder}"'.encode()))
    monkeypatch.setattr(sys, "argv", ["unhang", "bench", "compare", "--resume", "bench", *words])
    with pytest.raises(SystemExit) as left:
        app._answer()
    assert left.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.parametrize(("typed", "margin"), [([], 0.01), (["--margin", "2.5%"], 0.025), (["--margin", "5"], 0.05)])
def test_margins_are_percentages(typed, margin):
    context = app.whole("bench").commands["compare"].make_context("compare", [*typed, "train.py"])
    assert context.params["margin"] == pytest.approx(margin) and context.params["budget"] == 1200
    if typed:
        assert app.whole("bench").commands["check"].make_context("check", typed).params["margin"] == pytest.approx(margin)


def test_why_no_ready_made_comparison_applies_is_said(folder):
    command = commands.resolve(["train.py"], nproc_per_node=2, python=sys.executable)
    with pytest.raises(
        UnhangError, match=r"applies here: batch: the command does not say .*; amp: precision: only the script can do this"
    ) as refused:
        bench_compare._with_ready_made(command, replace(ASKED, arms={}, verb="priorities"), ["batch", "amp"])
    assert "；" not in str(refused.value) and "amp" in zh(refused.value.message)


def arms(words=(), **asked):
    command = commands.resolve(["train.py", "--lr", "1", *words], nproc_per_node=2, python=sys.executable)
    return bench_compare._arms(command, msgspec.convert({**msgspec.to_builtins(ASKED), **asked}, Asked))


def test_arms_of_an_argument_are_compared_per_sample_where_it_is_the_batch(folder):
    a, b = arms(argument="batch-size=64,128", arms={"a": "batch-size=64", "b": "batch-size=128"})
    assert a.command.argv[-5:] == ("train.py", "--lr", "1", "--batch-size", "64") and b.command.argv[-1] == "128"
    assert (a.samples, b.samples, a.changes) == (64, 128, {ARGUMENTS})


@pytest.mark.parametrize(
    ("typed", "words", "samples"),
    [
        ("num-batches=1,2", "", [None, None]),
        ("eval-batch-size=1,2", "", [None, None]),
        ("eval-batch-size=1,2", "--batch-size 8", [8, 8]),
        ("per_device_train_batch_size=1,2", "--batch-size 8", [1, 2]),
        ("micro-batch-size=1,2", "--gradient_accumulation_steps=4", [4, 8]),
        ("gradient-accumulation-steps=1,4", "--batch-size 8", [8, 32]),
        # In place of what the command says, by the flag of unhang.toml.
        ("bs=16,32", "--bs 8", [16, 32]),
    ],
)
def test_samples_of_a_step(folder, typed, words, samples):
    (folder / "unhang.toml").write_text('[arguments]\nbatch = "--bs"\n')
    name, _, values = typed.partition("=")
    found = arms(words.split(), argument=typed, arms={letter: f"{name}={value}" for letter, value in zip("ab", values.split(","), strict=True)})
    assert [arm.samples for arm in found] == samples


def test_arms_of_settings_know_what_they_change(folder):
    a, b, c = arms(arms={"a": "none", "b": "detail=on", "c": "loader-workers=0 timeout=30m"})
    assert (a.settings, a.changes) == ({}, frozenset())
    assert b.settings == {"TORCH_DISTRIBUTED_DEBUG": b.settings["TORCH_DISTRIBUTED_DEBUG"]} and b.changes == {"TORCH_DISTRIBUTED_DEBUG"}
    assert c.changes >= {"loader num_workers", "timeout"} and not any(name.startswith("UNHANG") for name in c.changes)


def test_arms_of_variables_go_with_settings_and_know_what_torch_makes_of_them(folder):
    a, b, c = arms(arms={"a": "none", "b": "env.OMP_NUM_THREADS=4", "c": "detail=on 'env.MINE=a b'"})
    assert (a.settings, a.changes, b.settings, b.changes) == ({}, frozenset(), {"OMP_NUM_THREADS": "4"}, {"OMP_NUM_THREADS", "threads"})
    assert c.settings["MINE"] == "a b" and c.changes == {"MINE", "TORCH_DISTRIBUTED_DEBUG"} and c.settings.keys() == c.changes


def test_ready_made_comparisons_know_the_command(folder):
    (folder / "unhang.toml").write_text('[arguments]\nbatch = "--batch-size"\nprecision = "--precision"\n')
    command = commands.resolve(["train.py", "--batch-size", "24"], module=False, nproc_per_node=2, python=sys.executable)
    one = bench_compare._with_ready_made(command, replace(ASKED, arms={}, ready_made="batch"))
    assert one.arms == {"a": "batch=24", "b": "batch=48", "c": "batch=96"}
    assert [arm.samples for arm in bench_compare._arms(command, one)] == [24, 48, 96]
    every = bench_compare._with_ready_made(command, replace(ASKED, arms={}, verb="priorities"))
    assert list(every.arms.values())[:7] == [
        "none",
        "batch=48",
        "batch=96",
        "precision=bf16",
        "loader-workers=0",
        "loader-workers=2",
        "loader-workers=4",
    ]
    # What is compared per sample needs the samples of each arm.
    assert [arm.samples for arm in bench_compare._arms(command, every)][:4] == [24, 48, 96, 24]
    assert all(
        said.startswith(f"{name}: ") and language.refusal(said, "zh") != said for name, said in every.left_out.items()
    ) and not every.left_out.keys() & {"batch", "amp"}


def test_settings_that_the_command_has_already_are_not_compared(folder):
    (folder / "unhang.toml").write_text("[run]\nloader-workers = 2\ncompile = false\n")
    command = commands.resolve(["train.py"], module=False, nproc_per_node=2, python=sys.executable)
    workers = bench_compare._with_ready_made(command, replace(ASKED, arms={}, ready_made="workers"))
    assert list(workers.arms.values()) == ["none", "loader-workers=0", "loader-workers=4"]
    every = bench_compare._with_ready_made(command, replace(ASKED, arms={}, verb="priorities"))
    assert every.left_out["compile"] == "compile: the command is started with these settings already"
    assert language.refusal(every.left_out["compile"], "zh") == "compile：该命令已经带有这些设置"
    assert not {"loader-workers=2", "compile=off"} & set(every.arms.values())


def test_a_directory_goes_on_by_its_own_verb(folder, monkeypatch, capsys):
    (folder / "bench" / "bench.json").write_bytes(encoding.encode(ASKED))
    monkeypatch.setattr(sys, "argv", ["unhang", "bench", "priorities", "--resume", "bench"])
    with pytest.raises(SystemExit):
        app._answer()
    err = capsys.readouterr().err
    with pytest.raises(UnhangError, match="there is no ready-made comparison workr"):
        bench_compare._named("batch, workr")
    assert "bench is a directory of unhang bench compare" in err and "Try: unhang bench compare --resume bench" in err


@pytest.mark.parametrize(
    ("mode", "links", "said"),
    [
        (0o777, (), "anyone can write to it; run chmod o-w bench"),
        (0o755, ("runs.jsonl",), "cannot write"),
        (0o755, ("failures.jsonl",), "cannot write"),
    ],
)
def test_a_directory_of_somebody_else_is_not_gone_on_with(folder, monkeypatch, capsys, mode, links, said):
    bench = folder / "bench"
    (bench / "bench.json").write_bytes(encoding.encode(replace(ASKED, cwd=str(folder), words=("train.py",), hides=False)))
    bench.chmod(mode)
    (folder / "victim").write_text("cut off")
    for name in links:
        (bench / name).symlink_to("../victim")
    monkeypatch.setattr(sys, "argv", ["unhang", "bench", "compare", "--resume", "bench"])
    with pytest.raises(SystemExit) as ended:
        app._answer()
    err = capsys.readouterr().err
    assert ended.value.code == 2 and said in err and (folder / "victim").read_text() == "cut off", err
    # What goes on is said before it is started.
    assert not links or "train.py" in err.partition("cannot write")[0]
