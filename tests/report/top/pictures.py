"""Pictures of runs that need no run."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.chinese import both

from unhang.records.run_snapshot import STATES, Job, Rank, RunSnapshot, Supervisor, Trouble, VerdictSummary
from unhang.records.run_so_far import Calls, Failures, Happened, Monitored, Silent, Straggler
from unhang.records.status import Place


def rank(of: int, state: str = "running", **fields: Any) -> Rank:
    told = {"host": "node1", "pid": 1000 + of, "local_rank": of % 8, "world_size": 8, "backend": "nccl", "device": "cuda:0", "step": 500}
    told |= {"steps_per_s": 3.25, "age_s": 0.3, "quiet_s": 0.1, "place": Place(file="/home/u/project/train.py", line=42, name="main")}
    return Rank(**(told | {"rank": of, "state": state} | fields))


def picture(*ranks: Rank, phase: str = "running", monitored: bool = False, **fields: Any) -> RunSnapshot:
    supervisor = Supervisor(host="node1", pid=4711, alive=True, silent_s=0.4)
    job = Job(
        phase=phase,  # type: ignore[arg-type]
        supervisor=supervisor,
        command=("torchrun", "--nproc-per-node", "8", "train.py", "--note", "two words"),
        attempt=0,
        max_restarts=3,
        on_failure="restart",
        elapsed_s=723.0,
        expected=len(ranks),
        step=500,
        steps_per_s=3.25,
        usual_gap_s=0.31,
        hang_after_s=11.0,
        timeout_s=1800.0,
        **fields,
    )
    counts = Counter(r.state for r in ranks)
    return RunSnapshot(
        run_dir="runs/train-20261121-031500",
        time_s=1_795_230_900.0,
        job=job,
        ranks=ranks,
        counts={s: counts[s] for s in STATES if counts[s]},
        monitor=MONITORED if monitored else None,
        monitor_age_s=4.0 if monitored else None,
        events=(
            Happened(s=0.5, event="Started", fields={"attempt": 0, "pid": 100, "command": []}),
            Happened(s=6.0, event="FirstStep", fields={"ranks": 8, "devices": ["cuda:0"], "backend": "nccl", "after_s": 5.5}),
            Happened(s=9.0, event="Note", fields={"text": "escape \x1b[31m and \x07 bell"}),
            Happened(s=10.0, event="Teleported", fields={}),
        ),
    )


MONITORED = Monitored(
    time_s=1_795_230_896.0,
    world_size=8,
    heard_from=7,
    calls=(
        Calls(group="world", collective="all_reduce", count=4200, latency_p50_s=0.0012, latency_p95_s=0.034, latency_p99_s=1.5, busbw_p50_gbps=12.5),
        Calls(group="ranks 0,1", collective="barrier", count=3, latency_p50_s=0.0001, latency_p95_s=0.0002, latency_p99_s=0.0003),
    ),
    failures=(Failures(group="world", collective="all_reduce", cause="timeout", count=2, says="rank 5 did not come"),),
    stragglers=(Straggler(group="world", rank=5, waited_s=12.0, share=0.8), Straggler(group="world", rank=2, waited_s=3.0, share=0.2)),
    silent=(Silent(rank=5, for_s=31.0), Silent(rank=6, for_s=45.0)),
    store_lost="it no longer answers",
    torch_collectives="counted",
    unread={"world": 12, "ranks 0,1": 3},
    evaluation_says="rank 1: KeyError: a label",
    interval_s=10.0,
    interval_calls=(Calls(group="world", collective="all_reduce", count=9, latency_p50_s=0.25),),
    interval_stragglers=(Straggler(group="world", rank=6, waited_s=4.0, share=1.0),),
    deadlines_s={"all_reduce": 30.0},
    evaluations=4,
    evaluation_failures=1,
)
TOLD = VerdictSummary(
    attempt=0, cause="process-stuck", says=both("rank 3 is stuck " * 30, "rank 3 卡住。" * 30), standing="established", where="t.py:1", ranks=(3,)
)
TROUBLE = Trouble(kind="hang", number=1, for_s=12.0, judged=False)


def thousand() -> RunSnapshot:
    """1,024 ranks on 128 hosts, three of them worth a look."""
    odd = {17: "silent", 513: "failed", 1000: "late"}
    more = {513: {"raised": "ValueError: no such batch", "exitcode": 1}, 17: {"process": "T", "age_s": 12.0}}
    return picture(*(rank(n, odd.get(n, "running"), host=f"node{n // 8}", step=500 + n % 3, **more.get(n, {})) for n in range(1024)))
