"""A training whose configuration, environment and metrics are full of the words that failures use."""

# ruff: noqa: E501, T201
from __future__ import annotations

import json
import logging
import os
import sys

logging.basicConfig(level=logging.INFO, format="%(asctime)s [%(levelname)s] %(message)s", stream=sys.stdout)
log = logging.getLogger("train")
config = {
    "ddp_timeout": 1800,
    "ddp_timeout_options": {"timeout_ms": 1800000, "on_timeout": "abort"},
    "nccl_timeout": 1800,
    "watchdog": {"enabled": True, "heartbeat_timeout_sec": 600, "action": "dump and SIGABRT"},
    "nccl": {
        "debug": "WARN",
        "socket_ifname": "eth0",
        "ib_disable": 0,
        "p2p_level": "NVL",
        "ib_timeout": 22,
        "ib_retry_cnt": 7,
        "async_error_handling": True,
    },
    "oom": {"on_cuda_out_of_memory": "skip_batch", "max_oom_retries": 3, "oom_score_adj": 0},
    "elastic": {"max_restarts": 3, "rdzv_backend": "c10d", "rdzv_timeout": 900, "restart_on": ["SIGTERM", "exitcode 1", "node_failure"]},
    "checkpoint": {"ignore_errors": False, "on_disk_full": "delete_oldest", "no_space_left_threshold_gb": 50},
    "loss": {"mean_squared_error": 0.5, "label_error_rate": 0.0, "killed_weight": 0.1},
    "slurm": {"signal": "B:USR1@120", "requeue": True, "kill_on_bad_exit": 1, "time_limit": "24:00:00"},
    "shm_size": "16g",
    "ulimits": {"memlock": -1, "stack": 67108864, "nofile": 65536},
    "cuda_visible_devices": None,
    "fail_fast": True,
    "traceback": "short",
}
if sys.argv[1] == "config":
    print("Configuration:\n" + json.dumps(config, indent=2))
    log.info("config: %s", config)
if sys.argv[1] == "environment":
    for name, value in {
        "NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_TIMEOUT": "22", "NCCL_IB_HCA": "mlx5_0:1", "NCCL_P2P_DISABLE": "0", "NCCL_SHM_DISABLE": "0",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "600", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DESYNC_DEBUG": "1", "NCCL_ASYNC_ERROR_HANDLING": "1", "CUDA_LAUNCH_BLOCKING": "0", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "CUDA_VISIBLE_DEVICES": "",
    }.items():  # fmt: skip
        os.environ[name] = value
    os.system("env | sort")
    os.system("ulimit -a; df -h /dev/shm; free -m; mount | grep shm")
    log.info("environment: %s", {k: v for k, v in os.environ.items() if "NCCL" in k or "MASTER" in k})
if sys.argv[1] == "nccl-timeouts":
    for name in ("NCCL watchdog timeout", "NCCL_TIMEOUT", "collective timeout", "store timeout", "barrier timeout"):
        log.info("%s is set to 1800 seconds", name)
    log.info("if the run hangs, 'Watchdog caught collective operation timeout' is printed after 30 minutes and the process is killed")
    log.info("hint: CUDA out of memory can be avoided with --micro-batch-size 1; 'No space left on device' with --keep-last 2")
    log.info(
        "supported backends: nccl, gloo, mpi; nccl errors are raised asynchronously; unhandled system error messages: see docs/troubleshooting.md"
    )
metrics = {
    "error": 0.0312,
    "word_error_rate": 0.118,
    "timeout_rate": 0.0,
    "killed_requests": 0,
    "failed": 0,
    "oom_skipped": 0,
    "nccl_time_ms": 12.5,
    "connection_resets": 0,
    "nan_count": 0,
}
for step in range(10, 60, 10):
    log.info("step=%d %s", step, " ".join(f"{k}={v}" for k, v in metrics.items()))
    metrics["error"] *= 0.9
log.info("evaluation: 0 errors, 0 timeouts, 0 failures, 0 killed; terminated normally with exit code 0")
