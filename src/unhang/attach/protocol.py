"""What an attached process and the supervisor say to each other: one JSON object on each line, over a Unix socket.

Only the standard library is used here: the attached process may live in an environment in which unhang is not installed.

From the process ("m" names the message; pid is checked against the kernel's word for the peer):
    hello     {v, token, pid, rank, local_rank, world_size, restarts, host, python, argv, wants_stdio}
              rank, local_rank, world_size, restarts come from the environment and may be null. First message, once.
    joined    {rank, world_size, backend, device, gpu, timeout_s, torch}  torch.distributed was initialised
    left      {}                                                          ... and was destroyed
    stepping  {device, gpu, torch, initialized, argv}                     the first optimizer step has ended
    training  {pid, tid}                                                  the thread that trains is not the main one; null: it is again
    beat      {t, step, groups: {name: [enqueued, completed]}, place: [file, line, name] | null, sig, inside: str | null, promised}
              t: CLOCK_MONOTONIC in seconds. sig: changes whenever the main thread stands at another instruction.
              inside: the function of torch.distributed, or of unhang's library, that the main thread waits in;
              promised: for how many seconds that may go on by the user's own word, else 0.
    evidence  {id, threads: [{name, main, tid, frames: [[file, line, name, code, arguments], ...]}], groups, step, tid}
              frames innermost last. tid: a thread, as the kernel counts it; beside the others, the one that answers.
              Sent before the dump is made, which may take long or never end.
    dumped    {id, flight: bool, error: str | null}
              follows each evidence. flight: the dump was written where the request said.
    raised    {type, text, frames, flight: bool}                          waits for "go" (at most GO_TIMEOUT_S)
    exits     {frames}                                                    the script called sys.exit, exit or os._exit, and ends by it
    overridden  {what, was, now, place: [file, line] | null}              the script asked for something else than the user of unhang
    ignored   {what, value, why}                                          ... and where that could not be done. why:
              "value": it is none; "tensors": Gloo does not take them; "unknown": a version of a framework that looks otherwise;
              "iterable": its dataset would come once for each worker; "workers": the loader has none
    missed    {ranks}                                                     unhang's library has waited for those in vain, and gone on
    finished  {}                                                          the script has run to its end, without an exception or an exit code;
              before "leaving", and before anything of the interpreter is torn down
    leaving   {}                                                          the interpreter ends in order
    stopping  {workers: [{local_rank, pid, exitcode}]}                    a launcher is about to stop its workers; waits for "go"

From the supervisor:
    stdio     {}       carries two file descriptors, stdout and stderr; only as the answer to a hello with wants_stdio
    refused   {why}    then it closes
    evidence  {id, flight: path}
    go        {}
"""

from __future__ import annotations

import json
import os

VERSION = 1
BEAT_INTERVAL_S = 0.25
# An uncaught exception, or a launcher that is about to stop its workers, waits no longer than this for the evidence of the others.
GO_TIMEOUT_S = 10.0
# Stacks of a process with hundreds of threads stay far below this.
MAX_MESSAGE_BYTES = 8 * 1024 * 1024

# The environment of an attached process.
ENV_SWITCH = "UNHANG_ATTACH"  # "0" switches everything off
ENV_SOCKET = "UNHANG_SOCKET"  # path of the supervisor's Unix socket
ENV_TOKEN = "UNHANG_TOKEN"  # says that the process belongs to this run
ENV_SUPERVISOR = "UNHANG_SUPERVISOR_PID"  # may read this process from outside (PR_SET_PTRACER)
ENV_FATAL = "UNHANG_FATAL_DIR"  # where stacks go when a signal ends the process
ENV_RUN = "UNHANG_RUN_DIR"  # the run directory
ENV_STDIO = "UNHANG_STDIO"  # "dev:ino,dev:ino" of the supervisor's own stdout and stderr pipes
ENV_ATTEMPT = "UNHANG_ATTEMPT"  # 0, 1, ...: how often this run was restarted
ENV_RANK_PID = "UNHANG_RANK_PID"  # set by the hook: the pid of the rank's main process, so that its children are not taken for it
ENV_STEP_TIMES = "UNHANG_STEP_TIMES_DIR"  # where each process writes when its optimizer steps ended; only `unhang bench` sets it
ENV_STEP_VARIABLES = "UNHANG_STEP_VARIABLES"  # with it: names of variables to record beside those of FAMILIES
ENV_STEP_LIMIT = "UNHANG_STEP_LIMIT"  # with it: the step at which every rank ends

# What the user of unhang asks for over the script's head: applied by the hook, in every rank alike.
ENV_BACKEND = "UNHANG_BACKEND"  # "gloo": the backend of every process group
ENV_TIMEOUT = "UNHANG_TIMEOUT_S"  # seconds: of every process group and its store
ENV_LOADER_WORKERS = "UNHANG_LOADER_WORKERS"  # num_workers of every torch.utils.data.DataLoader
ENV_LOADER_WORKERS_MOST = "UNHANG_LOADER_WORKERS_MOST"  # of those that have more; where the former says nothing
ENV_PIN_MEMORY = "UNHANG_PIN_MEMORY"  # 0 or 1
ENV_PERSISTENT_WORKERS = "UNHANG_PERSISTENT_WORKERS"  # 0 or 1
ENV_PREFETCH = "UNHANG_PREFETCH"  # prefetch_factor, batches for each worker
ENV_BUCKET = "UNHANG_DDP_BUCKET_MB"  # bucket_cap_mb of every DistributedDataParallel
ENV_CUDNN_BENCHMARK = "UNHANG_CUDNN_BENCHMARK"  # 0 or 1: torch.backends.cudnn.benchmark from the first optimizer step on
WISHES = (
    ENV_BACKEND,
    ENV_TIMEOUT,
    ENV_LOADER_WORKERS,
    ENV_LOADER_WORKERS_MOST,
    ENV_PIN_MEMORY,
    ENV_PERSISTENT_WORKERS,
    ENV_PREFETCH,
    ENV_BUCKET,
    ENV_CUDNN_BENCHMARK,
)


def open_private(path: str, flags: int) -> int:
    """The `opener` of `open` for a file that is its owner's alone from the first: it holds stacks, arguments or an environment."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def encode(kind: str, **fields: object) -> bytes:
    """One message as a line."""
    return json.dumps({"m": kind, **fields}, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, object]:
    """One line as a message, fit to be written as UTF-8. Raises ValueError for whatever is none."""
    try:
        message = json.loads(line)
        # File names and texts of exceptions may hold lone surrogates, which no encoder takes.
        if b"\\u" in line or not line.isascii():
            message = _encodable(message)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(message, dict) or not isinstance(message.get("m"), str):
        raise ValueError("not a message")
    return message


def _encodable(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return value
