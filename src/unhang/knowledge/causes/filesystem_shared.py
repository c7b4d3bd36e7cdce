"""filesystem-shared: a path is missing or differs on a node, or a shared file system lost it.

Long because each file system and loader tells it in words of its own; most of it is signatures and their lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from unhang.knowledge import text, words
from unhang.knowledge.cause import Cause, LogView, Signature, command
from unhang.knowledge.text import NOTHING, Text, same
from unhang.model import Evidence, Finding, HostFinding, Remedy
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.facts.snapshot import Snapshot
    from unhang.logs import Traceback

_QUOTED = lazily(r"No such file or directory: b?'(?P<path>[^']{1,200})'")
_MISSING_TYPES = ("FileNotFoundError", "NotADirectoryError", "HFValidationError")
_NOT_HERE = ("compare-nodes", "same-path-everywhere")
_RACE = ("one-writer", "node-local-cache")
# What compilers keep: all in these directories, and files that nothing else makes (Triton's backends for NVIDIA, AMD, Intel and Ascend).
_COMPILED = (
    r"[^']{0,300}(?:\.triton/|triton_cache|triton/cache|torchinductor|inductor_cache|torch_compile_cache|torch_extensions|ComputeCache"
    r"|\.tilelang/|\.cache/flashinfer|\.deep_gemm/)[^']{1,300}|[^']{1,400}\.(?:cubin|hsaco|amdgcn|ptx|ttir|ttgir|llir|spv|zebin|npubin|ttadapter)"
)
# Of other caches only what several processes write at once.
_CACHED = (
    r"[^']{0,300}(?:transformers_modules|huggingface/datasets|\.cache/)[^']{0,300}"
    r"\.(?:tmp\.pid[\w.-]{0,60}|lock|incomplete[^']{0,60}|json|so|arrow)"
)
_MOUNT = ("look-at-mount",)
# pdsh and ssh put the host in front of what a node printed. Without one it is the user's own shell, and a mistyped path.
_SCRIPT = "can't open file '/"
# Programs of a Python environment are env-relocation's.
_PROGRAMS = r"torchrun|accelerate|deepspeed|llamafactory-cli|uv|ray|vllm|pip|conda|python[\d.]*"


def _in_logs(view: LogView) -> Finding | None:
    hits = [h for h in view.hits_of(CAUSE.id) if h.signature.needle != _SCRIPT or h.host is not None]
    return CAUSE.of_hits(hits, view) or _of_one_host(view) or _of_one_rank(view)


def _of_one_host(view: LogView) -> Finding | None:
    """The ranks of one host miss a path that nobody else misses."""
    known = {(h.source, h.line) for hits in view.hits.values() for h in hits}
    missing = [t for t in view.tracebacks if t.type.rpartition(".")[2] in _MISSING_TYPES and (t.source, t.end) not in known]
    ranks = sorted({t.rank for t in missing if t.rank is not None})
    others = sorted(view.printed - set(ranks))
    if not _a_whole_host(ranks, others) or len({t.text for t in missing}) > 1 or any(t.rank is None for t in missing):
        return None
    first = missing[0]
    return CAUSE.finding(
        standing="likely",
        says=Text(
            "{who} did not find what {others} found: {said}; the path is missing on their host",
            "{who} 没有找到 {others} 能找到的路径：{said}；它们的主机上没有这个路径",
        ).fill(who=text.ranks(ranks), others=text.ranks(others), said=first.text.strip()[:200]),
        ranks=tuple(ranks),
        hosts=tuple(dict.fromkeys(t.host for t in missing if t.host is not None)),
        evidence=(first.evidence(), *_frame(first)),
        remedies=_NOT_HERE,
    )


def _of_one_rank(view: LogView) -> Finding | None:
    """One rank misses a path, and the others passed the same line: likely where they then waited in a collective.

    Rank 0 alone reads and writes much; samples differ by rank; a name with the rank's number in it is the script's own.
    """
    known = {(h.source, h.line) for hits in view.hits.values() for h in hits}
    missing = [t for t in view.tracebacks if t.type.rpartition(".")[2] == "FileNotFoundError" and not t.ignored and not t.chained]
    if len(missing) != 1 or (missing[0].source, missing[0].end) in known or not (rank := missing[0].rank):
        return None
    first, others = missing[0], view.printed - {rank}
    path = _QUOTED.search(first.text)
    if not others or (view.world_size or 2) < 2 or path is None or re.search(rf"(?<!\d)0*{rank}(?!\d)", path["path"]):
        return None
    if any("torch/utils/data/" in f.file or f.name in ("__getitem__", "__iter__", "__next__") for f in first.frames):
        return None
    waiting = {t.at.rank for t in view.timeouts} | {h.rank for hits in view.hits.values() for h in hits if h.signature.role == "symptom"}
    return CAUSE.finding(
        standing="likely" if waiting & others else "possible",
        says=Text(
            "rank {rank} alone did not find {path}, which {others} passed: it is missing on its host, or was removed under it",
            "只有 rank {rank} 没有找到 {path}，而 {others} 已经过了这一步：它的主机上没有这个路径，或者路径中途被删除",
        ).fill(rank=rank, path=path["path"], others=text.ranks(others)),
        ranks=(rank,),
        hosts=(first.host,) if first.host is not None else (),
        evidence=(first.evidence(), *_frame(first)),
        remedies=(*_NOT_HERE, "one-writer"),
    )


def _frame(back: Traceback) -> tuple[Evidence, ...]:
    return (Evidence(source=back.source, line=back.line, text=words.frame(back.frames[-1])),) if back.frames else ()


def _a_whole_host(ranks: Sequence[int], others: Sequence[int]) -> bool:
    """Ranks are numbered host by host: a block of two or more that begins at a multiple of its length, while other ranks are well."""
    if len(ranks) < 2 or not others:
        return False
    whole = list(ranks) == list(range(ranks[0], ranks[0] + len(ranks)))
    return whole and ranks[0] > 0 and ranks[0] % len(ranks) == 0


_PROBLEMS = {"stale": Text("a stale file handle", "文件句柄已失效（stale）"), "does not answer": Text("does not answer", "没有响应")}


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import storage

    seen = host.get(storage.SUBJECT)
    for place in seen.places if seen is not None else ():
        kind = Text(f", {place.kind} {place.device}", f"，{place.kind} {place.device}") if place.kind in storage.NETWORK else NOTHING
        on = Text("{path} ({purpose}{kind})", "{path}（{purpose}{kind}）").fill(path=place.path, purpose=storage.purpose(place.purpose), kind=kind)
        evidence = (Evidence(source=place.mount or place.path, text=f"{place.device} {place.kind} {','.join(place.options)}"),)
        if place.problem is not None:
            yield CAUSE.host_finding(
                area="storage",
                severity="error" if place.purpose != "Triton cache" else "warning",
                says=Text("{on}: {problem}", "{on}：{problem}").fill(on=on, problem=_PROBLEMS.get(place.problem, same(place.problem))),
                leads_to=Text(
                    "whoever touches it hangs in the kernel or fails with OSError, on this host only",
                    "访问它的进程会挂在内核里或以 OSError 失败，仅限本机",
                ),
                evidence=evidence,
                remedies=("look-at-mount", "compare-nodes"),
                commands={"look-at-mount": command("timeout 10 stat -f {path:path} || echo dead; findmnt -T {path:path}", path=place.path)},
            )
        elif place.writable is False:
            working = any(p in place.purpose for p in ("working", "checkpoints", "temporary"))
            yield CAUSE.host_finding(
                area="storage",
                severity="warning" if working else "note",
                says=Text("{on} cannot be written{why}", "{on}无法写入{why}").fill(
                    on=on, why=Text(": mounted read-only", "：以只读方式挂载") if "ro" in place.options else NOTHING
                ),
                leads_to=Text(
                    "checkpoints, caches or temporary files that go there fail with 'Permission denied' or 'Read-only file system'",
                    "写到那里的 checkpoint、缓存或临时文件会失败：'Permission denied' 或 'Read-only file system'",
                ),
                evidence=evidence,
                remedies=("node-local-cache",) if not working else ("look-at-mount",),
                commands={"look-at-mount": command("ls -ld {path:path}; findmnt -T {path:path} -o SOURCE,FSTYPE,OPTIONS", path=place.path)},
            )
        elif place.kind in storage.NETWORK and ("Triton" in place.purpose or "Inductor" in place.purpose):
            yield CAUSE.host_finding(
                area="storage",
                severity="note",
                says=Text("{on} is on a network file system", "{on}位于网络文件系统").fill(on=on),
                leads_to=Text(
                    "ranks of several hosts compile into one cache at once, and now and then read each other's half-written or vanished files",
                    "多台主机的 rank 同时往一个缓存里编译，偶尔会读到对方写了一半或已消失的文件",
                ),
                evidence=evidence,
                remedies=("node-local-cache",),
            )


CAUSE = Cause(
    id="filesystem-shared",
    role="root",
    title="A path is missing or differs on a node, or a shared file system lost it",
    title_zh="某个节点上路径缺失或不一致，或共享文件系统失效",
    what="A process did not find a file that exists elsewhere, found it changed under its hands, or its network mount went away.",
    why=(
        "The path is local to one node, several nodes write the same file at once, attributes are cached by NFS for some seconds, or the server or "
        "the mount process died."
    ),
    signatures=(
        Signature(
            needle="Stale file handle",
            pattern=r"Stale (?:NFS )?file handle: ?b?'(?P<path>[^']{1,400})'",
            says="{path} is stale: another host replaced or removed it on the shared file system while this one had it open",
            says_zh="{path} 的句柄已失效（stale）：本机打开它期间，另一台主机在共享文件系统上替换或删除了它",
            remedies=(*_RACE, "look-at-mount"),
        ),
        *(
            Signature(
                needle=needle,
                says="a file handle is stale: another host replaced or removed the file on the shared file system while this one had it open",
                says_zh="有文件句柄已失效（stale）：本机打开该文件期间，另一台主机在共享文件系统上替换或删除了它",
                remedies=(*_RACE, "look-at-mount"),
            )
            for needle in ("Stale file handle", "Stale NFS file handle")
        ),
        Signature(
            needle="Transport endpoint is not connected",
            pattern=r"\[Errno 107\] Transport endpoint is not connected: ?b?'(?P<path>[^']{1,400})'",
            says="the mount under {path} is gone: its FUSE process ended",
            says_zh="{path} 所在的挂载已失效：它的 FUSE 进程已结束",
            remedies=_MOUNT,
        ),
        Signature(
            needle="Transport endpoint is not connected",
            pattern=(
                r"^(?!.*(?:socket|NCCL WARN|gloo)).*?(?:(?:\[Errno 107\]|os error 107|cannot (?:access|open|stat)|fuse|mount).{0,200}"
                r"Transport endpoint is not connected|Transport endpoint is not connected \(os error 107\))"
            ),
            # What a traceback shows of a socket; a log of a training has the bare word everywhere.
            unless=r"socket\.py|\bsock(?:et)?\.\w+\(|\.recv\(|\.send\(|\.shutdown\(",
            standing="likely",
            says="a mount is gone: its FUSE process ended",
            says_zh="有挂载已失效：它的 FUSE 进程已结束",
            remedies=_MOUNT,
        ),
        Signature(
            needle="Cannot send after transport endpoint shutdown",
            pattern=r"\[Errno 108\] Cannot send after transport endpoint shutdown",
            says="Lustre evicted this client: every open file of the job is lost on this host",
            says_zh="Lustre 驱逐了本客户端：任务在本机打开的文件全部失效",
            remedies=_MOUNT,
        ),
        Signature(
            needle="LustreError:",
            pattern=r"This client was evicted by (?P<target>\S{1,80})",
            says="Lustre evicted this client from {target}: every open file of the job is lost on this host",
            says_zh="Lustre 把本客户端从 {target} 驱逐：任务在本机打开的文件全部失效",
            remedies=_MOUNT,
        ),
        Signature(
            needle="nfs: server ",
            pattern=r"nfs: server (?P<server>\S{1,200}) not responding, (?P<what>timed out|still trying)",
            standing="possible",
            says="the NFS server {server} did not answer ({what}): whoever touched its files was blocked",
            says_zh="NFS 服务器 {server} 没有响应（{what}）：访问其文件的进程都被阻塞",
            remedies=_MOUNT,
        ),
        Signature(
            needle="[Errno 37] No locks available",
            says="the shared file system gives no locks: its lock service is off, or the mount has nolock",
            says_zh="共享文件系统不提供文件锁：锁服务没有运行，或者挂载选项带有 nolock",
            remedies=("locks", "node-local-cache"),
        ),
        Signature(
            needle="nable to lock file, errno",
            pattern=r"[Uu]nable to lock file, errno = (?P<errno>\d+), error message = '(?P<error>[^']{1,80})'",
            standing="likely",
            says="HDF5 could not lock its file (errno {errno}, {error}), as on network file systems without locks",
            says_zh="HDF5 无法锁定文件（errno {errno}，{error}），在不支持锁的网络文件系统上会这样",
            remedies=("locks",),
        ),
        Signature(
            needle="execve():",
            pattern=rf"slurmstepd: error: (?:\[\S+\] )?execve\(\): "
            rf"(?!(?:\S{{1,300}}/)?(?:{_PROGRAMS}):|/\S{{1,300}}/bin/)(?P<path>\S{{1,300}}): No such file or directory",
            standing="likely",
            says="Slurm could not start {path} on a node: it is not there, or not on the PATH of that node",
            says_zh="Slurm 无法在某个节点上启动 {path}：那里没有它，或者它不在该节点的 PATH 上",
            remedies=(*_NOT_HERE, "environment-on-each-node"),
        ),
        Signature(
            needle="couldn't chdir to",
            pattern=r"couldn't chdir to `(?P<path>[^']{1,400})': No such file or directory",
            says="{path} does not exist on a node of the job",
            says_zh="任务的某个节点上不存在 {path}",
            remedies=_NOT_HERE,
        ),
        Signature(
            needle="Could not open stdout file",
            pattern=r"Could not open stdout file (?P<path>\S{1,400}): No such file or directory",
            says="{path} cannot be made on the node that runs the batch script",
            says_zh="在运行批处理脚本的节点上无法创建 {path}",
            remedies=_NOT_HERE,
        ),
        Signature(
            needle="No such file or directory",
            pattern=r"(?:ba)?sh: (?:line \d+: )?cd: (?P<path>/\S{1,400}): No such file or directory",
            standing="likely",
            says="{path} does not exist on a node that the launcher went to",
            says_zh="启动器连到的某个节点上不存在 {path}",
            remedies=_NOT_HERE,
        ),
        Signature(
            needle=_SCRIPT,
            pattern=r"can't open file '(?P<path>/[^']{1,400})': \[Errno 2\]",
            standing="likely",
            says="{path} does not exist on a node that the launcher went to",
            says_zh="启动器连到的某个节点上不存在 {path}",
            remedies=_NOT_HERE,
        ),
        Signature(
            needle="No such file or directory: '",
            pattern=r"No such file or directory: b?'(?P<path>[^']{1,400})' -> b?'(?P<target>[^']{1,400})'",
            standing="likely",
            says=(
                "{path} was gone when it was to be renamed to {target}: another process renamed or removed it first, as happens where several nodes "
                "write one directory"
            ),
            says_zh="要把 {path} 重命名为 {target} 时它已经不在：另一个进程抢先重命名或删除了它，多个节点写同一目录时会这样",
            remedies=_RACE,
        ),
        # exist_ok asks again whether it is a directory: on a shared file system that answer may be older than the directory.
        Signature(
            needle="[Errno 17] File exists: '",
            pattern=r"\[Errno 17\] File exists: '(?P<path>[^']{1,400})'",
            near=r"exist_ok ?= ?True",
            standing="likely",
            says="{path} exists although exist_ok=True was asked: several ranks made it at once on a shared file system, or it is a file",
            says_zh="指定了 exist_ok=True，{path} 仍报告已存在：多个 rank 在共享文件系统上同时创建了它，或它是一个文件",
            remedies=_RACE,
        ),
        Signature(
            needle="[Errno 39] Directory not empty: '",
            pattern=r"\[Errno 39\] Directory not empty: '(?P<path>[^']{1,400})'",
            standing="likely",
            says="{path} filled up again while it was renamed or removed: another process writes the same directory",
            says_zh="{path} 在重命名或删除期间又被写入了内容：另一个进程在写同一目录",
            remedies=_RACE,
        ),
        Signature(
            needle="[Errno 16] Device or resource busy: '",
            pattern=r"\[Errno 16\] Device or resource busy: '(?P<path>[^']{0,400}\.nfs[0-9a-f]{8,40})'",
            standing="likely",
            says="{path} is what NFS keeps of a removed file that some process still has open",
            says_zh="{path} 是 NFS 为已删除、但仍有进程打开着的文件保留的",
            remedies=("node-local-cache",),
        ),
        Signature(
            needle="zero checkpoints paths are missing",
            pattern=r"zero checkpoints paths are missing: \['(?P<path>[^']{1,400})'",
            says="DeepSpeed's checkpoint is spread over the nodes: {path} is not on this one",
            says_zh="DeepSpeed 的检查点分散在各节点上：{path} 不在本节点",
            remedies=("deepspeed-node-local", "same-path-everywhere"),
        ),
        Signature(
            needle="No such file or directory: '",
            pattern=(
                r"\[Errno 2\] No such file or directory: '(?P<path>[^']{0,400}(?:zero_pp_rank_\d+_mp_rank_\d+\w*|mp_rank_\d+_model_states"
                r"|rng_state_\d+|__\d+_\d+)\.(?:pt|pth|distcp))'"
            ),
            standing="likely",
            says="{path} is a part of a checkpoint that another rank wrote: it lies on that rank's node, or another node removed it",
            says_zh="{path} 是检查点中由另一个 rank 写的部分：它在那个 rank 的节点上，或者已被另一个节点删除",
            remedies=("deepspeed-node-local", "same-path-everywhere", "one-writer"),
        ),
        # Rank 0 alone builds these indices; a node without the shared directory finds nothing.
        Signature(
            needle="No such file or directory: '",
            pattern=(
                r"\[Errno 2\] No such file or directory: '(?P<path>[^']{0,400}(?:_(?:doc|sample|shuffle)_idx|-(?:document|sample"
                r"|shuffle)_index)\.npy)'"
            ),
            standing="likely",
            says="the index {path} of the data set is not on this node: one rank builds it, on a path that not every node shares",
            says_zh="数据集的索引 {path} 不在本节点上：它由一个 rank 构建，而所在路径并非所有节点共享",
            remedies=_NOT_HERE,
        ),
        *(
            Signature(
                needle=needle,
                pattern=rf"\[Errno \d+\] {needle}(?P<path>{_COMPILED}{more})'",
                standing="likely",
                says="{path} is in a cache that several processes or nodes share, and another one replaced or removed it",
                says_zh="{path} 位于多个进程或节点共用的缓存中，被另一个进程替换或删除了",
                remedies=("node-local-cache", "one-writer"),
            )
            for needle, more in (("No such file or directory: '", f"|{_CACHED}"), ("Device or resource busy: '", ""), ("Text file busy: '", ""))
        ),
        Signature(
            needle="[Errno 16] Device or resource busy: '",
            pattern=rf"\[Errno 16\] Device or resource busy: '(?P<path>(?!{_COMPILED}')[^']{{1,400}})' -> '(?P<target>[^']{{1,400}})'",
            standing="likely",
            says="{path} could not be renamed to {target}: on a shared file system another process or node still has it open",
            says_zh="无法把 {path} 重命名为 {target}：在共享文件系统上，另一个进程或节点仍打开着它",
            remedies=_RACE,
        ),
        Signature(
            needle="could not access or execute an executable",
            standing="likely",
            says="mpirun found no such program on a node",
            says_zh="mpirun 在某个节点上找不到该程序",
            remedies=(*_NOT_HERE, "environment-on-each-node"),
        ),
        Signature(
            needle="Repo id must ",
            pattern=r"Repo id must (?:be in the form|use alphanumeric).{0,200}: '(?P<path>(?:/|\./|\.\./)[^']{1,400})'",
            standing="possible",
            says="{path} does not exist on this node: a local path that is missing is taken for the name of a model",
            says_zh="本节点上不存在 {path}：本地路径不存在时，会被当成模型名称",
            remedies=_NOT_HERE,
        ),
        Signature(
            needle="is not a local folder and is not a valid model identifier",
            pattern=r"(?P<path>(?<![\w./+-])/[^\s']{1,400})'? is not a local folder and is not a valid model identifier",
            standing="possible",
            says="{path} does not exist on this node",
            says_zh="本节点上不存在 {path}",
            remedies=_NOT_HERE,
        ),
        # Without a path it is most often a terminal that went away under print().
        Signature(
            needle="[Errno 5] Input/output error: '",
            pattern=r"\[Errno 5\] Input/output error: b?'(?P<path>/[^']{1,400})'",
            unless=r"/dev/(?!shm/)",
            standing="likely",
            says="the file system under {path} returned an I/O error: a network mount that lost its server, or a failing disk",
            says_zh="{path} 所在的文件系统返回 I/O 错误：网络挂载失去了服务器，或者磁盘出了故障",
            remedies=_MOUNT,
        ),
        Signature(
            needle="[Errno 5] Input/output error",
            pattern=r"\[Errno 5\] Input/output error(?!:)",
            near=r"filesystem_async|torch/serialization\.py|dist_checkpointing|save_checkpoint|h5py|safetensors|np(?:yio)?\.(?:load|save)",
            standing="possible",
            says="a file system returned an I/O error while a checkpoint or data were written or read: a network mount, or a failing disk",
            says_zh="读写检查点或数据时文件系统返回 I/O 错误：网络挂载出了问题，或者磁盘出了故障",
            remedies=_MOUNT,
        ),
    ),
    in_logs=_in_logs,
    on_host=_on_host,
    remedies=(
        Remedy(
            id="compare-nodes",
            says="Look at the path from every node of the job.",
            says_zh="在任务的每个节点上查看该路径。",
            command="srun --ntasks-per-node=1 bash -c 'hostname; ls -ld PATH; findmnt -T PATH -o SOURCE,FSTYPE,OPTIONS'",
        ),
        Remedy(
            id="same-path-everywhere",
            says=(
                "Put code, data, models and checkpoints on a file system that all nodes mount at one place, or copy them to the same path on every "
                "node before the job starts."
            ),
            says_zh="把代码、数据、模型和检查点放在所有节点挂载于同一路径的文件系统上，或者在任务开始前复制到每个节点的相同路径。",
            command="srun --ntasks-per-node=1 rsync -a SOURCE/ PATH/",
        ),
        Remedy(
            id="environment-on-each-node",
            says="What a batch script makes in a node-local directory ($SLURM_TMPDIR, /tmp) exists on its own node only: make it once per node.",
            says_zh="批处理脚本在节点本地目录（$SLURM_TMPDIR、/tmp）里创建的东西只存在于它所在的节点：请在每个节点各建一次。",
            command='srun --ntasks-per-node=1 bash -c "python -m venv $SLURM_TMPDIR/env && $SLURM_TMPDIR/env/bin/pip install -r requirements.txt"',
        ),
        Remedy(
            id="one-writer",
            says=(
                "Let one rank of the job write, rename and remove in a shared directory (global rank 0), and let the others wait at a barrier; in "
                "the HF Trainer save_on_each_node=False with a current transformers."
            ),
            says_zh=(
                "共享目录里的写入、重命名和删除只由一个进程（全局 rank 0）完成，其他进程在 barrier 等待；HF Trainer 使用新版 transformers 并设 "
                "save_on_each_node=False。"
            ),
        ),
        Remedy(
            id="node-local-cache",
            says="Give each node caches of its own, on a local disk.",
            says_zh="让每个节点使用本地磁盘上的独立缓存。",
            env={"TRITON_CACHE_DIR": "/tmp/triton", "TORCHINDUCTOR_CACHE_DIR": "/tmp/inductor", "TORCH_EXTENSIONS_DIR": "/tmp/torch_extensions"},
            verify='findmnt -T "$TRITON_CACHE_DIR" -o FSTYPE && ls "$TRITON_CACHE_DIR" "$TORCHINDUCTOR_CACHE_DIR"',
        ),
        Remedy(
            id="deepspeed-node-local",
            says=(
                'Save to a file system that all nodes share; where there is none, set {"checkpoint": {"use_node_local_storage": true}} in the '
                "DeepSpeed configuration and resume with the same ranks on the same nodes."
            ),
            says_zh=(
                '保存到所有节点共享的文件系统；如果没有，在 DeepSpeed 配置中设 {"checkpoint": {"use_node_local_storage": true}}，并在相同节点上用相'
                "同 rank 恢复。"
            ),
        ),
        Remedy(
            id="look-at-mount",
            says="See whether the mount is alive, and what the kernel says of it.",
            says_zh="检查挂载是否存活，以及内核日志对它的记录。",
            command="timeout 10 stat -f PATH || echo dead; findmnt -T PATH; dmesg -T | grep -iE 'nfs|lustre|fuse|beegfs|ceph' | tail -20",
        ),
        Remedy(
            id="locks",
            says="Mount with locks (NFSv4, or rpc.statd for NFSv3; Lustre with flock), or, for HDF5 files that are only read, do without.",
            says_zh="挂载时启用文件锁（NFSv4，或为 NFSv3 启动 rpc.statd；Lustre 用 flock）；若 HDF5 文件只读，可以关闭锁。",
            env={"HDF5_USE_FILE_LOCKING": "FALSE"},
            verify="python -c \"import os, h5py; print(os.environ['HDF5_USE_FILE_LOCKING'], h5py.version.hdf5_version)\"",
        ),
    ),
    leads_to=("rank-exception", "process-stuck", "straggler-timeout"),
    mistaken_for={
        "config-error": "a script that is missing without any host's name in front was mistyped",
        "rank-exception": "a path that is missing on all ranks alike is wrong in the configuration, not on a node",
        "disk-full": "a lack of space says so: 'No space left' or 'Disk quota exceeded'",
        "shm-stale-or-missing": "names under /dev/shm, and /psm_ or /torch_ names, are shared memory",
        "launcher-wrong-env": "a program that is missing on a node may also be on another PATH there",
        "env-relocation": "an environment that is local to the first node looks like a broken one on the others",
        "ssh-launcher": "there the host is not reached at all",
        "framework-bug": "transformers 4.36 renamed checkpoints on every node; 4.37.2 and newer do not",
    },
    sources=(
        "https://man7.org/linux/man-pages/man5/nfs.5.html",
        "https://github.com/huggingface/transformers/issues/28015",
        "https://github.com/deepspeedai/DeepSpeed/issues/2319",
        "https://slurm.schedmd.com/faq.html",
        "https://github.com/GoogleCloudPlatform/gcsfuse/blob/master/docs/troubleshooting.md",
    ),
    hits=(
        "    os.makedirs(out, exist_ok=True)\nFileExistsError: [Errno 17] File exists: '/mnt/share/run7'",
        "[rank1]: OSError: [Errno 116] Stale file handle: '/srv/shared/.triton/cache/1c9a/kernel.json'",
        "OSError: [Errno 116] Stale file handle",
        "ls: cannot access '/srv/shared': Stale NFS file handle",
        "OSError: [Errno 107] Transport endpoint is not connected: '/srv/bucket/checkpoints'",
        "distributed_backend=gloo\nls: cannot access '/srv/bucket': Transport endpoint is not connected",
        "OSError: [Errno 108] Cannot send after transport endpoint shutdown",
        (
            "[88123.41] LustreError: 167-0: scratch-MDT0000-mdc-ffff8f: This client was evicted by scratch-MDT0000; in progress operations using "
            "this service will fail."
        ),
        "[88123.41] nfs: server nas2 not responding, still trying",
        "OSError: [Errno 37] No locks available",
        (
            "BlockingIOError: [Errno 11] Unable to synchronously open file (unable to lock file, errno = 11, error message = 'Resource temporarily "
            "unavailable')"
        ),
        "slurmstepd: error: execve(): /srv/u/run7/start.sh: No such file or directory",
        "slurmstepd: error: couldn't chdir to `/srv/u/run7': No such file or directory: going to /tmp instead",
        "slurmstepd: error: Could not open stdout file /srv/u/logs/out-71.txt: No such file or directory",
        "node8: bash: line 1: cd: /srv/u/train: No such file or directory",
        "node8: /usr/bin/python3: can't open file '/srv/u/train/train.py': [Errno 2] No such file or directory",
        "[rank8]: FileNotFoundError: [Errno 2] No such file or directory: 'out/tmp-checkpoint-49' -> 'out/checkpoint-49'",
        "OSError: [Errno 39] Directory not empty: 'out/tmp-checkpoint-49'",
        "OSError: [Errno 16] Device or resource busy: '/srv/shared/tmp/pymp-1a2b/.nfs000000000a41c2f7000003c1'",
        "OSError: [Errno 16] Device or resource busy: '/srv/shared/.triton/cache/U4/tmp.pid_4_8/utils.so' -> '/srv/shared/.triton/cache/U4/utils.so'",
        "OSError: [Errno 16] Device or resource busy: '/srv/shared/out/tmp-checkpoint-49' -> '/srv/shared/out/checkpoint-49'",
        "OSError: [Errno 26] Text file busy: '/srv/shared/torch_extensions/py311/fused/fused.so'",
        "FileNotFoundError: [Errno 2] No such file or directory: '/srv/kernels/1c9a77/attention.hsaco'",
        (
            "[2026-11-03 10:00:01,120] [WARNING] [engine.py:2836:_get_all_zero_checkpoints] The following zero checkpoints paths are missing: "
            "['out/step_5/zero_pp_rank_8_mp_rank_00_optim_states.pt', 'out/step_5/zero_pp_rank_9_mp_rank_00_optim_states.pt']"
        ),
        "[rank8]: FileNotFoundError: [Errno 2] No such file or directory: 'out/step_5/bf16_zero_pp_rank_8_mp_rank_00_optim_states.pt'",
        "FileNotFoundError: [Errno 2] No such file or directory: 'rng_state_1.pth'",
        "FileNotFoundError: [Errno 2] No such file or directory: '/srv/data/corpus_train_indexmap_2000ns_2048sl_1234s_doc_idx.npy'",
        "FileNotFoundError: [Errno 2] No such file or directory: '/home/u/.triton/cache/1c9a77/fused_kernel.json.tmp.pid_812_14'",
        "mpirun was unable to launch the specified application as it could not access or execute an executable:",
        (
            "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/srv/models/llama-7b'. "
            "Use `repo_type` argument if needed."
        ),
        "OSError: /srv/models/llama-7b is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'",
        ("OSError: [Errno 5] Input/output error: '/srv/shared/frames/train/clip_0042'"),
        ("ERROR:megatron.core.dist_checkpointing.strategies.filesystem_async:Local process 3 encountered an error: [Errno 5] Input/output error"),
    ),
    near_misses=(
        "    os.makedirs(out)\nFileExistsError: [Errno 17] File exists: '/mnt/share/run7'",
        "slurmstepd: error: execve(): accelerate: No such file or directory",
        "slurmstepd: error: execve(): /scratch/51/env/bin/python3.11: No such file or directory",
        "FileNotFoundError: [Errno 2] No such file or directory: '/srv/data/train.jsonl'",
        "OSError: [Errno 16] Device or resource busy: '/dev/nvidia0'",
        "Warning: The cache directory for DeepSpeed Triton autotune, /home/u/.triton/autotune, appears to be on an NFS system.",
        "FileNotFoundError: [Errno 2] No such file or directory: '/psm_5a1f20cc'",
        "libibverbs: Warning: couldn't open config directory '/etc/libibverbs.d': No such file or directory",
        "OSError: [Errno 107] Transport endpoint is not connected (socket 14 in recv)",
        "    self.sock.shutdown(socket.SHUT_RDWR)\nOSError: [Errno 107] Transport endpoint is not connected",
        "slurmstepd: error: *** STEP 71.0 ON node7 CANCELLED AT 2026-11-03T10:00:01 ***",
        "node7:812:901 [0] misc/shmutils.cc:93 NCCL WARN Call to open failed: No such file or directory",
        "OSError: gpt-5b is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'",
        ("OSError: [Errno 5] Input/output error"),
        ("OSError: [Errno 5] Input/output error: '/dev/pts/3'"),
    ),
    explain={
        "en": (
            "A job on several nodes sees several file systems. A path that is local to one node does not exist on the others; a directory that all "
            "share is written by all at once, so a file that one process just listed has been renamed or removed by another; NFS shows changes to "
            "other hosts seconds later; and a mount can die. The rank that raises is often not the one that did it. Look at the path from every "
            "node, let one rank alone rename and delete, and keep compiler and data set caches on local disks. If every rank misses the same path, "
            "the configuration is wrong, not a node."
        ),
        "zh": (
            "多节点任务面对的是多个文件系统。只存在于某个节点本地的路径，在其他节点上不存在；所有节点共享的目录会被同时写入，一个进程刚列出的文件可"
            "能已被另一个进程重命名或删除；NFS 的改动要过几秒其他主机才看得见；挂载本身也可能失效。抛出异常的进程往往不是造成问题的那个。请在每个节"
            "点上查看该路径，只让一个 rank 负责重命名和删除，把编译缓存和数据集缓存放在本地磁盘。如果所有进程都缺同一个路径，那是配置写错了，而不是"
            "某个节点的问题。"
        ),
    },
)
