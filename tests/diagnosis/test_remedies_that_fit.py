"""Remedies for where a job ran: its accelerator, its launcher, its program, its container; and for the exception that was raised."""

from __future__ import annotations

import pytest
from tests.tables import for_each

from unhang import data
from unhang.diagnosis.logs import judge_logs
from unhang.i18n import chinese
from unhang.knowledge import exceptions

RAISED = '[rank3]: Traceback (most recent call last):\n[rank3]:   File "/srv/job/train.py", line 40, in step\n[rank3]:     loss = crit(out, y)\n'
ASKED = RAISED.replace("loss = crit(out, y)", "local = int(os.environ['LOCAL_RANK'])")
DUPLICATE = "node7:5122:5340 [0] init.cc:497 NCCL WARN Duplicate GPU detected : rank {a} and rank {b} both on CUDA device {bus}\n"
OOM = (
    "[rank1]: torch.OutOfMemoryError: {} out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 63.98 GiB of which 10.00 MiB is "
    "free. Of the allocated memory 60.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated.\n"
)
NCCL_TESTS = "# nThread 1 nGpus 8 minBytes 8 maxBytes 134217728 step: 2(factor)\nnode7: Test CUDA failure common.cu:1045 '{}'\n"
PTX = "the provided PTX was compiled with an unsupported toolchain."
RUNTIME = "3: nvidia-container-cli: {} error: process /sbin/ldconfig failed with error code: 1\n"
LARGE = (
    "[rank1]:[E1103 10:00:01.123456789 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=42, "
    "OpType=ALLREDUCE, NumelIn=420000000, NumelOut=420000000, Timeout(ms)=600000) ran for 600025 milliseconds before timing out.\n"
)
UNKNOWN_NAME = (
    "[W1103 10:00:01.1 socket.cpp:601] [c10d] The IPv4 network addresses of (bert-master-0, 23456) cannot be retrieved (gai error: -2 - Name or "
    "service not known).\n"
)


@pytest.fixture
def judge(tmp_path):
    def judge(text):
        path = tmp_path / "job.log"
        path.write_text(text)
        return judge_logs([str(path)]).verdict.primary

    return judge


def written(finding):
    """All that its remedies say, set and run."""
    return "\n".join(" ".join((r.says, r.command or "", r.verify or "", *r.env)) for r in finding.remedies)


# What was printed: the cause, what has to stand in the remedies, and what must not.
PLACES = {
    "large gradients": (LARGE, "collective-timeout", "flight recorder", "DEEPSPEED"),
    "large gradients of DeepSpeed": (
        "[INFO] [comm.py:683:init_distributed] Initializing TorchBackend in DeepSpeed with backend nccl\n" + LARGE,
        "collective-timeout",
        "DEEPSPEED_TIMEOUT",
        "nvidia-smi",
    ),
    "xpu without a backend": (
        RAISED + "[rank3]: RuntimeError: No backend type associated with device type xpu\n",
        "wrong-backend-for-tensor",
        "xpu:xccl",
        "cuda|NCCL|nvidia",
    ),
    "npu without a backend": (
        RAISED + "[rank3]: RuntimeError: No backend type associated with device type npu\n",
        "wrong-backend-for-tensor",
        "hccl",
        "cuda|NCCL|nvidia",
    ),
    "cuda without a backend": (
        RAISED + "[rank3]: RuntimeError: No backend type associated with device type cpu\n",
        "wrong-backend-for-tensor",
        "cuda:nccl",
        "xccl",
    ),
    "xpu out of memory": (OOM.format("XPU"), "gpu-oom", "micro batch", "cuda|CUDA|NCCL|nvidia"),
    "rocm out of memory": (OOM.format("HIP"), "gpu-oom", "rocm-smi", "CUDA|nvidia"),
    "cuda out of memory": (OOM.format("CUDA"), "gpu-oom", "nvidia-smi", "rocm|xpu"),
    "rocm without a GPU number": (
        "(RayWorkerWrapper pid=812) RuntimeError: HIP error: invalid device ordinal\n",
        "device-mapping",
        "HIP_VISIBLE_DEVICES",
        "CUDA|nvidia-smi",
    ),
    "mpirun by its tags": (
        "[1,0]<stderr>:" + DUPLICATE.format(a=0, b=1, bus="1000"),
        "duplicate-gpu",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "['\"]LOCAL_RANK|torchrun",
    ),
    "mpirun by its words": (
        DUPLICATE.format(a=0, b=1, bus="1000") + "mpirun noticed that process rank 1 with PID 5123 on node node7 exited on signal 6 (Aborted).\n",
        "duplicate-gpu",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "['\"]LOCAL_RANK|torchrun",
    ),
    "mpirun without the variables of torchrun": (
        ASKED.replace("[rank3]: ", "[1,1]<stderr>:") + "[1,1]<stderr>:KeyError: 'LOCAL_RANK'\n",
        "rendezvous-misconfig",
        "LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK",
        "unhang run|srun",
    ),
    "srun without the variables of torchrun": (
        ASKED.replace("[rank3]: ", "1: ") + "1: KeyError: 'RANK'\nsrun: error: node7: task 1: Exited with exit code 1\n",
        "rendezvous-misconfig",
        "RANK=$SLURM_PROCID",
        "unhang run|mpirun",
    ),
    "torchrun": (
        DUPLICATE.format(a=0, b=1, bus="1000")
        + "E1103 1 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 7) of binary: python\n",
        "duplicate-gpu",
        "os.environ['LOCAL_RANK']",
        "OMPI",
    ),
    "nccl-tests without code": (
        NCCL_TESTS.format("no kernel image is available for execution on the device"),
        "arch-not-in-build",
        "NVCC_GENCODE",
        "torch|python",
    ),
    "nccl-tests with PTX": (NCCL_TESTS.format(PTX), "driver-too-old", "550.54.14", "torch|python|525.60"),
    "nccl-tests with an old driver": (
        NCCL_TESTS.format("CUDA driver version is insufficient for CUDA runtime version"),
        "driver-too-old",
        "NVCC_GENCODE",
        "torch|python",
    ),
    "SGLang starts its ranks itself": (
        (
            '  File "/sgl/python/sglang/srt/managers/scheduler.py", line 2215, in run_scheduler_process\n    scheduler = Scheduler(port_args)\n'
            "RuntimeError: CUDA error: invalid device ordinal\n"
        ),
        "device-mapping",
        "--tp-size",
        "torchrun|nproc|LOCAL_RANK|train.py",
    ),
    "vLLM by its first line": (
        "INFO 11-03 10:00:01 [api_server.py:1839] vLLM API server version 0.11.0\nRuntimeError: CUDA error: invalid device ordinal\n",
        "device-mapping",
        "--tensor-parallel-size",
        "torchrun|nproc|LOCAL_RANK",
    ),
    "TRL by accelerate": (
        RAISED.replace("/srv/job/train.py", "/opt/venv/lib/trl/trainer/grpo_trainer.py")
        + "[rank3]: RuntimeError: CUDA error: invalid device ordinal\n",
        "device-mapping",
        "accelerate launch",
        "torchrun|nproc",
    ),
    "verl by Ray": (
        "(TaskRunner pid=4711) ValueError: Total available GPUs 6.0 is less than total desired GPUs 8\n",
        "device-mapping",
        "ray status",
        "torchrun|nproc|train.py",
    ),
    "a fault that ROCm prints": (
        "Memory access fault by GPU node-4 (Agent handle: 0x55d1c0a1b2c0) on address 0x7f3c80000000. Reason: Page not present\n",
        "illegal-memory-access",
        "HIP_LAUNCH_BLOCKING",
        "CUDA",
    ),
    "no route to a host": (
        "node7:2144:2201 [3] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to 10.0.0.2<45763> failed : No route to host\n",
        "network-blocked",
        "ip route get",
        "cable",
    ),
    "a wait after the end": (
        (
            "{'train_runtime': 812.1, 'train_loss': 1.2, 'epoch': 3.0}\n[rank3]:[E1103 10:10:01.8 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught "
            "collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600041 "
            "milliseconds before timing out.\n"
        ),
        "crash-at-exit",
        "destroy_process_group",
        "distributed.barrier|timeout",
    ),
    "PTX of an extension": (
        RAISED + f"[rank3]: torch.AcceleratorError: CUDA error: {PTX}\n",
        "driver-too-old",
        "12.4 550.54.14",
        "525.60|nccl-tests",
    ),
    "pyxis": (
        "3: slurmstepd: error: pyxis: container start failed with error code: 1\n" + RUNTIME.format("ldcache"),
        "container-capability",
        "enroot start",
        "docker",
    ),
    "enroot": ("enroot: [ERROR] a hook failed\n" + RUNTIME.format("mount"), "container-capability", "98-nvidia.sh", "docker"),
    "apptainer": ("apptainer exec image.sif train.py\n" + RUNTIME.format("device"), "container-capability", "--nv", "docker"),
    "docker": ("docker: " + RUNTIME.format("initialization"), "container-capability", "--runtime=docker", "enroot|--nv"),
    "pods": (
        UNKNOWN_NAME,
        "dns-resolution",
        "clusterIP: None",
        "/etc/hosts",
    ),
    "a name in a host file": (
        "node8: ssh: Could not resolve hostname node8: Name or service not known\n",
        "dns-resolution",
        "hostfile",
        "clusterIP",
    ),
    "link-local": (
        "node7:97:221 [0] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to 169.254.95.120<45763> failed : Connection refused\n",
        "interface-selection",
        "NCCL_SOCKET_IFNAME",
        "pip install",
    ),
    "the port of sshd": ("error: Bind to port 22 on 0.0.0.0 failed: Address already in use.\n", "port-in-use", "sshd -p 2222", "end it|ss -ltnp"),
    "a port of the host's network": (
        "docker: Error: listen tcp 0.0.0.0:22: bind: address already in use\n",
        "port-in-use",
        "Leave the port",
        "end it|ss -ltnp",
    ),
    "the port of a store": ("RuntimeError: Address already in use\n", "port-in-use", "ss -ltnp", "sshd"),
    "more processes than GPUs": (
        "".join(DUPLICATE.format(a=n + 2, b=n, bus=f"{n + 1}000") for n in range(2)),
        "duplicate-gpu",
        "--nproc-per-node 2 ",
        "nproc-per-node gpu",
    ),
}


@for_each(("text", "cause", "has", "lacks"), PLACES.values(), ids=PLACES)
def test_remedies_are_for_where_it_ran(judge, text, cause, has, lacks):
    found = judge(text)
    assert found.cause == cause and found.remedies
    assert has in written(found), written(found)
    assert not [word for word in lacks.split("|") if word.strip("[]") in written(found)], written(found)


@pytest.mark.parametrize(
    ("text", "crowded"),
    [
        # What torch up to 1.3 calls cached lies beside what is allocated.
        ("(GPU 2; 31.74 GiB total capacity; 29.11 GiB already allocated; 41.88 MiB free; 2.10 GiB cached)", False),
        ("(GPU 2; 31.74 GiB total capacity; 12.00 GiB already allocated; 41.88 MiB free; 1.00 GiB cached)", True),
        ("(GPU 0; 39.59 GiB total capacity; 36.10 GiB already allocated; 10.00 MiB free; 37.00 GiB reserved in total by PyTorch)", False),
        ("(GPU 0; 39.59 GiB total capacity; 6.10 GiB already allocated; 10.00 MiB free; 7.00 GiB reserved in total by PyTorch)", True),
    ],
)
def test_who_fills_the_gpu(judge, text, crowded):
    found = judge(f"[rank1]: RuntimeError: CUDA out of memory. Tried to allocate 96.00 MiB {text}\n")
    assert ("free-the-gpu" in [r.id for r in found.remedies]) is crowded and ("outside of PyTorch" in found.says) is crowded


def test_ranks_beyond_the_gpus_tell_how_many_there_are(judge):
    head = "node7:5120:5120 [0] NCCL INFO comm 0x5581 rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 1000 commId 0x9f - Init START\n"
    found = judge(head + "".join(f"[rank{n}]: torch.AcceleratorError: CUDA error: invalid device ordinal\n" for n in (6, 7)))
    assert found.cause == "device-mapping" and "--nproc-per-node 6 " in (found.remedies[0].command or "")


@for_each(
    ("raised", "says"),
    [
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x512 and 768x10)", "(8x512) does not fit the weight (768x10)"),
        ("RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn", "enable_input_require_grads"),
        ("KeyError: 'input_ids'", "input_ids is no key there"),
        ("TypeError: loss() got an unexpected keyword argument 'num_items'", "no argument num_items"),
        ("AttributeError: 'DistributedDataParallel' object has no attribute 'config'", "model.module"),
        ("AttributeError: module 'numpy' has no attribute 'bool8'", "numpy has no bool8"),
        ("ValueError: num_samples should be a positive integer value, but got num_samples=0", "data set is empty"),
        ("PIL.UnidentifiedImageError: cannot identify image file '/data/4.jpg'", "no image that Pillow can read"),
        ("huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://hub/api", "HF_HUB_OFFLINE=1"),
        ("torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised", "torch.compile failed"),
        ("safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge", "Git LFS"),
        ("json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)", "something else than JSON"),
        ("ZeroDivisionError: division by zero", "Something that counts is 0"),
        ("RuntimeError: The total norm of order 2.0 for gradients from `parameters` is non-finite, so it cannot be clipped.", "clip gradients"),
        ("pandas.errors.IntCastingNaNError: Cannot convert non-finite values (NA or inf) to integer", "Correct what the named line raised"),
        ("ValueError: Input X contains NaN or infinity.", "Correct what the named line raised"),
        ("RuntimeError: nobody has ever raised this", "Correct what the named line raised"),
    ],
)
def test_what_to_do_about_an_exception(judge, raised, says):
    found = judge(f"{RAISED}[rank3]: {raised}\n")
    assert found.cause == "rank-exception" and says in found.remedies[0].says and "{" not in found.remedies[0].says.replace("{}", "")
    sample = raised.startswith(("PIL", "json")) or says.startswith("Correct")
    assert ("agree-on-failure" in [r.id for r in found.remedies]) is sample


@pytest.mark.parametrize(
    ("kind", "text", "has_advice"),
    [
        ("ValueError", "Cannot use chat template functions because tokenizer.chat_template is not set", True),
        ("jinja2.exceptions.TemplateError", "chat template: roles must alternate", False),
        ("pydantic_core._pydantic_core.ValidationError", "2 validation errors for Sample\nprompt\n  Field required", True),
        ("marshmallow.exceptions.ValidationError", "{'age': ['Not a valid integer.']}", False),
        ("jsonschema.exceptions.ValidationError", "'x' is not of type 'integer'", False),
    ],
)
def test_what_fits_one_library_is_not_told_of_others(kind, text, has_advice):
    remedy = exceptions.remedy(kind, text)
    assert (remedy is not None and ("template" in remedy.says or "Sample" in remedy.says)) is has_advice


@for_each(
    ("called", "says"),
    [
        (("torch/distributed/distributed_c10d.py", "all_gather_object"), "all_gather_object and its like"),
        (("torch/serialization.py", "save"), "state_dict"),
        (("torch/distributed/checkpoint/state_dict_saver.py", "save"), "state_dict"),
        (("torch/utils/data/dataloader.py", "__iter__"), "Workers are started anew"),
        (("torch/multiprocessing/spawn.py", "start_processes"), "A process that is started anew"),
        (("/srv/job/cache.py", "keep"), "look at the frames above"),
        # What started the process that calls pickle itself.
        (("torch/multiprocessing/spawn.py", "_wrap", "/srv/job/train.py"), "look at the frames above"),
    ],
)
@for_each(
    "raised",
    [
        "AttributeError: Can't pickle local object 'main.<locals>.<lambda>'",
        "AttributeError: Can't get local object 'main.<locals>.<lambda>'",
        "_pickle.PicklingError: Can't pickle <function <lambda> at 0x7f>: attribute lookup <lambda> on __main__ failed",
        "TypeError: cannot pickle '_thread.lock' object",
    ],
)
def test_what_pickle_does_not_take_depends_on_who_called_it(judge, called, says, raised):
    file, name, *own = called
    places = [(f"/opt/py/site-packages/{file}", name), *((f, "work") for f in own), ("/usr/lib/python3.11/pickle.py", "dump")]
    inner = "".join(f'  File "{f}", line 9, in {n}\n    x()\n' for f, n in places)
    found = judge(f'Traceback (most recent call last):\n  File "/srv/job/train.py", line 3, in <module>\n    f()\n{inner}{raised}\n')
    assert found.cause == "rank-exception" and says in found.remedies[0].says


def test_a_captured_name_is_no_command():
    remedy = exceptions.remedy("FileNotFoundError", "[Errno 2] No such file or directory: 'a; rm -rf ~'")
    assert remedy.command == "ls -ld 'a; rm -rf ~'"


def test_the_table_of_exceptions():
    rows = data.table("knowledge/exceptions")["exceptions"]
    assert len(rows) >= 50 and len({(e.get("of"), e.get("needles"), e.get("pattern")) for e in rows}) == len(rows)
    for known in rows:
        kind, _, caller = known.get("of", "").partition("@")
        assert (not kind or kind.isidentifier()) and caller in ("", *exceptions.CALLERS)
        assert kind or "needles" in known
        assert len(known["says"]) < 260 and known["says"].endswith(".") and chinese(known["says"])
