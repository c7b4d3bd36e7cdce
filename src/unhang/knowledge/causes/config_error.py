"""config-error: an option of a launcher, a framework or the scheduler is unknown, malformed, or contradicts another."""

from __future__ import annotations

from unhang.knowledge import starting
from unhang.knowledge.caught_exceptions import passed_over
from unhang.knowledge.cause import STANDINGS, Command, cause, command
from unhang.knowledge.judge import Answer, Findings, Found, HostView, LogView, RunView
from unhang.logs import Hit
from unhang.model import Evidence
from unhang.patterns import lazily

CAUSE = cause("config-error")

# Two words only of programs that have subcommands, and of scripts behind their interpreter: others may name themselves by a sentence.
_PROGRAM_NAME = lazily(r"(?:(?:accelerate|python|ray|vllm|swift|deepspeed|llamafactory-cli) )?[\w./+-]{1,160}")


def in_logs(view: LogView) -> Answer:
    hits = tuple(h for h in view.hits_of(CAUSE.id) if not _of_others(h, view))
    if not hits:
        return None
    batch = next((h for h in hits if "world_size" in h.groups), None)
    if batch is None:
        best = min(hits, key=lambda h: STANDINGS.index(h.signature.standing))
        # What raised is the launcher, and none of its lines is at fault.
        launcher = best.signature in starting.BY_OTHERS
        missed = all(h.signature in starting.SIGNATURES for h in hits)
        helper = missed and any(starting.other_failed(view, h) for h in hits)
        # Remedies with the names that the line holds.
        found: dict[str, Command | None] = {}
        if script := best.groups.get("script"):
            folder, _, name = script.rpartition("/")
            found["name-the-script"] = command("ls -la {folder:path}", folder=folder or ("/" if script.startswith("/") else "."))
            runs = {"py": "python", "sh": "bash", "bash": "bash"}.get(name.rpartition(".")[2], "file")
            found["by-the-interpreter"] = command("head -1 {script:path}; {runs:name} {script:program}", script=script, runs=runs)
        program = best.groups.get("program", "").replace(" <command> [<args>]", "")
        if program.endswith(".py"):
            program = f"python {program}"
        if _PROGRAM_NAME.fullmatch(program):
            found["read-help"] = command("{program:program*} --help", program=program.split(" "))
        return CAUSE.of_hits(hits, None if launcher else view, standing="possible" if helper else None, commands=found)
    train, micro, steps, world = (int(batch.groups[k]) for k in ("train", "micro", "steps", "world_size"))
    fits = micro * steps * world
    return CAUSE.of_hits(
        (batch, *(h for h in hits if h is not batch)),
        view,
        Found("batch-size", train=train, micro=micro, steps=steps, world=world, fits=fits, alone=world == 1 and train > fits),
    )


def _of_others(hit: Hit, view: LogView) -> bool:
    """Whether a script was missed on one of several hosts, which is filesystem-shared's, or by a batch script that went on without it."""
    if hit.signature == starting.UNREADABLE and hit.host is not None and hit.groups["script"].startswith("/"):
        return True
    return hit.signature in starting.SIGNATURES and (passed_over(view, hit) or starting.trained_behind(view, hit))


def in_run(picture: RunView) -> Answer:
    hits = picture.hits_of(CAUSE.id)
    # A rank that took a step, or raised, had been started: what its batch script missed was a helper.
    if picture.raised or any(r.record.step for r in picture.ranks):
        hits = tuple(h for h in hits if h.signature not in starting.SIGNATURES)
    return CAUSE.of_hits(hits)


def on_host(host: HostView) -> Findings:
    """Variables whose values no program takes, that contradict one another or the host, or that cost more than they give."""
    from unhang.variables.examine import nothing_to_scan, of_environment

    seen = host.variables
    # The variables that other areas, where they were looked at, hold against the host by the same rules.
    from unhang.facts import gpu, infiniband, network

    net, rdma, gpus = host.get(network.SUBJECT), host.get(infiniband.SUBJECT), host.get(gpu.SUBJECT)
    told = {
        *(("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if net is not None and net.nccl.interfaces is not None else ()),
        *(("NCCL_IB_HCA",) if rdma is not None else ()),
        *(("CUDA_VISIBLE_DEVICES",) if gpus is not None and gpus.gpus and gpus.nvml_error is None else ()),
    }
    for one in of_environment(seen, nothing_to_scan):
        value = "" if one.value is None else f"={one.value}"
        for said in one.remarks:
            contradicts = said.kind == "contradiction" and not one.name.endswith("NCCL_ASYNC_ERROR_HANDLING")
            of_host = said.kind == "host" and one.name not in told
            if not (contradicts or of_host or said.kind in ("value", "effect")) or said.severity == "note":
                continue
            yield Found(
                "bad-value",
                severity="note" if one.name == "WORLD_SIZE" else said.severity,
                evidence=(Evidence(source=one.source, line=one.line, text=f"{one.name}{value}"),),
                one=one,
                value=value,
                said=said,
                costly=said.kind == "effect" and said.severity == "warning",
            )
