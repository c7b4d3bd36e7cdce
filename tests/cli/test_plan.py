"""unhang plan: what it prints, its JSON, its exit codes, and bad input."""

from __future__ import annotations

import json

import pytest
import typer
from tests.chinese import of_document, zh
from tests.tables import for_each
from typer.testing import CliRunner

from unhang.cli import plan
from unhang.errors import UnhangError


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.callback()(lambda: None)
    plan.register(app)

    def run(*words):
        return CliRunner().invoke(app, ["plan", *map(str, words)], env={"COLUMNS": "200", "NO_COLOR": "1", "LANG": "C"})

    return run


SEVEN = ("--params", "7e9", "--world-size", "8", "--per-node", "8", "--host-memory", "900GiB", "--sequence", "4096", "--checkpointing")


def told(run, *words):
    ran = run(*words, "--json")
    assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
    return ran.exit_code, json.loads(ran.stdout)


@pytest.mark.parametrize(
    ("memory", "code", "recommended"),
    [("200GiB", 0, "ddp"), ("48GiB", 0, "zero-1"), ("35GiB", 0, "zero-2"), ("24GiB", 0, "fsdp2"), ("2GiB", 1, None)],
)
def test_the_first_that_fits_is_recommended_and_why(run, memory, code, recommended):
    exit_code, found = told(run, *SEVEN, "--gpu-memory", memory)
    assert (exit_code, found["recommended"], found["schema"]) == (code, recommended, "unhang/plan/1")
    by_name = {row["estimate"]["strategy"]["name"]: row for row in found["rows"]}
    if recommended not in (None, "ddp"):
        assert by_name["ddp"]["fits"] == "no" and "not enough room for DDP" in found["why"] and "放不下 DDP" in of_document(found, found["why"])
    if recommended == "zero-2":
        # A stage more sends half as much again (ZeRO, section 7).
        assert by_name["zero-3"]["sent_bytes"] == pytest.approx(1.5 * by_name["zero-2"]["sent_bytes"], rel=1e-6)
        assert "would send" in found["why"]


def test_the_largest_batch_fits_and_one_more_does_not(run):
    def row(batch):
        found = told(run, *SEVEN, "--gpu-memory", "40GiB", "--strategy", "zero-2", "--batch", batch)[1]
        return found["rows"][0]

    largest = row(1)["largest_batch"]
    assert row(largest)["fits"] == "fits" and row(largest + 1)["fits"] != "fits"


def test_what_does_not_fit_into_host_memory_is_not_recommended(run):
    words = [w if w != "900GiB" else "60GiB" for w in SEVEN]
    _, found = told(run, *words, "--gpu-memory", "10GiB")
    by_name = {row["estimate"]["strategy"]["name"]: row for row in found["rows"]}
    assert (by_name["zero-3-offload"]["fits"], by_name["zero-3-offload"]["host_fits"], found["recommended"]) == ("fits", "no", None)
    assert "of 60 GiB host memory (--host-memory)" in found["why"]


def test_explain_prints_exactly_the_terms_of_the_json(run):
    _, found = told(run, *SEVEN, "--gpu-memory", "80GiB", "--strategy", "zero-2")
    printed = " ".join(run(*SEVEN, "--gpu-memory", "80GiB", "--strategy", "zero-2", "--explain").stdout.split())
    terms = found["rows"][0]["estimate"]["terms"]
    assert {t["id"] for t in terms} >= {
        "parameters",
        "gradients",
        "optimizer",
        "master",
        "block-inputs",
        "logits",
        "context",
        "communicator",
        "workers",
    }
    for term in terms:
        assert term["source"].split()[0] in printed and term["formula"][:40] in printed
    # The total is the sum of what is held at the peak.
    at_peak = [t for t in terms if t["place"] == "device" and found["rows"][0]["estimate"]["peak"] in t["moments"]]
    assert sum(t["high"] for t in at_peak) == pytest.approx(found["rows"][0]["estimate"]["high"], abs=len(terms))
    assert "take ZeRO-2" in printed and "====" in printed


def test_chinese(run):
    printed = run(*SEVEN, "--gpu-memory", "80GiB", "--lang", "zh").stdout
    assert "采用 ZeRO-1" in printed and "放得下" in printed and "fits" not in printed


def test_rows_give_a_timeout_and_their_absence_is_said(run):
    assert told(run, "--params", "1e8", "--data-rows", 10**8)[1]["preparation"]["timeout_s"] > 10_800
    assert "not known (--data-rows N)" in " ".join(run("--params", "1e8").stdout.split())


@for_each(
    ("words", "says"),
    [
        ([], "name a model"),
        (["nosuch.json"], "there is no nosuch.json"),
        (["--params", "0"], "such as 7B, 350M or 7e9"),
        (["--params", "7 x"], "such as 7B, 350M or 7e9"),
        (["--layers", 2], "hidden (hidden_size in config.json) is missing"),
        *((["--params", "1e9", "--gpu-memory", size], "such as 80GiB, from 1 MiB to") for size in ("80", "0GiB", "1e9GiB")),
        (["--layers", 2, "--hidden", 4096, "--heads", 30, "--vocab", 100], "30 heads do not divide the hidden size 4096"),
        (["--layers", 2, "--hidden", 4096, "--heads", 32, "--kv-heads", 5, "--vocab", 100], "5 heads of keys and values do not divide"),
        (["--params", "1e9", "--batch", 0], "--batch 0: it is 1 or more"),
        (["--params", "1e9", "--sequence", 10**400], "at most 1e9"),
        (["--params", "1e9", "--world-size", 12, "--per-node", 8], "do not fill hosts"),
        (["--params", "1e9", "--strategy", "zero-4"], "it is one of ddp"),
        (["--params", "1e9", "--offload", "disk"], "it is one of auto"),
        (["--params", "1e9", "--strategy", "ddp", "--offload", "all"], "does not go with"),
        (["--params", "1e9", "--precision", "int8"], "it is one of fp32"),
        (["--params", "1e9", "--lora", "x"], "begins with the rank"),
        (["--params", "1e9", "--lora", "8:nope"], "--lora nope: it is one of q_proj"),
    ],
)
def test_bad_input_says_what_is_wrong(run, words, says):
    error = run(*words).exception
    assert isinstance(error, UnhangError) and says in str(error) and zh(error.message)


def test_of_another_machine_only_what_is_given_is_known(run):
    words = ("--params", "7B", "--gpu-memory", "80GiB", "--world-size", 8)
    _, found = told(run, *words)
    assert (found["machine"]["host_bytes"], found["machine"]["cpus"], found["preparation"]["processes"]) == (None, None, None)
    assert {row["host_fits"] for row in found["rows"]} == {"unknown"} and found["counts"]["parameters"] == 7 * 10**9
    assert "not known: memory of a host (--host-memory), processors of a host (--cpus)" in run(*words).stdout
    assert told(run, *words, "--cpus", 16, "--host-memory", "900GiB")[1]["preparation"]["processes"] == 16


def test_what_is_assumed_stands_above_the_table_and_no_largest_batch_is_a_cap(run):
    printed = run("--layers", 1, "--hidden", 64, "--vocab", 64, "--sequence", 8, "--gpu-memory", "900GiB").stdout
    assert printed.index("assumed: heads 1") < printed.index("strategy") and "4096 or more" in printed and "1 rank, " in printed


@pytest.mark.parametrize("ranks", [[(10**9, None)], [(10**9, 10**9)] * 2])
def test_other_ranks_or_another_device_are_no_calibration(ranks):
    from unhang.plan import memory_model, model_shape
    from unhang.plan.training import STRATEGIES, Training
    from unhang.report.plan import calibrate

    training = Training(world_size=2, per_node=2, device="cpu")
    found = memory_model.estimate(model_shape.from_count(10**7, {}), training, STRATEGIES[0])
    with pytest.raises(UnhangError, match="nothing to compare"):
        calibrate(found, training, ranks)
    assert "with DDP" in calibrate(found, training, [(10**9, None)] * 2).says()


def test_pure_bf16_is_no_autocast_in_the_file(run, tmp_path):
    words = ("--params", "1e9", "--world-size", 2, "--gpu-memory", "80GiB", "--precision", "pure-bf16", "--strategy", "ddp")
    run(*words, "-o", tmp_path / "a", "--form", "accelerate")
    run(*words, "-o", tmp_path / "t", "--form", "trainer")
    assert 'mixed_precision: "no"' in (tmp_path / "a").read_text() and '"bf16": false' in (tmp_path / "t").read_text()


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    numbers = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 11008, "vocab_size": 32000}
    path.write_text(json.dumps({"model_type": "llama", **numbers}))
    return path


@pytest.mark.parametrize(
    ("form", "strategy", "holds"),
    [
        ("deepspeed", "zero-3-offload", ['"stage": 3', '"offload_param"', '"offload_optimizer"']),
        ("deepspeed", "zero-2", ['"stage": 2', '"train_batch_size": 128']),
        ("accelerate", "zero-2", ["distributed_type: DEEPSPEED", "zero_stage: 2"]),
        ("accelerate", "fsdp2", ["distributed_type: FSDP", "fsdp_version: 2", "fsdp_activation_checkpointing: true"]),
        ("accelerate", "ddp", ["distributed_type: MULTI_GPU", "num_processes: 16"]),
        ("llamafactory", "zero-2",
         ["template: null", "finetuning_type: \"lora\"", "lora_rank: 16", "deepspeed: \"out.yaml.deepspeed.json\"", "cutoff_len: 4096"]),
        ("trainer", "fsdp2", ['"version": 2', '"full_shard auto_wrap"', '"gradient_checkpointing": true', '"ddp_timeout": 10800']),
    ],
)  # fmt: skip
def test_what_is_written_says_what_was_planned_and_passes_our_own_check(run, config, tmp_path, form, strategy, holds):
    from unhang.cli import checking

    out = tmp_path / ("out.yaml" if form in ("accelerate", "llamafactory") else "out.json")
    words = ("--world-size", 16, "--per-node", 8, "--gpu-memory", "80GiB", "--host-memory", "2000GiB", "--sequence", 4096, "--checkpointing")
    lora = ("--lora", "16:all") if form == "llamafactory" else ()
    ran = run(config, *words, *lora, "--closed-form", "--batch", 8, "--strategy", strategy, "-o", out, "--form", form)
    assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
    for text in holds:
        assert text in out.read_text(), out.read_text()
    if form == "llamafactory":
        assert f'model_name_or_path: "{config.parent}"' in out.read_text(), "the model that was planned"
    if form != "trainer":
        files = [out, *tmp_path.glob("*.deepspeed.json")]
        assert [p.code for p in checking.check([str(f) for f in files], form=None, nodes=2, processes=8)] == [0] * len(files)
    assert isinstance(run("--params", "1e9", "-o", out).exception, UnhangError), "it is there already"


def test_the_best_that_the_form_can_hold_is_written_or_nothing(run, tmp_path):
    words = ("--params", "1e9", "--world-size", 8, "-o", tmp_path / "ds.json")
    ran = run(*words, "--gpu-memory", "2GiB")
    assert ran.exit_code == 1 and "nothing fits" in ran.stdout and "nothing is written" in ran.stderr and not [*tmp_path.iterdir()]
    ran = run(*words, "--gpu-memory", "80GiB")
    assert ran.exit_code == 0 and "take DDP" in ran.stdout and '"stage": 1' in (tmp_path / "ds.json").read_text()
    assert "wrote ds.json, ds.json.start.sh: ZeRO-1, since the form has no place for DDP" in ran.stderr
    assert "ZeRO-2" not in (tmp_path / "ds.json.start.sh").read_text()


def test_a_form_without_a_place_for_the_strategy_is_refused(run, tmp_path):
    for form, strategy in (("deepspeed", "fsdp2"), ("llamafactory", "fsdp2"), ("trainer", "zero-redundancy"), ("toml", "ddp")):
        error = run("--params", "1e9", "--world-size", 2, "--strategy", strategy, "-o", tmp_path / "x", "--form", form).exception
        assert isinstance(error, UnhangError) and form in str(error)


def test_the_closed_form_stands_in_where_torch_cannot_count_and_says_so(run, config):
    _, found = told(run, config, "--python", "/bin/false")
    assert found["base"] == "closed form" and "torch could not count the model" in found["notes"][0]


def test_what_lies_beside_a_configuration_is_not_imported(run, config, tmp_path):
    # Fewer layers are counted sooner.
    config.write_text(json.dumps({**json.loads(config.read_text()), "num_hidden_layers": 2}))
    (tmp_path / "numpy.py").write_text("open('imported', 'w')\n")
    assert told(run, config, "--world-size", 2, "--gpu-memory", "80GiB")[1]["base"] == "tracker"
    assert not (tmp_path / "imported").exists()


def test_no_model_is_written_where_none_was_planned(run, tmp_path):
    run("--params", "1e9", "--world-size", 2, "--gpu-memory", "80GiB", "--strategy", "zero-2", "-o", tmp_path / "out.yaml", "--form", "llamafactory")
    assert "model_name_or_path: null" in (tmp_path / "out.yaml").read_text()


def test_zero_1_says_why_it_is_not_zero_2(run):
    assert "ZeRO-2" in told(run, *SEVEN, "--gpu-memory", "48GiB")[1]["why"]


BUILT = {
    "counts": {"parameters": 7, "trained": 7, "largest_tensor": 3, "layer": 2, "outside": 3, "layers": 2},
    "sample": [["tokens", [2048]]], "sample_bytes": 16384, "attention": "sdpa", "dropped": [], "states": {},
}  # fmt: skip


@pytest.mark.parametrize(("after", "says"), [("exec sleep 60", "not done within"), ("kill -9 $$", "exit code -9")])
def test_a_count_that_takes_long_or_dies_keeps_what_was_built_and_says_what_it_does(run, config, tmp_path, monkeypatch, after, says):
    from unhang.plan import tracked

    monkeypatch.setattr(tracked, "_TIMEOUT_S", 1.0)
    monkeypatch.setattr(plan, "_QUIET_S", 0.0)
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho 'unhang-plan {json.dumps(BUILT)}'\n{after}\n")
    python.chmod(0o755)
    ran = run(config, "--gpu-memory", "80GiB", "--python", python, "--json")
    found = json.loads(ran.stdout)
    assert (found["counts"]["parameters"], found["base"]) == (7, "built") and says in found["notes"][0]
    assert ran.stderr.startswith("unhang: building the model")


def test_what_the_closed_form_does_not_know_is_counted_by_torch_or_refused(run, tmp_path):
    (tmp_path / "vit.json").write_text(json.dumps({"model_type": "vit", "hidden_size": 64, "num_hidden_layers": 2, "image_size": 32}))
    for words, says in ((["--closed-form"], "is a vision model"), (["--python", "/bin/false"], "torch could not count the model")):
        error = run("vit.json", *words).exception
        assert isinstance(error, UnhangError) and says in str(error) and zh(error.message)
