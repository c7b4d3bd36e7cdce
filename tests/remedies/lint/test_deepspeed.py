"""DeepSpeed's JSON: names, values, sections and batches; near misses that DeepSpeed takes."""

from __future__ import annotations

import json

import pytest
from tests.tables import for_each

from unhang.remedies.lint import check
from unhang.remedies.lint.documents import known

BATCH = {"train_micro_batch_size_per_gpu": 1}
HIT = [
    (
        {"train_batch_size": 8, "train_micro_batch_size_per_gpus": 4},
        "no key `train_micro_batch_size_per_gpus`, and ignores",
        "train_micro_batch_size_per_gpu",
    ),
    ({**BATCH, "zero_optimisation": {"stage": 2}}, "no key `zero_optimisation`, and ignores", "zero_optimization"),
    ({**BATCH, "zero_optimization": {"stage": 2, "reduce_bucket_sizes": 5}}, "in zero_optimization, and refuses", "reduce_bucket_size"),
    ({**BATCH, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin": True}}}, "no key `pin`", "pin_memory"),
    ({**BATCH, "bf16": {"enabled": True, "loss_scale": 0}}, "no key `loss_scale` in bf16", "loss_scale in fp16"),
    ({**BATCH, "stage": 2}, "no key `stage`", "stage in zero_optimization"),
    ({**BATCH, "zero_optimization": {"stage": 2, "gradient_clipping": 1}}, "no key `gradient_clipping`", "gradient_clipping at the top level"),
    ({**BATCH, "activation_checkpointing": {"cpu_checkpoint": True}}, "no key `cpu_checkpoint`", "cpu_checkpointing"),
    ({**BATCH, "zero_optimization": {"stage": 9}}, "stage is 9", "0, 1, 2, 3"),
    ({**BATCH, "zero_optimization": {"stage": True}}, "stage is true", "0, 1, 2, 3"),
    ({**BATCH, "zero_optimization": {"overlap_comm": True}}, "ZeRO is off", '"stage": 2'),
    ({**BATCH, "zero_optimization": True}, "true alone is deprecated", '"zero_optimization": {"stage": 2}'),
    ({**BATCH, "bf16": {"enabled": True}, "fp16": {"enabled": True}}, "both enabled", "one of them"),
    ({**BATCH, "bf16": True}, "bf16 is a section", '"bf16": {"enabled": true}'),
    ({**BATCH, "zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}}}, "no effect with stage 0", '"stage": 2'),
    ({**BATCH, "zero_optimization": {"stage": 1, "offload_param": {"device": "cpu"}}}, "offload_param has no effect", '"stage": 3'),
    ({**BATCH, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "disk"}}}, 'device is "disk"', "cpu, nvme, none"),
    ({**BATCH, "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, "nvme_path is missing", '"nvme_path": "/local_nvme"'),
    ({**BATCH, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}}, "ratio below 1", '"stage": 3'),
    ({**BATCH, "zero_optimization": {"stage": 2, "cpu_offload": True}}, "cpu_offload is deprecated", '"offload_optimizer": {"device": "cpu"}'),
    ({**BATCH, "zero_optimization": [{"stage": 2}]}, "zero_optimization is a section, not a list", '"zero_optimization": {"stage": 2}'),
    ({**BATCH, "zero_optimization": {"stage": [2]}}, "zero_optimization.stage is a list", '"stage": ...'),
    ({**BATCH, "zero_optimization": {"stage": None}}, "zero_optimization.stage is null", "0, 1, 2, 3"),
    ({**BATCH, "zero_optimization": {"stage": 2, "reduce_bucket_size": {"n": 1}}}, "reduce_bucket_size is a section", '"reduce_bucket_size": ...'),
    ({**BATCH, "zero_optimization": {"stage": 2, "offload_optimizer": ["cpu"]}}, "not a list", '"offload_optimizer": {"device": "cpu"}'),
    ({**BATCH, "zero_optimization": {"stage": 3, "offload_param": "cpu"}}, 'not "cpu"', '"offload_param": {"device": "cpu"}'),
    ({**BATCH, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": ["cpu"]}}}, "device is a list", '"device": ...'),
    ({**BATCH, "bf16": [True]}, "bf16 is a section, not a list", '"bf16": {"enabled": true}'),
    ({**BATCH, "fp16": {"enabled": {}}}, "fp16.enabled is a section", '"enabled": ...'),
    ({"train_batch_size": [8]}, "train_batch_size is a list", '"train_batch_size": ...'),
    ({**BATCH, "communication_backend": "gloo"}, "no key for the backend", 'deepspeed.init_distributed(dist_backend="gloo")'),
    ({**BATCH, "comm_backend_name": "gloo"}, "no key for the backend", 'deepspeed.init_distributed(dist_backend="gloo")'),
    ({**BATCH, "amp": {"enabled": True}}, "`amp` is refused", ""),
    ({"train_batch_size": "8"}, "a whole number", ""),
    ({"gradient_accumulation_steps": 1, "bf16": {"enabled": True}}, "neither train_batch_size nor", '"train_micro_batch_size_per_gpu": 1'),
]


@for_each(("written", "says", "instead"), HIT, ids=[h[1] for h in HIT])
def test_it_is_found(written, says, instead):
    form, problems = check("ds.json", json.dumps(written))
    assert form == "deepspeed"
    assert [p.instead for p in problems if says in p.says] == [instead], problems
    assert len(problems) == 1, problems
    assert all(any("\u4e00" <= c <= "\u9fff" for c in p.says.of("zh")) for p in problems)


@for_each(
    "written",
    [
        {**BATCH, "_why": "a remark", "comment": "another", "zero_optimization": {"stage": 3, "//": "one more"}},
        {**BATCH, "zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}},
        {**BATCH, "zero_optimization": {"stage": 0, "offload_optimizer": {"device": "none"}}},
        {**BATCH, "zero_optimization": {"stage": "2", "reduce_bucket_size": 5e8}},
        {**BATCH, "bf16": {"enabled": False}, "fp16": {"enabled": True, "loss_scale": 0}},
        {**BATCH, "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "anything": 1}}, "scheduler": {"type": "WarmupLR", "params": {}}},
        {**BATCH, "data_efficiency": {"of_its_own": {"deep": 1}}},
        {**BATCH, "communication_data_type": "fp32", "seq_parallel_communication_data_type": "fp32"},
        {**BATCH, "zero_optimization": {"stage": 3, "leaf_module": {"classes": ["A"]}, "offload_param": None}},
    ],
)
def test_what_deepspeed_takes_is_not_told(written):
    assert check("ds.json", json.dumps(written))[1] == ()


AUTO = {"train_micro_batch_size_per_gpu": "auto", "gradient_clipping": "auto", "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}}


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (AUTO, ["train_micro_batch_size_per_gpu and 2 more are auto: the Hugging Face Trainer"]),
        ({**BATCH, "bf16": {"enabled": "auto"}}, ["bf16.enabled is auto: the Hugging Face Trainer"]),
        ({**BATCH, "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}}}, ["optimizer.params.lr and 1 more are auto"]),
    ],
)
def test_what_the_trainer_fills_in_is_one_note(written, said):
    problems = check("ds.json", json.dumps(written))[1]
    assert [p.note for p in problems] == [True] and all(s in p.says for p, s in zip(problems, said, strict=True))


@pytest.mark.parametrize("name", ["overlap_comm", "stage3_max_live_parameters", "offload_optimizer"])
def test_what_nothing_fills_in_comes_first(name):
    problems = check("ds.json", json.dumps({**AUTO, "zero_optimization": {"stage": 3, name: {"ratio": "auto"} if "off" in name else "auto"}}))[1]
    assert [p.note for p in problems] == [False, True] and "nothing fills that in" in problems[0].says


def test_tabs_exponents_and_lines_are_those_of_json():
    text = (
        '{\n\t"train_micro_batch_size_per_gpu": 1,\n\t"zero_optimization": {\n\t\t"stage": 2, "offload_optimizer": {"ratio": 5e-1}\n\t}, "x/y": 1\n}'
    )
    ratio, unknown = check("ds.json", text)[1]
    assert (ratio.line, unknown.line) == (4, 5) and "ratio below 1" in ratio.says and "x/y" in unknown.says


def test_a_key_that_stands_twice():
    (problem,) = check("ds.json", '{"train_batch_size": 8,\n"bf16": {"enabled": true},\n"bf16": {"enabled": false}}')[1]
    assert problem.line == 3 and "first in line 2" in problem.says


def test_a_file_with_nothing_but_slips_is_known():
    assert check("ds.json", '{"zero_optimisation": {"stage": 2}}')[0] == "deepspeed"


def test_sections_are_keys_of_what_holds_them():
    names = known("deepspeed")
    for path in set(names) - {"top", "removed", "strict"}:
        above, _, name = path.rpartition(".")
        assert name in names[above or "top"]
    assert names["removed"] <= names["top"] and names["strict"] <= set(names)


@pytest.mark.parametrize(
    ("train", "micro", "steps", "world", "instead"),
    [
        (16, 4, 2, 4, '"train_batch_size": 32 or "train_micro_batch_size_per_gpu": 2 or "gradient_accumulation_steps": 1'),
        (12, 4, 2, 2, '"train_batch_size": 16 or "train_micro_batch_size_per_gpu": 3'),
        (10, 4, None, None, '"train_batch_size": 8 or "train_micro_batch_size_per_gpu": 2'),
        (10, 4, 2, None, '"train_batch_size": 8 or "train_micro_batch_size_per_gpu": 1'),
        (7, None, None, 2, '"train_batch_size": 8'),
    ],
)
def test_which_of_the_batches_to_change_to_what(train, micro, steps, world, instead):
    given = {"train_batch_size": train, "train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": steps}
    (problem,) = check("ds.json", json.dumps({k: v for k, v in given.items() if v}), form="deepspeed", processes=world)[1]
    assert problem.instead == instead and (" 或 " in problem.instead.of("zh")) == (" or " in instead)
    # Each of them is right by itself.
    for change in instead.split(" or "):
        changed = {k: v for k, v in {**given, **json.loads(f"{{{change}}}")}.items() if v}
        assert check("ds.json", json.dumps(changed), form="deepspeed", processes=world)[1] == ()


def test_what_is_in_json_and_not_in_yaml():
    text = '{"train_micro_batch_size_per_gpu": 1, "_note": "\\ud83d\\ude00 \x7f",\n"\\ud83d\\ude00": [[{"a": 1}], []]}'
    (problem,) = check("ds.json", text)[1]
    assert problem.line == 2 and "`\U0001f600`" in problem.says
