"""What is wrong in files of others: the form, the line, and near misses that are right."""

from __future__ import annotations

import pytest
from tests.tables import for_each

from unhang.errors import UnhangError
from unhang.remedies.lint import check

HIT = [
    ("accelerate", "compute_environment: LOCAL_MACHINE\nbackend: gloo\n", 2, "no key `backend`"),
    ("accelerate", "num_machines: 1\nmixed_precison: bf16\n", 2, "mixed_precison"),
    ("accelerate", "num_machines: 2\nnum_processes: 4\nmain_process_port: 1\n", 1, "main_process_ip"),
    ("accelerate", "num_machines: 2\nnum_processes: 3\nmain_process_ip: a\nmain_process_port: 1\n", 2, "all hosts"),
    ("deepspeed", '{\n"train_batch_size": 10,\n"train_micro_batch_size_per_gpu": 4\n}', 2, "no whole number"),
    ("deepspeed", '{"train_batch_size": 8,\n"bf16": {"enabled": "auto"}}', 2, "bf16.enabled is auto: the"),
    ("llamafactory", "stage: sft\nbackend: gloo\n", 2, "no field `backend`"),
    ("llamafactory", "stage: sft\nmy_own_field: 1\n", 2, "no field `my_own_field`, and refuses"),
    ("llamafactory", "stage: sftt\n", 1, "stage is sftt"),
    ("llamafactory", "stage: sft\nbf16: true\nfp16: true\n", 3, "both on"),
    ("torchrun", "#!/bin/bash\npython -m torch.distributed.launch train.py\n", 2, "replaced by torchrun"),
    ("torchrun", "#!/bin/bash\ntorchrun train.py \\\n  --local_rank 0\n", 3, "--local_rank"),
    ("bash", "#!/bin/bash\nexport RANK=1 MASTER_PORT=1234 NNODES=2\nllamafactory-cli train a.yaml\n", 2, "NODE_RANK"),
    ("torchrun", "#!/bin/bash\nexport MASTER_PORT=$RANDOM\ntorchrun --nnodes 2 --master-port=$MASTER_PORT train.py\n", 2, "differs by host"),
    ("torchrun", "#!/bin/bash\nexport WORLD_SIZE=$NNODES\ntorchrun train.py\n", 2, "counts processes"),
    ("bash", "#!/bin/bash\naccelerate launch --num_processes 2 torchrun train.py\n", 2, "inside of another"),
    ("torchrun", "#!/bin/bash\nexport NCCL_P2P_DISABLE=true\ntorchrun train.py\n", 2, "NCCL_P2P_DISABLE"),
    ("bash", "#!/bin/bash\nexport ACCELERATE_USE_GLOO=1\naccelerate launch train.py\n", 2, "ACCELERATE_USE_GLOO"),
    ("slurm", "#!/bin/bash\n#SBATCH --gres=gpu:8\n#SBATCH --ntasks-per-node=8\nsrun torchrun train.py\n", 3, "8 tasks"),
    ("slurm", "#!/bin/bash\n#SBATCH --nodes=1\nsrun torchrun train.py\n", 2, "no GPUs"),
    ("kubernetes", "apiVersion: v1\nspec:\n  containers:\n    - command: [torchrun, train.py]\n", 3, "/dev/shm"),
    ("dockerfile", "FROM a\nCMD torchrun train.py\n", 2, "--shm-size"),
]


@for_each(("form", "text", "line", "says"), HIT, ids=[h[3] for h in HIT])
def test_it_is_found_on_its_line(form, text, line, says):
    found, problems = check("file", text)
    assert found == form
    assert [(p.line, says) for p in problems if says in p.says] == [(line, says)], problems
    assert all(any("\u4e00" <= c <= "\u9fff" for c in p.says.of("zh")) for p in problems)


MISSED = [
    "distributed_type: MULTI_GPU\nnum_machines: 1\nnum_processes: 2\n",
    '{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4}',
    "stage: sft\nlora_rank: 8\nwarmup_ratio: 0.1\ngroup_by_length: true\nuse_liger_kernel: true\n",
    "model_name_or_path: a\ntask: mmlu_test\nn_shot: 5\n",
    "#!/bin/bash\n# python -m torch.distributed.launch, and --local_rank, are gone\ntorchrun --nnodes=1 train.py\n",
    "#!/bin/bash\ntorchrun a.py; accelerate launch b.py\n",
    "#!/bin/bash\nexport NODE_RANK=1 MASTER_PORT=1234 NNODES=2\nllamafactory-cli train a.yaml\n",
    "#!/bin/bash\ntorchrun --nnodes=2 --node-rank=$R --master-addr=a --master-port=29500 --local-rank-filter=0 train.py\n",
    "#!/bin/bash\nexport NCCL_P2P_DISABLE=1\ntorchrun train.py\n",
]


@for_each("text", MISSED)
def test_nothing_is_said_of_what_is_right(text):
    assert check("file", text)[1] == ()


def test_batches_by_the_world_that_is_given():
    text = '{"train_batch_size": 16, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}'
    assert check("a.json", text)[1] == () and check("a.json", text, nodes=1, processes=2)[1] == ()
    (wrong,) = check("a.json", text, nodes=2, processes=2)[1]
    assert wrong.instead == '"train_batch_size": 32 or "train_micro_batch_size_per_gpu": 2 or "gradient_accumulation_steps": 1'


@pytest.mark.parametrize("text", ["", "hello\n", "a: [", '{"a": 1}'])
def test_what_is_no_form_is_refused(text):
    with pytest.raises(UnhangError):
        check("file", text)


def test_a_python_program_is_no_file_of_a_launcher():
    text = '"""Start it so:\n\n    torchrun --nproc-per-node 2 train.py\n"""\nimport torch.distributed as dist\ndist.init_process_group()\n'
    for name in ("train.py", "-"):
        with pytest.raises(UnhangError, match="is a Python program"):
            check(name, text)
    with pytest.raises(UnhangError, match="is a Python program"):
        check("launch.py", "run(['torchrun', 'train.py'])\n")
    for form in (None, "ray", "lightning"):
        with pytest.raises(UnhangError, match="is a Python program"):
            check("file", "from ray.train import ScalingConfig\nScalingConfig(num_workers=2)\n", form=form)


@pytest.mark.parametrize("name", ["run.sh", "job", "-", "jobs/train.sbatch"])
def test_what_bash_cannot_read_without_a_first_line_that_names_it(name):
    found = check(name, "if true; then\ntorchrun train.py\n")[1]
    assert len(found) == 1 and found[0].says.startswith("bash cannot read it: ")
    assert check(name, "if true; then\ntorchrun train.py\nfi\n")[1] == ()


@pytest.mark.parametrize(("name", "first"), [("run.fish", ""), ("run.csh", ""), ("run", "#!/bin/csh\n"), ("run", "#!/usr/bin/fish\n")])
def test_scripts_of_csh_and_fish_are_not_taken_for_bash(name, first):
    with pytest.raises(UnhangError, match="csh or fish"):
        check(name, f"{first}torchrun train.py\n")


def test_a_misspelt_section_of_deepspeed_is_said_once():
    text = '{"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_optimzer": {"device": "cpu"}}}'
    (problem,) = check("ds.json", text)[1]
    assert "no key `offload_optimzer`" in problem.says and problem.instead == "offload_optimizer"
    (problem,) = check("ds.json", text.replace("offload_optimzer", "reduce_bucket_size"))[1]
    assert "one value belongs there" in problem.says
