"""Whose log a file is, as far as its name and its directories tell: rank, local rank, host, process, attempt.

Only grammars that leave no choice are read: `worker-3` inside a pod's name is a machine, a number alone is nothing.
"""

from __future__ import annotations

import re
from functools import lru_cache

from unhang.model import frozen
from unhang.patterns import lazily

# A host name that is recognisable as one: "node7", "job-abc-worker-3", "dgx-a100-03.cluster.local", "ip-10-0-0-2". "gpu0" and "gpt-2" are none.
_NODE_STEMS = "node|worker|host|compute|dgx|hgx|master|slave|server|nid|cn|gn|gpunode|cnode"
NODE_NAME = (
    rf"(?:[a-z0-9]{{1,63}}-){{0,12}}(?:(?:{_NODE_STEMS})\d{{1,9}}(?:-[a-z]?\d{{1,9}}){{0,8}}"
    rf"|(?:{_NODE_STEMS}|launcher|chief|head|trainer|vm|ip|algo)(?:-[a-z]?\d{{1,9}}){{1,9}})(?:\.[a-z][a-z0-9-]{{0,62}}){{0,8}}"
)
IP_ADDRESS = r"\d{1,3}(?:\.\d{1,3}){3}"


@frozen
class Owner:
    """Whose a file is; None where the name does not tell. `attempt` counts from 1, though torchrun and run directories count from 0."""

    rank: int | None = None
    local_rank: int | None = None
    host: str | None = None
    pid: int | None = None
    attempt: int | None = None


# Directories further above say nothing of a file.
NEAREST = 32
_PARTS = lazily(r"[/\\!]+")
_SUFFIX = lazily(r"\.(?:gz|xz|zst|bz2|lz4|tar|tgz|txz|zip|log|txt|out|err|stdout|stderr|json|jsonl)$", re.IGNORECASE)
_ATTEMPT = lazily(r"attempt[-_]?(\d{1,6})", re.ASCII)
_STREAM = lazily(r"std(?:out|err)\.log|error\.json")
# "rank3", "rank_03", "rank.3", "rank=3"; "node_rank_3" is another thing.
_RANK = lazily(r"(?<![a-z])(local|node|machine|group|role|replica)?[-_.]?rank[-_.=]?(\d{1,7})(?!\d)", re.ASCII)
_RANGE = lazily(r"ranks?[-_.]?\d+(?:-|\.\.|_to_)(?:rank)?\d{1,5}(?![\d-])", re.ASCII)
_WORKER = lazily(r"(?:log[-_.])?worker[-_.]?(\d{1,7})", re.ASCII)
# submitit: <job>[_<array task>]_<task>_log.err
_SUBMITIT = lazily(r"\d+(?:_\d+)?_(\d{1,7})_log", re.ASCII)
_PID = lazily(r"(?<![a-z])pid[-_.=]?(\d{1,8})(?!\d)", re.ASCII)
# NCCL_DEBUG_FILE with %h and %p, as people write it.
_NCCL = lazily(
    r"nccl(?:[-_.]?(?:debug|log|info|trace|out))*[-_.](?:([\w.-]*[A-Za-z][\w.-]*?|[\d.]+)[-_.])?(?:pid[-_.]?)?(\d{3,8})", re.ASCII | re.IGNORECASE
)
# Ray: worker-<id>-<job>-<pid>, python-core-worker-<id>_<pid>
_RAY = lazily(r"(?:worker-[0-9a-f]{28,56}-[0-9a-f]{8}-|python-core-(?:worker|driver)-[0-9a-f]{28,56}_)(\d{1,8})", re.ASCII)
# kubelet: /var/log/containers/<pod>_<namespace>_<container>-<id>.log and /var/log/pods/<namespace>_<pod>_<uid>/<container>/0.log
_CONTAINER = lazily(r"([a-z0-9][a-z0-9.-]*)_[a-z0-9-]+_[a-z0-9-]+-[0-9a-f]{64}", re.ASCII)
_POD = lazily(r"[a-z0-9-]+_([a-z0-9][a-z0-9.-]*)_[0-9a-f]{8}-[0-9a-f-]{27}", re.ASCII)
# "job-abc-worker-3", "job-abc-worker-3-x7k2p"; with "worker-3" alone there is no job before it.
_POD_NAME = lazily(r"[a-z0-9][a-z0-9-]*-(?:worker|master|launcher|chief|head|trainer|node|ps|replica)-\d{1,6}(?:-[a-z0-9]{5})?", re.ASCII)
_NODE = lazily(rf"{NODE_NAME}|{IP_ADDRESS}", re.ASCII)
# "job-1234-node7-3": where the host's name begins and ends is open; "node7" is part of it at least.
_JOB_ID = lazily(r"(?:^|-)\d+-[a-z]", re.ASCII)
_NODE_PART = lazily(r"(?:node|host|compute|dgx|hgx|nid|cn|gn|gpunode)\d{1,6}", re.ASCII)


@lru_cache(maxsize=1024)
def owner_of(name: str) -> Owner:
    """Whose log `name` is: a path, or `archive.tar.gz!member`. Never raises."""
    parts = [p for p in _PARTS.split(name[-4096:]) if p not in ("", ".", "..")][-NEAREST:]
    if not parts:
        return Owner()
    file, directories = parts[-1], parts[:-1]
    stem = file
    while (cut := _SUFFIX.sub("", stem)) != stem and cut:
        stem = cut
    attempt = next((int(found[1]) + 1 for part in reversed(parts) if (found := _ATTEMPT.fullmatch(part))), None)
    if found := _RAY.fullmatch(stem):
        return Owner(pid=int(found[1]), attempt=attempt)
    rank, local_rank = _ranks(stem)
    if rank is None and local_rank is None:
        if _STREAM.fullmatch(file) and len(parts) > 2 and _ATTEMPT.fullmatch(parts[-3]) and parts[-2].isascii() and parts[-2].isdigit():
            local_rank = int(parts[-2][-7:])
        elif found := (_WORKER.fullmatch(stem) or _SUBMITIT.fullmatch(stem)):
            rank = int(found[1])
        else:
            rank, local_rank = next((r for d in reversed(directories) if (r := _ranks(d)) != (None, None)), (None, None))
    host, pid = _host_in(stem), None
    if found := _PID.search(stem):
        pid = int(found[1])
    elif rank is None and local_rank is None and (found := _NCCL.fullmatch(stem)):
        host, pid = found[1] or host, int(found[2])
    if host is None:
        host = next((h for d in reversed(directories) if (h := _host_of(d))), None)
    return Owner(rank=rank, local_rank=local_rank, host=host, pid=pid, attempt=attempt)


def _ranks(part: str) -> tuple[int | None, int | None]:
    """(rank, local rank) that one component names; two different ranks name none."""
    part = part.lower()
    if _RANGE.search(part):
        return None, None
    ranks: set[int] = set()
    local_ranks: set[int] = set()
    for kind, number in _RANK.findall(part):
        if kind in ("", "local"):
            (local_ranks if kind else ranks).add(int(number))
    return (ranks.pop() if len(ranks) == 1 else None), (local_ranks.pop() if len(local_ranks) == 1 else None)


def _host_of(part: str) -> str | None:
    """The host that a whole component is."""
    for pattern in (_CONTAINER, _POD):
        if found := pattern.fullmatch(part):
            return found[1]
    return part if _POD_NAME.fullmatch(part) or _NODE.fullmatch(part) else None


def _host_in(stem: str) -> str | None:
    if _WORKER.fullmatch(stem):
        return None
    if (host := _host_of(stem)) and not _JOB_ID.search(stem):
        return host
    # "node7-rank3", "rank_3.node7": what is left beside the rank.
    for left in _RANK.split(stem)[::3]:
        if left != stem and (host := _host_of(left.strip("-_."))):
            return host
    among = {p for p in re.split(r"[-_.]", stem) if _NODE_PART.fullmatch(p)}
    return among.pop() if len(among) == 1 else None
