"""disk-full: no space where checkpoints, logs or caches go."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import Cause, Signature, command
from unhang.knowledge.text import Text
from unhang.model import Evidence, HostFinding, Remedy

if TYPE_CHECKING:
    from unhang.facts.snapshot import Snapshot

# 'No space left' in these places is shared memory, a limit of inotify, or an errno that was left over from either.
_SHARED_MEMORY = (
    r"/dev/shm|shm_open|_posixshmem|SemLock|multiprocessing/(?:shared_memory|synchronize|heap)\.py|SharedMemory\(|shared memory|/psm_|</torch_"
    r"|posix_fallocate|inotify|joblib will operate in serial mode"
)
_SPACE = ("what-fills-it", "keep-fewer", "move-caches")

_MIB = 1024 * 1024
# Below the first nothing of a training fits; below the second a checkpoint may not.
_NO_ROOM = 256 * _MIB
_LITTLE = 2048 * _MIB
_FILLED_BY = "df -h {path:path}; df -i {path:path}; du -xh --max-depth=2 {mount:path} 2>/dev/null | sort -h | tail -20"


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import storage
    from unhang.facts.units import size

    seen = host.get(storage.SUBJECT)
    said: set[str | None] = set()
    for place in seen.places if seen is not None else ():
        if place.space is None or place.mount in said:
            continue
        on = Text("{path} ({purpose}, on {mount})", "{path}（{purpose}，位于 {mount}）").fill(
            path=place.path, purpose=storage.purpose(place.purpose), mount=str(place.mount)
        )
        free, total = place.space.free_bytes, place.space.total_bytes
        text = f"{size(free)} of {size(total)} free, {place.space.free_inodes} of {place.space.inodes} inodes"
        inodes = place.space.inodes and place.space.free_inodes < 1000
        if not inodes and free >= _LITTLE:
            continue
        said.add(place.mount)
        yield CAUSE.host_finding(
            area="storage",
            severity="error" if inodes or free < _NO_ROOM else "warning",
            says=Text("{on} has {free} of {all} inodes free", "{on}的 {all} 个 inode 只剩 {free} 个").fill(
                on=on, free=place.space.free_inodes, all=place.space.inodes
            )
            if inodes
            else Text("{on} has {free} of {all} free", "{on}共 {all}，只剩 {free}").fill(on=on, free=size(free), all=size(total)),
            leads_to=Text(
                "new files are refused with 'No space left on device' although df shows room",
                "虽然 df 显示还有空间，新文件仍被拒绝：'No space left on device'",
            )
            if inodes
            else Text(
                "new files are refused with 'No space left on device', in the middle of a checkpoint",
                "checkpoint 写到一半时新文件被拒绝：'No space left on device'",
            ),
            evidence=(Evidence(source=place.mount or place.path, text=text),),
            remedies=("what-fills-it", *(("move-caches",) if "cache" in place.purpose or "temporary" in place.purpose else ("keep-fewer",))),
            commands={"what-fills-it": command(_FILLED_BY, path=place.path, mount=place.mount)},
        )


CAUSE = Cause(
    id="disk-full",
    role="root",
    title="A disk is full, or a quota is used up",
    title_zh="磁盘已满或配额用尽",
    what="A checkpoint, a log, a cache or a temporary file could not be written, because the file system or the user's quota had no room.",
    why=(
        "Checkpoints with optimizer states are several times the model and are kept by the dozen; caches go to a small home directory or to the "
        "container's own layer; inodes can run out before bytes do."
    ),
    signatures=(
        Signature(
            needle="No space left on device",
            pattern=(
                r"\[Errno 28\] No space left on device: b?['\"](?P<path>(?!/dev/shm|/psm_|/wnsm_|/torch_|/sem\.|/mp-)[^'\"]{1,400})['\"](?! ->"
                r" '/dev/shm)"
            ),
            says="no space left where {path} is written",
            says_zh="{path} 的写入位置没有剩余空间",
            remedies=_SPACE,
        ),
        Signature(
            needle="[Errno 28] No space left on device",
            pattern=r"\[Errno 28\] No space left on device(?!: b?['\"])",
            unless=_SHARED_MEMORY,
            says="a file could not be written: no space left on the device",
            says_zh="文件无法写入：设备上没有剩余空间",
            remedies=_SPACE,
        ),
        Signature(
            needle="No space left on device (os error 28)",
            unless=_SHARED_MEMORY,
            says="a file could not be written: no space left on the device",
            says_zh="文件无法写入：设备上没有剩余空间",
            remedies=_SPACE,
        ),
        Signature(
            needle="kind: StorageFull",
            says="a file could not be written: no space left on the device",
            says_zh="文件无法写入：设备上没有剩余空间",
            remedies=_SPACE,
        ),
        Signature(
            needle="No space left on device",
            pattern=(
                r"^(?!.*NCCL WARN).*?"
                r"(?P<what>write error|write failed|cannot create|error writing|closing output file|final link failed|failed to write|mkdir"
                r"|fatal error|"
                r"Could not write|write\(\)|failed to flush|unable to write|error message = ')[^\n]{0,200}?No space left on device"
            ),
            unless=rf"{_SHARED_MEMORY}|\[Errno 28\]",
            standing="likely",
            says="a program could not write ({what}): no space left on the device",
            says_zh="有程序无法写入（{what}）：设备上没有剩余空间",
            remedies=_SPACE,
        ),
        Signature(
            needle="Disk quota exceeded",
            pattern=r"Disk quota exceeded: b?['\"](?P<path>[^'\"]{1,400})['\"]",
            says="the quota of the file system is used up where {path} is written",
            says_zh="{path} 的写入位置文件系统配额已用尽",
            remedies=("quota", "keep-fewer", "move-caches"),
        ),
        Signature(
            needle="Disk quota exceeded",
            says="the quota of the file system is used up",
            says_zh="文件系统的配额已用尽",
            remedies=("quota", "keep-fewer", "move-caches"),
        ),
        # A short write can also come from a network file system that hiccuped; what torch prints is the same.
        Signature(
            needle="PytorchStreamWriter failed writing file",
            pattern=r"PytorchStreamWriter failed writing file (?P<record>\S{1,160}): file write failed",
            unless=r"Stale file handle|Transport endpoint|Input/output error|Disk quota exceeded",
            standing="likely",
            says="torch.save could not write {record} of a checkpoint: the usual reason is a full disk or quota",
            says_zh="torch.save 无法写入检查点中的 {record}：通常是因为磁盘已满或配额用尽",
            remedies=_SPACE,
        ),
        Signature(
            needle="unexpected pos ",
            pattern=r"inline_container\.cc:\d+\] ?\.? ?unexpected pos (?P<position>\d+) vs (?P<expected>\d+)",
            standing="likely",
            says="torch.save stands at byte {position} of its file where it counted {expected}: the usual reason is a full disk or quota",
            says_zh="torch.save 写到文件第 {position} 字节，而按计数应为第 {expected} 字节：通常是因为磁盘已满或配额用尽",
            remedies=_SPACE,
        ),
        Signature(
            needle="basic_ios::clear: iostream error",
            standing="possible",
            says="a file could not be written; the usual reason is a full disk or quota",
            says_zh="文件无法写入；通常是因为磁盘已满或配额用尽",
            remedies=_SPACE,
        ),
        Signature(
            needle="Not enough disk space. Needed:",
            pattern=r"Not enough disk space\. Needed: (?P<needed>[^()\n]{1,60}?) \(",
            says="the data set needs {needed} of disk space, and there is not so much",
            says_zh="数据集需要 {needed} 磁盘空间，而剩余空间不足",
            remedies=("move-caches", "what-fills-it"),
        ),
        Signature(
            needle="Not enough free disk space to download the file",
            pattern=r"expected file size is: (?P<needed>[\d.]+) MB\. The target location (?P<path>.{1,300}?) only has (?P<free>[\d.]+) MB",
            near=r"No space left|Traceback|Error: |os error 28",
            standing="likely",
            says="a download needs {needed} MB and {path} has {free} MB left",
            says_zh="下载需要 {needed} MB，而 {path} 只剩 {free} MB",
            remedies=("move-caches", "what-fills-it"),
        ),
        Signature(
            needle="Local disk is full",
            pattern=r"OutOfDiskError|Local disk is full",
            says="Ray stopped: the local disk is over its limit",
            says_zh="Ray 已停止：本地磁盘用量超过上限",
            remedies=("what-fills-it", "ray-spill"),
        ),
        Signature(
            needle="local disk's utilization is over capacity",
            says="Ray stopped: the local disk is over its limit",
            says_zh="Ray 已停止：本地磁盘用量超过上限",
            remedies=("what-fills-it", "ray-spill"),
        ),
        Signature(
            needle="low on resource: ephemeral-storage",
            says="the kubelet evicted the pod: the node had too little ephemeral storage",
            says_zh="kubelet 驱逐了该 Pod：节点的临时存储不足",
            remedies=("ephemeral-storage", "move-caches"),
        ),
        Signature(
            needle="ephemeral local storage",
            pattern=r"ephemeral local storage (?:usage exceeds the total limit of containers|limit) \"?(?P<limit>[\w.]{1,20})\"?",
            says="the kubelet evicted the pod: it wrote more than its ephemeral-storage limit of {limit}",
            says_zh="kubelet 驱逐了该 Pod：它的写入量超过了 ephemeral-storage 上限 {limit}",
            remedies=("ephemeral-storage", "move-caches"),
        ),
        Signature(
            needle="Usage of EmptyDir volume",
            pattern=r"Usage of EmptyDir volume \"(?P<volume>(?![^\"]{0,80}shm)[^\"]{1,80})\" exceeds the limit \"(?P<limit>[^\"]{1,40})\"",
            says="the kubelet evicted the pod: its volume {volume} grew past its limit of {limit}",
            says_zh="kubelet 驱逐了该 Pod：它的卷 {volume} 超过了上限 {limit}",
            remedies=("ephemeral-storage", "move-caches"),
        ),
        Signature(
            needle="[DiskPressure]",
            says="the node of the pod was under disk pressure",
            says_zh="该 Pod 所在的节点处于磁盘压力之下",
            remedies=("ephemeral-storage", "what-fills-it"),
        ),
        Signature(
            needle="No usable temporary directory found in",
            standing="likely",
            says="Python found no directory for temporary files that it could write to: they are full, or read-only",
            says_zh="Python 找不到可写的临时文件目录：这些目录已满，或者只读",
            remedies=("what-fills-it", "temporary-elsewhere"),
        ),
        Signature(
            needle="database or disk is full",
            says="a database (SQLite) could not grow: its disk is full",
            says_zh="数据库（SQLite）无法扩展：所在磁盘已满",
            remedies=_SPACE,
        ),
        Signature(
            needle="failed with Input/output error",
            pattern=r"write\(\): fd (?P<fd>\d+) failed with Input/output error",
            standing="likely",
            says="torch.save got an input/output error from the storage: a full or failing disk, or a quota",
            says_zh="torch.save 写存储时得到输入/输出错误：磁盘已满或有故障，或者配额用尽",
            remedies=(
                "what-fills-it",
                "quota",
            ),
        ),
        Signature(
            needle="write(): fd ",
            pattern=r"write\(\): fd (?P<fd>\d+) failed with (?P<error>No space left on device|Disk quota exceeded)",
            says="torch.save could not write: {error}",
            says_zh="torch.save 无法写入：{error}",
            remedies=(
                "what-fills-it",
                "keep-fewer",
                "quota",
            ),
        ),
    ),
    on_host=_on_host,
    remedies=(
        Remedy(
            id="what-fills-it",
            says="See what is full, bytes or inodes, on the host of the rank that failed, and what fills it.",
            says_zh="在出错进程所在的主机上查看哪里满了（字节或 inode），以及是什么占用的。",
            command="df -h; df -i; du -xh --max-depth=2 . 2>/dev/null | sort -h | tail -20",
        ),
        Remedy(
            id="keep-fewer",
            says=(
                "Keep fewer checkpoints (save_total_limit of the HF Trainer, save_top_k of Lightning), and save weights without optimizer states "
                "where you can."
            ),
            says_zh="少保留检查点（HF Trainer 的 save_total_limit、Lightning 的 save_top_k），能不存优化器状态就不存。",
        ),
        Remedy(
            id="move-caches",
            says="Move caches and temporary files to a large disk.",
            says_zh="把缓存和临时文件移到大容量磁盘上。",
            env={
                "HF_HOME": "/scratch/hf",
                "TRITON_CACHE_DIR": "/scratch/triton",
                "TORCHINDUCTOR_CACHE_DIR": "/scratch/inductor",
                "TMPDIR": "/scratch/tmp",
            },
            verify='mkdir -p /scratch/tmp && df -h "$HF_HOME" "$TRITON_CACHE_DIR" "$TORCHINDUCTOR_CACHE_DIR" "$TMPDIR"',
        ),
        Remedy(
            id="temporary-elsewhere",
            says="Point temporary files at a directory that can be written.",
            says_zh="把临时文件指向一个可写的目录。",
            env={"TMPDIR": "/scratch/tmp"},
            verify="mkdir -p /scratch/tmp && python -c 'import tempfile; print(tempfile.gettempdir())'",
        ),
        Remedy(
            id="quota",
            says="Look at the quota of the user and the project, not only at df.",
            says_zh="查看用户和项目的配额，不能只看 df。",
            command="quota -s; lfs quota -h -u $USER . 2>/dev/null",
        ),
        Remedy(
            id="ray-spill",
            says="Give Ray a directory with room for its session and its spilled objects.",
            says_zh="给 Ray 的会话和溢出对象一个空间充足的目录。",
            command="ray start --head --temp-dir=/scratch/ray",
            verify="df -h /scratch/ray",
        ),
        Remedy(
            id="ephemeral-storage",
            says="Ask for more ephemeral storage, or mount a volume where checkpoints and caches are written.",
            says_zh="申请更多临时存储，或者在写检查点和缓存的路径上挂载卷。",
            command="kubectl describe pod POD | grep -iE 'evict|ephemeral|emptydir'; kubectl describe node NODE | grep -i pressure",
        ),
    ),
    leads_to=("rank-exception", "filesystem-shared"),
    mistaken_for={
        "shm-exhausted": "'No space left' on /dev/shm, /psm_ or /torch_ names is shared memory; df -h /dev/shm tells",
        "limits": "'No space left' from inotify is a limit of watches",
        "filesystem-shared": "a stale handle or a lost mount is no lack of space",
    },
    sources=(
        "https://man7.org/linux/man-pages/man3/errno.3.html",
        "https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/",
        "https://docs.ray.io/en/latest/ray-core/objects/object-spilling.html",
        "https://huggingface.co/docs/transformers/main_classes/trainer",
    ),
    hits=(
        "[rank0]: OSError: [Errno 28] No space left on device: '/srv/checkpoints/step_200/optimizer.pt'",
        "OSError: [Errno 28] No space left on device",
        "2026-11-03 10:00:01 ERROR save failed: [Errno 28] No space left on device: '/tmp/pymp-3k1x'",
        "RuntimeError: Data processing error: I/O error: No space left on device (os error 28)",
        (
            'safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: "No space left on '
            'device" })'
        ),
        (
            "tar: model.bin: Wrote only 4096 of 10240 bytes; write error: No space left on device\n"
            "node7:812:901 [1] misc/socket.cc:46 NCCL WARN socketProgress: Connection closed by remote peer node8<47492>"
        ),
        "/usr/bin/ld: final link failed: No space left on device",
        "OSError: [Errno 122] Disk quota exceeded: '/home/u/.cache/huggingface/hub'",
        "cp: failed to extend '/home/u/x': Disk quota exceeded",
        "RuntimeError: [enforce fail at inline_container.cc:857] . PytorchStreamWriter failed writing file data/322: file write failed",
        "RuntimeError: [enforce fail at inline_container.cc:595] . unexpected pos 2883072 vs 2882960",
        "RuntimeError: basic_ios::clear: iostream error",
        "OSError: Not enough disk space. Needed: 305.36 GiB (download: 110.00 GiB, generated: 195.36 GiB, post-processed: Unknown size)",
        (
            "UserWarning: Not enough free disk space to download the file. The expected file size is: 4976.70 MB. The target location "
            "/home/u/.cache/hub only has 812.44 MB free disk space.\n"
            "RuntimeError: Data processing error: CAS service error : IO Error: No space left on device (os error 28)"
        ),
        "ray.exceptions.OutOfDiskError: Local disk is full",
        ("The object cannot be created because the local object store is full and the local disk's utilization is over capacity (95% by default)."),
        "Evicted: The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi, available: 9Gi.",
        "Evicted: Pod ephemeral local storage usage exceeds the total limit of containers 50Gi.",
        'Evicted: Usage of EmptyDir volume "scratch" exceeds the limit "20Gi".',
        "Evicted: The node had condition: [DiskPressure].",
        "FileNotFoundError: [Errno 2] No usable temporary directory found in ['/tmp', '/var/tmp', '/usr/tmp', '/srv']",
        "sqlite3.OperationalError: database or disk is full",
        ("RuntimeError: write(): fd 31 failed with Input/output error"),
        ("RuntimeError: write(): fd 31 failed with No space left on device"),
    ),
    near_misses=(
        (
            "(raylet, ip=10.0.0.7) [2026-11-03 10:00:01,120 E 812 840] (raylet) file_system_monitor.cc:116: /tmp/ray/session_2026-11-03 is over 95% "
            "full, available space: 9.1; capacity: 196.8. Object creation will fail if spilling is required."
        ),
        "OSError: [Errno 28] No space left on device: '/dev/shm/batch_00017'",
        (
            '  File "/usr/lib/python3.11/multiprocessing/synchronize.py", line 57, in __init__\n'
            "    sl = self._semlock = _multiprocessing.SemLock(\n"
            "OSError: [Errno 28] No space left on device"
        ),
        (
            "node7:812:901 [0] proxy.cc:1587 NCCL WARN [Service thread] Accept failed No space left on device\n"
            "node7:812:901 [1] misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-Qr4tZp to 10486116 bytes, error: No space left "
            "on device (28)"
        ),
        "node7:812:901 [0] proxy.cc:1587 NCCL WARN [Service thread] Accept failed No space left on device",
        "RuntimeError: unable to write to file </torch_4711_2093847561_118>: No space left on device (28)",
        "OSError: [Errno 28] inotify watch limit reached",
        "OSError: [Errno 28] No space left on device: 'ckpt/tensor_07' -> '/dev/shm/tmpk3w8q'",
        "UserWarning: [Errno 28] No space left on device.  joblib will operate in serial mode",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        'Evicted: Usage of EmptyDir volume "dshm" exceeds the limit "2Gi".',
        "/dev/nvme0n1p1  1.8T  1.7T   60G  97% /srv",
        ("RuntimeError: write(): fd 31 failed with Broken pipe"),
        ("RuntimeError: read(): fd 31 failed with Input/output error"),
    ),
    explain={
        "en": (
            "Writing failed because the file system, or the quota of this user or project, had no room. A checkpoint with optimizer states takes "
            "about seven times the 16-bit weights, the old one is kept while the new one is written, and caches of data sets and compilers grow "
            "unseen in the home directory. The disk in question is that of the host that failed, or the layer of its container; inodes and quotas "
            "do not show in df -h. The last checkpoint is probably cut: resume from the one before. 'No space left' that names /dev/shm is shared "
            "memory, not a disk."
        ),
        "zh": (
            "写入失败，因为文件系统或该用户、项目的配额没有空间了。带优化器状态的检查点大约是 16 位权重的七倍，写新检查点时旧的还在，数据集和编译器"
            "的缓存又在 home 目录里悄悄增长。出问题的是失败那台主机的磁盘，或者其容器的可写层；inode 和配额在 df -h 里看不出来。最后一个检查点很可能"
            "不完整：请从前一个恢复。如果 “No space left” 指向 /dev/shm，那是共享内存，不是磁盘。"
        ),
    },
)
