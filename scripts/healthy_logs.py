"""Makes the logs of healthy trainings again that `tests/diagnosis/healthy` holds: really run, on CPUs, one after the other.

    python scripts/healthy_logs.py --env /tmp/healthy --setup        # installs torch and the frameworks into an environment of their own
    python scripts/healthy_logs.py --env /tmp/healthy [NAME ...]     # runs them and stores their output

Each run is in namespaces of its own (mount, UTS, network, PID, IPC): the host is called node1, its addresses are 127.0.0.1, 10.0.0.1 and 10.0.0.2,
its directory is /srv/job. So nothing of the machine is in a log, and logs are stored as they were printed. A run is healthy if it ends with exit
code 0, and only then is it stored. Needs Linux, unshare, ip; mpirun for the runs that name it.
What needs GPUs is written by hand in the grammar of its program (scripts/healthy/written), and its run prints it.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import zstandard

ROOT = Path(__file__).resolve().parent.parent
STORED = ROOT / "tests" / "diagnosis" / "healthy"
# The table of contents: what each log shows.
CONTENTS = STORED / "contents.json"
TORCH = "torch==2.13.0"
# torch is named each time: nothing may bring another one.
INSTALL = (
    f"{TORCH} numpy",
    f"{TORCH} accelerate==1.15.0 transformers datasets tensorboard hydra-core torchdata webdataset pytest tqdm",
    f"{TORCH} lightning wandb trl peft nbconvert ipykernel",
    f"{TORCH} ray[train]",
    f"{TORCH} setuptools wheel ninja msgspec psutil py-spy rich typer zstandard hyperscan ahocorasick_rs",
    f"--no-build-isolation {TORCH} deepspeed",
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One healthy run. `command` is bash, run beside the scripts of scripts/healthy; `needs` are programs besides the environment."""

    name: str
    framework: str
    shows: str
    command: str
    needs: tuple[str, ...] = ()
    timeout_s: int = 180
    env: dict[str, str] = field(default_factory=dict)


def _torchrun(ranks: int, script: str, options: str = "--standalone") -> str:
    return f"torchrun {options} --nproc-per-node {ranks} {script}"


def _written(name: str, framework: str, shows: str) -> Run:
    """What no CPU can run: a log that was written in the grammar of the program, not recorded."""
    return Run(name=name, framework=framework, shows=f"{shows}; written, not recorded", command=f"cat written/{name}.log")


# Two launchers on one machine, each with the name and the address of a node of its own.
_TWO_NODES = """
node() {{ unshare --uts bash -c 'hostname node$1; shift; exec "$@"' node "$@"; }}
node 1 torchrun {options} {first} ddp.py --steps {steps} {more} > node1.log 2>&1 & one=$!
{between}
node 2 torchrun {options} {second} ddp.py --steps {steps} {more} > node2.log 2>&1 & two=$!
code=0; wait $one || code=$?; wait $two || code=$?
tail -n +1 node1.log node2.log
exit $code
"""
_C10D = "--nnodes {nodes} --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint 10.0.0.1:29400 --rdzv-id job7"
_STATIC = "--nnodes 2 --nproc-per-node 2 --master-addr 10.0.0.1 --master-port 29500"

RUNS = (
    Run(name="torchrun-1", framework="torch", shows="one rank under torchrun", command=_torchrun(1, "ddp.py")),
    Run(name="torchrun-2", framework="torch", shows="two ranks, DDP on Gloo", command=_torchrun(2, "ddp.py")),
    Run(name="torchrun-4", framework="torch", shows="four ranks, checkpoint saved", command=_torchrun(4, "ddp.py --checkpoint ckpt.pt")),
    Run(
        name="torchrun-tee",
        framework="torch",
        shows="--tee with the prefix of each rank, and log files",
        command="python -m torch.distributed.run --standalone --nproc-per-node 2 --log-dir logs --tee 3 ddp.py",
    ),
    Run(
        name="torchrun-redirects",
        framework="torch",
        shows="-r 3: a file for each stream of each rank, put together by tail",
        command=_torchrun(2, "ddp.py", "--standalone --log-dir logs -r 3") + "; tail -n +1 $(find logs -name '*.log' | sort)",
    ),
    Run(
        name="torchrun-filter",
        framework="torch",
        shows="--local-ranks-filter 0 with --role",
        command=_torchrun(3, "ddp.py", "--standalone --log-dir logs --tee 3 --local-ranks-filter 0 --role trainer"),
    ),
    Run(name="torchrun-help", framework="torch", shows="the help of torchrun", command="torchrun --help"),
    Run(
        name="torch-launch",
        framework="torch",
        shows="the deprecated launcher with its warnings",
        command="python -m torch.distributed.launch --nproc-per-node 2 --use-env ddp.py",
    ),
    Run(name="mp-spawn", framework="torch", shows="mp.spawn, shared tensors, a queue", command="python spawn.py"),
    Run(name="fsdp1", framework="torch", shows="FullyShardedDataParallel, sharded checkpoints", command=_torchrun(2, "fsdp.py 1")),
    Run(name="fsdp2", framework="torch", shows="fully_shard, sharded checkpoints", command=_torchrun(2, "fsdp.py 2")),
    Run(
        name="debug-info",
        framework="torch",
        shows="TORCH_DISTRIBUTED_DEBUG=INFO",
        command=_torchrun(2, "ddp.py"),
        env={"TORCH_DISTRIBUTED_DEBUG": "INFO", "TORCH_CPP_LOG_LEVEL": "INFO"},
    ),
    Run(
        name="debug-detail",
        framework="torch",
        shows="TORCH_DISTRIBUTED_DEBUG=DETAIL with the C++ log",
        command=_torchrun(2, "parallel.py tensor"),
        env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "TORCH_CPP_LOG_LEVEL": "INFO"},
    ),
    Run(
        name="agent-info",
        framework="torch",
        shows="LOGLEVEL=INFO: rendezvous and worker groups",
        command=_torchrun(2, "ddp.py --steps 10"),
        env={"LOGLEVEL": "INFO"},
    ),
    Run(
        name="agent-debug",
        framework="torch",
        shows="LOGLEVEL=DEBUG: everything that the elastic agent says",
        command=_torchrun(2, "ddp.py --steps 10", "--rdzv-backend c10d --rdzv-endpoint localhost:0 --nnodes 1"),
        env={"LOGLEVEL": "DEBUG"},
    ),
    Run(
        name="torch-logs",
        framework="torch",
        shows="TORCH_LOGS=+distributed,c10d: DDP's own log",
        command=_torchrun(2, "ddp.py --steps 5 --static-graph"),
        env={"TORCH_LOGS": "+distributed,+c10d,+ddp_graphs"},
    ),
    Run(
        name="two-nodes-static",
        framework="torch",
        shows="two nodes, static rendezvous",
        command=_TWO_NODES.format(options=_STATIC, first="--node-rank 0", second="--node-rank 1", between="", steps=10, more=""),
        env={"LOGLEVEL": "INFO"},
    ),
    Run(
        name="two-nodes-late",
        framework="torch",
        shows="two nodes, static rendezvous; the first waits for the second",
        command=_TWO_NODES.format(options=_STATIC, first="--node-rank 1", second="--node-rank 0", between="sleep 4", steps=10, more=""),
        env={"TORCH_CPP_LOG_LEVEL": "INFO"},
    ),
    Run(
        name="two-nodes-c10d",
        framework="torch",
        shows="two nodes, c10d rendezvous",
        command=_TWO_NODES.format(options=_C10D.format(nodes=2), first="", second="", between="sleep 1", steps=10, more=""),
        env={"LOGLEVEL": "INFO"},
    ),
    Run(
        name="elastic-grows",
        framework="torch",
        shows="a node joins later: membership change, workers are restarted",
        command=_TWO_NODES.format(
            options=_C10D.format(nodes="1:2"),
            first="--monitor-interval 0.2 --local-addr node1",
            second="--monitor-interval 0.2 --local-addr node2",
            between="until grep -q 'step 5/' node1.log; do sleep 0.2; done",
            steps=60,
            more="--step-s 0.2 --checkpoint /tmp/never.pt",
        ),
        env={"LOGLEVEL": "INFO", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    ),
    Run(
        name="restart-succeeds",
        framework="torch",
        shows="a rank fails, the launcher starts again, the second attempt succeeds",
        command=_torchrun(2, "ddp.py --fail-first", "--standalone --max-restarts 2"),
    ),
    Run(
        name="restart-succeeds-info",
        framework="torch",
        shows="the same with LOGLEVEL=INFO and --tee",
        command=_torchrun(2, "ddp.py --fail-first", "--standalone --max-restarts 2 --log-dir logs --tee 3"),
        env={"LOGLEVEL": "INFO"},
    ),
    Run(name="collectives", framework="torch", shows="every collective of Gloo, subgroups, a late rank", command=_torchrun(4, "collectives.py")),
    Run(
        name="collectives-cpp",
        framework="torch",
        shows="the same with the C++ log and INFO",
        command=_torchrun(4, "collectives.py"),
        env={"TORCH_CPP_LOG_LEVEL": "INFO", "TORCH_DISTRIBUTED_DEBUG": "INFO", "GLOO_LOG_LEVEL": "DEBUG"},
    ),
    Run(name="accumulation", framework="torch", shows="gradient accumulation with no_sync", command=_torchrun(2, "ddp.py --accumulate 4")),
    Run(
        name="resume",
        framework="torch",
        shows="a second run resumes from the checkpoint of the first",
        command="set -e; " + "; ".join(2 * [_torchrun(2, "ddp.py --checkpoint ckpt.pt")]),
    ),
    Run(name="unused-parameters", framework="torch", shows="DDP's warning on find_unused_parameters", command=_torchrun(2, "ddp.py --unused")),
    Run(name="powersgd", framework="torch", shows="PowerSGD and its log", command=_torchrun(2, "ddp.py --hook powersgd --steps 30")),
    Run(name="fp16-hook", framework="torch", shows="the fp16 communication hook", command=_torchrun(2, "ddp.py --hook fp16")),
    Run(
        name="compile",
        framework="torch",
        shows="torch.compile under DDP, with a C++ compiler",
        command=_torchrun(2, "ddp.py --compile --steps 10"),
        env={"TORCH_LOGS": "+guards,recompiles,graph_breaks"},
        needs=("c++",),
    ),
    *(
        Run(name=f"loader-{kind}", framework="torch", shows=f"data loader with workers: {shows}", command=f"python loaders.py {kind}")
        for kind, shows in (
            ("fork", "fork, with a caught error"),
            ("spawn", "spawn"),
            ("persistent", "persistent"),
            ("many", "more than cores"),
            ("pinned", "pinned without a GPU"),
            ("stream", "iterable with a wrong length"),
        )
    ),
    Run(
        name="caught-download",
        framework="torch",
        shows="tracebacks of a download that is tried again",
        command="python caught.py retried_download optional_imports",
    ),
    Run(name="caught-no-gpu", framework="torch", shows="CUDA asked for on a machine without one, caught", command="python caught.py no_gpu"),
    Run(name="caught-busy-port", framework="torch", shows="the first port is taken, the next one is used", command="python caught.py busy_port"),
    Run(
        name="caught-batch-size",
        framework="torch",
        shows="a batch that cannot be allocated, a smaller one can",
        command="python caught.py shrinking_batch",
    ),
    Run(name="caught-shapes", framework="torch", shows="a probe that fails as expected, logged with exc_info", command="python caught.py shapes"),
    Run(name="words-config", framework="torch", shows="a configuration full of timeouts, kills and errors", command="python words.py config"),
    Run(name="words-environment", framework="torch", shows="env, ulimit, df, free; NCCL and torch variables", command="python words.py environment"),
    Run(name="words-hints", framework="torch", shows="hints that quote the messages of failures", command="python words.py nccl-timeouts"),
    Run(name="tensor-parallel", framework="torch", shows="DTensor, tensor parallel", command=_torchrun(2, "parallel.py tensor")),
    Run(name="pipeline", framework="torch", shows="a pipeline of three stages, 1F1B", command=_torchrun(3, "parallel.py pipeline")),
    Run(name="join", framework="torch", shows="uneven inputs with Join", command=_torchrun(2, "parallel.py join")),
    Run(name="zero-optimizer", framework="torch", shows="ZeroRedundancyOptimizer", command=_torchrun(2, "parallel.py zero")),
    Run(name="rpc", framework="torch", shows="RPC, a remote call that fails as expected", command=_torchrun(2, "parallel.py remote")),
    Run(
        name="shell-trace",
        framework="torch",
        shows="a job script under `set -x`: exports, tools that this machine lacks, then a training",
        command="set -x; export NCCL_DEBUG=INFO NCCL_TIMEOUT=3600 NCCL_IB_DISABLE=1 NCCL_SOCKET_IFNAME=eth0 CUDA_VISIBLE_DEVICES=; ulimit -n 65536; "
        "module load cuda/12.8; nvidia-smi; nvcc --version; ibstat; scontrol show hostnames; conda activate train; ls /data/shards; "
        + _torchrun(2, "ddp.py --steps 10"),
    ),
    Run(
        name="broken-pipe",
        framework="torch",
        shows="output into `head`, which closes the pipe early",
        command="python misc.py not_a_number | head -2; python misc.py not_a_number | tail -2",
    ),
    Run(
        name="no-launcher",
        framework="torch",
        shows="ranks started by a shell, rendezvous over a file, one log with `srun --label` prefixes",
        command='for r in 0 1 2; do RANK=$r WORLD_SIZE=3 python parallel.py shared_file 2>&1 | sed -u "s/^/$r: /" & done; wait',
    ),
    *(
        Run(name=name, framework=framework, shows=shows, command=f"python misc.py {kind}")
        for name, kind, framework, shows in (
            ("profiler", "profiler", "torch", "a profile's table"),
            ("data-parallel", "data_parallel", "torch", "DataParallel, GradScaler and autocast without a GPU"),
            ("signals", "signals", "torch", "a checkpoint on SIGUSR1, a graceful end on SIGTERM"),
            ("not-a-number", "not_a_number", "torch", "a NaN loss that is skipped"),
            ("progress", "progress", "torch", "progress bars with carriage returns"),
            ("child-processes", "child_processes", "torch", "a pool in which one record fails, a helper that is terminated, no nvidia-smi"),
            ("ignored-exceptions", "ignored", "torch", "exceptions in a thread, a task, __del__ and a callback, which end nothing"),
            ("leaked-memory", "leaked", "torch", "the resource tracker on shared memory that was left"),
            ("tensorboard", "boards", "tensorboard", "a writer"),
            ("wandb", "wandb_offline", "wandb", "an offline run"),
            ("webdataset", "streams", "webdataset", "a torn shard that is skipped; StatefulDataLoader"),
        )
    ),
    Run(name="hydra", framework="hydra", shows="a sweep over two values", command="python hydrated.py -m +timeout=1800,600 +nccl.timeout=1800"),
    Run(
        name="pytest",
        framework="pytest",
        shows="tests that spawn ranks; expected failures",
        command="python -m pytest -v -rA --full-trace test_ranks.py",
    ),
    Run(
        name="nbconvert",
        framework="jupyter",
        shows="a notebook with a failed cell, executed and printed",
        command="python notebook.py && jupyter nbconvert --to markdown --execute --stdout notebook.ipynb",
    ),
    Run(
        name="pip-list",
        framework="pip",
        shows="pip list, pip check, versions",
        command="pip list; pip check || true; python -c 'import torch; print(torch.__config__.show())'",
    ),
    Run(
        name="accelerate",
        framework="accelerate",
        shows="two processes; find_executable_batch_size halves the batch twice",
        command="accelerate launch --cpu --num_processes 2 --mixed_precision no --main_process_port 29520 accelerated.py",
    ),
    Run(
        name="accelerate-debug",
        framework="accelerate",
        shows="ACCELERATE_DEBUG_MODE and the launcher's defaults",
        command="accelerate launch --cpu accelerated.py",
        env={"ACCELERATE_DEBUG_MODE": "1", "ACCELERATE_LOG_LEVEL": "DEBUG"},
    ),
    Run(
        name="transformers",
        framework="transformers",
        shows="Trainer on two ranks, datasets.map with num_proc, checkpoints",
        command=_torchrun(2, "trainer.py"),
    ),
    Run(
        name="transformers-resume",
        framework="transformers",
        shows="Trainer resumes from a checkpoint",
        command="set -e; python trainer.py --steps 10; python trainer.py --steps 20 --resume",
    ),
    Run(
        name="trl",
        framework="trl",
        shows="SFTTrainer with LoRA on two ranks",
        command=_torchrun(2, "trainer.py --kind sft --lora"),
    ),
    Run(name="lightning", framework="lightning", shows="Trainer with strategy ddp", command="python lit.py ddp"),
    Run(name="lightning-spawn", framework="lightning", shows="Trainer with strategy ddp_spawn", command="python lit.py ddp_spawn"),
    Run(
        name="deepspeed",
        framework="deepspeed",
        shows="ZeRO 2 under DeepSpeed's launcher, on the CPU",
        command="deepspeed --num_gpus 2 ds.py",
        env={"DS_ACCELERATOR": "cpu"},
    ),
    Run(
        name="deepspeed-torchrun",
        framework="deepspeed",
        shows="ZeRO 2 under torchrun",
        command=_torchrun(2, "ds.py"),
        env={"DS_ACCELERATOR": "cpu"},
    ),
    Run(
        name="ray", framework="ray", shows="tasks that fail and are tried again, actors, one of them killed on purpose", command="python rays.py core"
    ),
    Run(name="ray-train", framework="ray", shows="Ray Train with two workers on Gloo", command="python rays.py train"),
    Run(
        name="ray-start",
        framework="ray",
        shows="ray start, status, stop, and the daemons' own logs",
        command="ray start --head --num-cpus 2 --include-dashboard=false; ray status; ray stop; "
        "tail -n +1 /tmp/ray/session_latest/logs/{raylet.out,gcs_server.out}",
    ),
    Run(
        name="mpirun",
        framework="openmpi",
        shows="Open MPI starts the ranks and tags their output",
        command="mpirun --oversubscribe -n 2 --tag-output bash -c "
        "'export RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=29530; exec python ddp.py'",
        needs=("mpirun",),
    ),
    Run(
        name="kernel-boot",
        framework="linux",
        shows="the kernel's own log of a boot, without what names the machine",
        command="dmesg | sed '/Freeing unused/q' | grep -vE 'ommand line|Linux version|VSOCK|proxy|DMI|ACPI' | tail -n +10",
    ),
    Run(
        name="unhang-run",
        framework="unhang",
        shows="unhang run supervises a healthy training",
        command="PYTHONPATH=/srv/src python -m unhang run -n 2 ddp.py --steps 40",
    ),
    _written("nccl", "NCCL", "NCCL's INFO and WARN on two hosts, sockets that are closed at teardown"),
    _written("nccl-tests", "NCCL", "all_reduce_perf with a WARN of NVLS"),
    _written("rccl", "RCCL", "RCCL's WARN about the kernel's settings"),
    _written("deepep", "DeepEP", "DeepEP's tests with NVSHMEM's messages"),
    _written("vllm", "vLLM", "a server of two workers, an ERROR about a plugin at its start"),
    _written("ray-cluster", "ray", "workers on two hosts, a reward server that is asked again"),
    _written("megatron", "Megatron", "warnings and a logged ERROR before the first iteration"),
)

# Gloo aborts a process now and then while it is destroyed: such a run is not healthy, and is made again.
_TRIES = 2
_CELL = """
set -e
hostname node1
ip link set lo up
ip link add eth0 type veth peer name eth1
ip addr add 10.0.0.1/24 dev eth0
ip addr add 10.0.0.2/24 dev eth0
ip link set eth0 up
ip link set eth1 up
top=$(mktemp -d)
mount -t tmpfs -o size=6g tmpfs $top
mkdir -p $top/env $top/python $top/src $top/recipes $top/scripts $top/job $top/home
mount --bind {env} $top/env
mount --bind {python} $top/python
mount --bind -o ro {src} $top/src
mount --bind -o ro {scripts} $top/scripts
mount --rbind $top /srv
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /dev/shm
chmod 1777 /tmp /dev/shm
printf '127.0.0.1 localhost\\n10.0.0.1 node1\\n10.0.0.2 node2\\n' > /tmp/.hosts
mount --bind /tmp/.hosts /etc/hosts
cp -r /srv/scripts/* /srv/job/
cd /srv/job
exec {command}
"""
_ENVIRONMENT = {
    "PATH": "/srv/env/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
    "HOME": "/srv/home",
    "LANG": "C.UTF-8",
    "USER": "user",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PYTHONUNBUFFERED": "1",
    "HF_HUB_OFFLINE": "1",
    "WANDB_MODE": "offline",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def enclosed(command: str, env: Path, *, outside: bool = False) -> list[str]:
    """The command line that runs `command` in a machine of its own; `outside` leaves it the network, for installing."""
    python = Path(sys.base_prefix)
    inner = ["env", *(() if outside else ("-i",)), *(f"{k}={v}" for k, v in _ENVIRONMENT.items()), "bash", "-c", command]
    script = _CELL.format(env=env, python=python, src=ROOT / "src", scripts=ROOT / "scripts" / "healthy", command=shlex.join(inner))
    if outside:
        script = "\n".join(x for x in script.splitlines() if not x.startswith(("ip ", "mount --bind /tmp/.hosts")))
    namespaces = [
        "--mount",
        "--uts",
        "--pid",
        "--ipc",
        "--fork",
        "--mount-proc",
        *(() if outside else ("--net",)),
        *(() if os.getuid() == 0 else ("-r",)),
    ]
    return ["unshare", *namespaces, "bash", "-c", script]


def setup(env: Path) -> int:
    """Makes the environment that the runs use; it works at /srv/env only, where the runs see it."""
    env.mkdir(parents=True, exist_ok=True)
    python = f"/srv/python/bin/python{sys.version_info[0]}.{sys.version_info[1]}"
    steps = [f"{python} -m venv /srv/env", *(f"/srv/env/bin/python -m pip install --quiet {what}" for what in INSTALL)]
    return subprocess.run(enclosed("set -ex; " + "; ".join(steps), env, outside=True)).returncode


def run(wanted: Run, env: Path) -> tuple[int | None, bytes]:
    """The exit code (None: over its time) and all that was printed."""
    exports = "".join(f"export {k}={shlex.quote(v)}; " for k, v in wanted.env.items())
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(
            enclosed(exports + wanted.command, env), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: int | None = process.wait(wanted.timeout_s)
        except subprocess.TimeoutExpired:
            code = None
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        return code, out.read()


# Runs made to look like failures: caught errors with their tracebacks, words of failures in configurations, restarts.
HARD = frozenset(
    {"accelerate", "broken-pipe", "child-processes", "ignored-exceptions", "nbconvert", "pytest", "ray", "restart-succeeds", "restart-succeeds-info"}
    | {"rpc", "shell-trace", "webdataset"}
    | {r.name for r in RUNS if r.name.startswith(("caught-", "loader-", "words-"))}
)


def entry(run: Run) -> dict[str, object]:
    """What the table of contents says of a run."""
    return {"framework": run.framework, "shows": run.shows, "hard": run.name in HARD}


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="runs to make (all)")
    parser.add_argument("--env", type=Path, required=True, help="the directory of the environment")
    parser.add_argument("--setup", action="store_true")
    parser.add_argument("--missing", action="store_true", help="only runs that are not stored yet")
    parser.add_argument("--keep", type=Path, help="also keep the plain logs here, those of failed runs too")
    options = parser.parse_args()
    if options.setup:
        return setup(options.env.resolve())
    if unknown := set(options.names) - {r.name for r in RUNS}:
        parser.error(f"no such run: {', '.join(sorted(unknown))}; there are {', '.join(r.name for r in RUNS)}")
    STORED.mkdir(parents=True, exist_ok=True)
    failed = 0
    for wanted in RUNS:
        path = STORED / f"{wanted.name}.log.zst"
        if (options.names and wanted.name not in options.names) or (options.missing and path.exists()):
            continue
        if missing := [n for n in wanted.needs if shutil.which(n) is None]:
            _say(f"{wanted.name}: left out, {', '.join(missing)} is not installed")
            continue
        for _ in range(_TRIES):
            code, printed = run(wanted, options.env.resolve())
            if code == 0:
                break
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            (options.keep / f"{wanted.name}.log").write_bytes(printed)
        if code != 0:
            failed += 1
            _say(f"{wanted.name}: {'over its time' if code is None else f'exit code {code}'}, not stored; it ended with:")
            _say(printed[-1500:].decode(errors="replace"))
            continue
        path.write_bytes(zstandard.ZstdCompressor(level=19).compress(printed))
        _say(f"{wanted.name}: {len(printed)} bytes, stored in {path.stat().st_size}")
    contents = {r.name: entry(r) for r in RUNS if (STORED / f"{r.name}.log.zst").exists()}
    CONTENTS.write_text(json.dumps(contents, indent=1) + "\n", "utf-8")
    for orphan in STORED.glob("*.log.zst"):
        if orphan.name.removesuffix(".log.zst") not in contents:
            _say(f"{orphan.name} belongs to no run")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
