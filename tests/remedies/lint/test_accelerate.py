"""accelerate's YAML: sections, values, kinds and hosts; near misses that accelerate takes."""

from __future__ import annotations

import pytest
from tests.tables import for_each

from unhang.remedies.lint import check

DS, FSDP = "distributed_type: DEEPSPEED\nnum_processes: 2\n", "distributed_type: FSDP\nnum_processes: 2\n"
GPUS = "distributed_type: MULTI_GPU\nnum_processes: 2\n"
HIT = [
    (DS + "deepspeed_config:\n  zero_stages: 2\n", 4, "no key `zero_stages` in deepspeed_config", "zero_stage"),
    (DS + "deepspeed_config:\n  zero_stage: 9\n", 4, "zero_stage is 9", "0, 1, 2, 3"),
    (DS + "deepspeed_config:\n  mixed_precision: bf16\n", 4, "no key `mixed_precision`", "mixed_precision at the top level"),
    (DS + "deepspeed_config:\n  offload_param_device: disk\n", 4, "offload_param_device is disk", "none, cpu, nvme"),
    (DS + "deepspeed_config:\n  zero_stage: 2\n  offload_param_device: cpu\n", 5, "no effect with zero_stage 2", "zero_stage: 3"),
    (DS + "deepspeed_config:\n  deepspeed_config_file: a\n  zero_stage: 2\n", 5, "zero_stage beside deepspeed_config_file", "in DeepSpeed's file"),
    (DS + "deepspeed_config:\n  deepspeed_config_file: a\nmixed_precision: bf16\n", 5, "mixed_precision beside", "in DeepSpeed's file"),
    (DS + "zero_stage: 2\n", 3, "no key `zero_stage`, and aborts", "zero_stage in deepspeed_config"),
    (
        GPUS + "deepspeed_config:\n  zero_stage: 2\n",
        3,
        "deepspeed_config is not read with distributed_type: MULTI_GPU",
        "distributed_type: DEEPSPEED",
    ),
    (DS + "fsdp_config:\n  fsdp_version: 2\n", 3, "fsdp_config is not read", "distributed_type: FSDP"),
    (FSDP + "fsdp_config:\n  fsdp_shard_strategy: FULL_SHARD\n", 4, "no key `fsdp_shard_strategy`", "fsdp_sharding_strategy"),
    (FSDP + "fsdp_config:\n  sharding_strategy: FULL\n", 4, "fsdp_sharding_strategy is FULL", "FULL_SHARD"),
    (FSDP + "fsdp_config:\n  fsdp_version: 2\n  fsdp_forward_prefetch: true\n", 5, "is refused with fsdp_version: 2", "fsdp_forward_prefetch: false"),
    ("distributed_type: MEGATRON_LM\nnum_processes: 2\nmegatron_lm_config:\n  megatron_lm_tp: 2\n", 4, "megatron_lm_tp", "megatron_lm_tp_degree"),
    (GPUS + "mixed_precision: bf17\n", 3, "mixed_precision is bf17", "bf16"),
    (GPUS + "mixed_precision: no\n", 3, "false in YAML", 'mixed_precision: "no"'),
    ("distributed_type: multi_gpu\nnum_processes: 2\n", 1, "distributed_type is multi_gpu", "MULTI_GPU"),
    ("distributed_type: NO\nnum_processes: 2\n", 1, "starts one process, not 2", "distributed_type: MULTI_GPU"),
    ("distributed_type: MULTI_CPU\nnum_processes: 2\nuse_cpu: true\n", 1, "MULTI_CPU starts one process", "ACCELERATE_USE_CPU=true"),
    ("num_processes: 2\n", 1, "no distributed_type", "distributed_type: MULTI_GPU"),
    ("distributed_type: MULTI_GPU\n", 1, "no num_processes", "num_processes: 2"),
    ("distributed_type: MULTI_GPU\nnum_processes: '2'\n", 2, "a whole number, not '2'", ""),
    (GPUS + "num_machines: 2\nmain_process_port: 1\n", 3, "no main_process_ip", "main_process_ip: first-host"),
    (GPUS + "num_machines: 2\nmain_process_port: 1\nmain_process_ip: localhost\n", 5, "itself for the first", "the first host's name or address"),
    (GPUS + "num_machines: 1\nmachine_rank: 1\n", 4, "machine_rank is 1", "machine_rank: 0"),
    (GPUS + "rdzv_backend: ctend\n", 3, "rdzv_backend is ctend", "etcd"),
    (GPUS + "rdzv_backend: c10d\n", 3, "is not read from the file", "accelerate launch --rdzv_backend c10d ..."),
    (GPUS + "same_network: maybe\n", 3, "same_network is maybe", "True, False"),
    (GPUS + "num_processes: 4\n", 3, "stands here again", "one of them"),
]


@for_each(("text", "line", "says", "instead"), HIT, ids=[h[2] for h in HIT])
def test_it_is_found(text, line, says, instead):
    form, problems = check("accelerate.yaml", text)
    assert form == "accelerate" and len(problems) == 1, problems
    assert problems[0].line == line and says in problems[0].says and instead in problems[0].instead
    assert any("\u4e00" <= c <= "\u9fff" for c in problems[0].says.of("zh"))


@pytest.mark.parametrize(
    "text",
    [
        DS + "deepspeed_config:\n  deepspeed_config_file: a\n  zero3_init_flag: true\n  deepspeed_multinode_launcher: standard\n",
        DS + "deepspeed_config:\n  zero_stage: 2\n  offload_optimizer_device: cpu\nmixed_precision: bf16\n",
        FSDP + "fsdp_config:\n  fsdp_sharding_strategy: 1\n  version: 1\n  fsdp_auto_wrap_policy: transformer_based_wrap\n",
        GPUS + "deepspeed_config: {}\nfsdp_config: {}\nmegatron_lm_config: {}\ntpu_env: []\ndowncast_bf16: 'no'\n",
        GPUS + "dynamo_config:\n  backend: INDUCTOR\n  dynamo_mode: default\nfp16: true\n",
        "distributed_type: NO\nnum_processes: 1\nmain_process_ip: null\n",
        "distributed_type: MULTI_CPU\nnum_processes: 2\nmpirun_config:\n  mpirun_hostfile: hosts\n",
        "compute_environment: AMAZON_SAGEMAKER\nec2_instance_type: a\n",
    ],
)
def test_what_accelerate_takes_is_not_told(text):
    assert check("accelerate.yaml", text) == ("accelerate", ())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("distributed_type: MULTI_GPU\nnum_processes: [2]\n", "num_processes is a list, where one value belongs"),
        ("distributed_type: 'NO'\nnum_machines: {a: 1}\n", "num_machines is a mapping"),
        ("num_processes: 2\ndistributed_type: [MULTI_GPU]\n", "distributed_type is a list"),
        ("distributed_type: MULTI_GPU\nnum_processes: -3\n", "num_processes is -3: it is 1 or more"),
        ("distributed_type: 'NO'\nmain_process_port: 99999999\n", "main_process_port is 99999999: it is from 0 to 65535"),
        ("machine_rank: 0\nnum_machines: 0\ndistributed_type: 'NO'\n", "num_machines is 0: it is 1 or more"),
    ],
)
def test_one_value_within_its_bounds(text, says):
    (problem,) = check("a.yaml", text)[1]
    assert says in problem.says and problem.line == 2


def test_processes_that_the_command_line_tells():
    assert check("a.yaml", "distributed_type: MULTI_GPU\nnum_processes: -1\n")[1] == ()
