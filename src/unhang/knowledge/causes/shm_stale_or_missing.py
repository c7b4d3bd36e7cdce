"""shm-stale-or-missing: a segment vanished before its peer attached, or files of a dead job stand in the way."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import Cause, Signature, command
from unhang.knowledge.causes import shm_permission
from unhang.knowledge.text import NOTHING, Text
from unhang.model import Evidence, HostFinding, Remedy

if TYPE_CHECKING:
    from unhang.facts.shm import Segment
    from unhang.facts.snapshot import Snapshot

# The other side failed to make the segment, or never made one: those are causes of their own.
_NEVER_MADE = r"No space left on device|failed to extend|fallocate failed|Cuda failure|Too many open files|Permission denied"
# mkstemp gives six letters and digits; NCCL before 2.14 used nccl-shm-recv-HASH-N-N-N. Anything else is a misread descriptor: cumem-host-numa.
_NAME = r"(?:/dev/shm/)?nccl-(?:[A-Za-z0-9]{6}|shm-[\w-]{4,80})"

# A job that is starting makes its segments before anybody attaches.
_YOUNG_S = 60.0
_MUCH_BYTES = 1 << 30


_BY_NOBODY = Text("that no live process has mapped", "没有任何存活的进程映射它们")
_BY_NOBODY_SEEN = Text("that no process seen here has mapped", "这里看得到的进程都没有映射它们")


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import shm

    seen = host.get(shm.SUBJECT)
    if seen is None:
        return
    old = [s for s in seen.segments if s.of_trainings and s.age_s >= _YOUNG_S]
    dead = [s for s in old if s.abandoned]
    # Where not all processes are seen, those of this user still are: what none of them has mapped is worth asking the kernel about.
    unseen = [s for s in old if s.abandoned is None and s.uid == seen.uid]
    total = seen.space.total_bytes if seen.space is not None else 0
    for segments, which in ((dead, _BY_NOBODY), (unseen, _BY_NOBODY_SEEN)):
        if not segments:
            continue
        held = sum(s.size_bytes for s in segments)
        ours = [s for s in segments if s.uid == seen.uid]
        yield CAUSE.host_finding(
            area="shm",
            severity="warning" if held > (min(_MUCH_BYTES, total // 10) if total else _MUCH_BYTES) else "note",
            says=_says(segments, ours, held, which),
            leads_to=Text(
                "they take room from the next job, and a program that gives its segments fixed names finds them taken",
                "它们占用下一个作业的空间，使用固定段名的程序会发现名字已被占用",
            ),
            evidence=tuple(_evidence(s) for s in sorted(segments, key=lambda s: -s.size_bytes)[:3]),
            remedies=("remove-dead",) if ours else ("of-others",),
            commands={"of-others": command("ls -l {files:path*}", files=[f"/dev/shm/{s.name}" for s in segments[:3]])},
        )


def _says(segments: list[Segment], ours: list[Segment], held: int, which: Text) -> Text:
    from unhang.facts.units import size

    count = "1 segment" if len(segments) == 1 else f"{len(segments)} segments"
    others = len(segments) - len(ours)
    of_others = Text(f"; {others} of them of other users", f"；其中 {others} 个属于其他用户") if others else NOTHING
    return Text(
        "{count} of trainings in /dev/shm, {size} in all, {which}{others}", "/dev/shm 中有训练的 {n} 个共享内存段，共 {size}，{which}{others}"
    ).fill(count=count, n=len(segments), size=size(held), which=which, others=of_others)


def _evidence(segment: Segment) -> Evidence:
    from unhang.facts.units import size

    who = segment.owner or f"user {segment.uid}"
    return Evidence(source=f"/dev/shm/{segment.name}", text=f"{size(segment.size_bytes)}, of {who}, {segment.age_s / 3600:.1f} h old")


CAUSE = Cause(
    id="shm-stale-or-missing",
    role="root",
    title="A shared-memory segment is gone, or a stale one is in the way",
    title_zh="共享内存段已消失，或被残留文件挡住",
    what="A process wanted to attach to a segment that its peer had announced and did not find it, or could not make one because the name was taken.",
    why=(
        "Something removed files in /dev/shm (a cleaning script, systemd's RemoveIPC, a second job), the two processes do not see the same /dev/shm "
        "(separate containers), the maker died, or an earlier run left its files behind."
    ),
    signatures=(
        Signature(
            needle="Error while attaching to shared memory segment",
            pattern=rf"attaching to shared memory segment (?P<path>{_NAME}) \(size (?P<size_bytes>[1-9]\d*)\), error:? No such file or directory",
            unless=_NEVER_MADE,
            says="NCCL did not find {path} ({size_bytes} bytes) when it wanted to attach: the segment is gone, or lies in another /dev/shm",
            says_zh="NCCL 要附加到 {path}（{size_bytes} 字节）时没有找到它：该段已消失，或在另一个 /dev/shm 中",
            remedies=("same-shm", "who-removes", "without-shm"),
        ),
        Signature(
            needle="Error while attaching to shared memory segment",
            pattern=rf"attaching to shared memory segment (?P<path>{_NAME}) \(size (?P<size_bytes>[1-9]\d*)\)(?!, error)",
            unless=_NEVER_MADE,
            standing="likely",
            says="NCCL could not attach to {path} ({size_bytes} bytes): the segment is gone, or lies in another /dev/shm",
            says_zh="NCCL 无法附加到 {path}（{size_bytes} 字节）：该段已消失，或在另一个 /dev/shm 中",
            remedies=("same-shm", "who-removes", "without-shm"),
        ),
        Signature(
            needle="unable to open shared memory object",
            pattern=r"unable to open shared memory object <(?P<path>[^>]{1,120})> in read-write mode: No such file or directory",
            says="torch did not find the shared tensor {path}: the process that made it ended, or the file was removed",
            says_zh="torch 没有找到共享张量 {path}：创建它的进程已结束，或文件被删除",
            remedies=("keep-the-sender", "who-removes"),
        ),
        Signature(
            needle="FileNotFoundError: [Errno 2] No such file or directory: '/",
            pattern=r"FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<path>/(?:psm_|wnsm_)[^'/]{1,80}|/dev/shm/[^']{1,160})'",
            says="the shared memory {path} is gone: the process that made it ended, or something removed it",
            says_zh="共享内存 {path} 已消失：创建它的进程已结束，或它被删除了",
            remedies=("keep-the-sender", "same-shm", "who-removes"),
        ),
        Signature(
            needle="[Errno 17] File exists: '/",
            pattern=r"FileExistsError: \[Errno 17\] File exists: '(?P<path>/[^'/]{1,80})'",
            near=r"shared_memory\.py|_posixshmem|shm_open|SharedMemory\(",
            says="the shared memory {path} exists already: an earlier run left it, or another job uses the name",
            says_zh="共享内存 {path} 已存在：是之前的运行留下的，或另一个作业在用这个名字",
            remedies=("remove-dead", "streaming-clean"),
        ),
        Signature(
            needle="[Errno 17] File exists: '/dev/shm/",
            pattern=r"\[Errno 17\] File exists: '(?P<path>/dev/shm/[^']{1,160})'",
            says="{path} exists already: an earlier run left it, or another job uses the name",
            says_zh="{path} 已存在：是之前的运行留下的，或另一个作业在用这个名字",
            remedies=("remove-dead",),
        ),
        Signature(
            needle="Reused local directory:",
            standing="likely",
            says="a streaming data set finds its shared memory taken: an earlier run left it, or another data set uses the same local directory",
            says_zh="某个 streaming 数据集发现它的共享内存已被占用：是之前的运行留下的，或另一个数据集在用同一个本地目录",
            remedies=("streaming-clean", "remove-dead"),
        ),
    ),
    on_host=_on_host,
    remedies=(
        Remedy(
            id="same-shm",
            says=(
                "Ranks that NCCL takes for one host must see one /dev/shm: start them in one container, or with --ipc=host; compare what each sees."
            ),
            says_zh="被 NCCL 视为同一主机的进程必须看到同一个 /dev/shm：放进同一个容器，或用 --ipc=host；先比较各进程看到的挂载。",
            command="stat -c '%n dev %d' /dev/shm; hostname; readlink /proc/self/ns/ipc",
        ),
        Remedy(
            id="who-removes",
            says=(
                "Find what deletes files in /dev/shm while the job starts: cleaning scripts, cron, prologues of other jobs, or systemd "
                "(RemoveIPC=yes removes a user's segments at logout)."
            ),
            says_zh="找出任务启动时谁在删除 /dev/shm 里的文件：清理脚本、cron、其他作业的 prologue，或 systemd（RemoveIPC=yes 会在用户登出时删除）。",
            command="loginctl show-user $USER -p Linger; systemd-analyze cat-config systemd/logind.conf | grep -i RemoveIPC; crontab -l",
        ),
        Remedy(
            id="keep-the-sender",
            says=(
                "Keep the process that made the segment alive until the receiver has it; look at why it ended: its own error stands earlier in the "
                "log."
            ),
            says_zh="创建共享内存的进程必须活到接收方取走为止；查明它为何先退出，它自己的错误在日志更早处。",
        ),
        Remedy(
            id="remove-dead",
            says="Remove what is left of your own dead processes; the kernel is asked for each file whether a process anywhere still has it.",
            says_zh="删除自己已死进程留下的共享内存段；对每个文件都会先向内核确认没有任何进程还在使用。",
            command="unhang doctor --fix --only shm",
            verify="unhang doctor --only shm",
        ),
        Remedy(
            id="of-others",
            says="They belong to other users: let their owners run `unhang doctor --fix --only shm`.",
            says_zh="它们属于其他用户：请其所有者运行 `unhang doctor --fix --only shm`。",
            command="ls -l /dev/shm",
        ),
        Remedy(
            id="streaming-clean",
            says="For MosaicML streaming: call this before the data set is built, and give each data set a local directory of its own.",
            says_zh="对 MosaicML streaming：在创建数据集之前调用此函数，并给每个数据集单独的本地目录。",
            command='python -c "import streaming.base.util as u; u.clean_stale_shared_memory()"',
        ),
        shm_permission.CAUSE.remedy("without-shm"),
    ),
    leads_to=("rank-exception",),
    mistaken_for={
        "shm-exhausted": "there the segment cannot be made: 'failed to extend' or 'No space left'; df shows a full /dev/shm",
        "cumem-host-numa": "there the segment has size 0 or a name that is no name; nothing was ever removed",
        "shm-permission": "there the file is found, or its directory is, and may not be opened",
        "filesystem-shared": "a missing path outside /dev/shm is a matter of the file systems",
    },
    sources=(
        "https://github.com/NVIDIA/nccl/blob/master/src/misc/shmutils.cc",
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#shared-memory",
        "https://www.freedesktop.org/software/systemd/man/latest/logind.conf.html",
        "https://docs.python.org/3/library/multiprocessing.shared_memory.html",
    ),
    hits=(
        (
            "node7:812:901 [0] misc/shmutils.cc:93 NCCL WARN Call to open failed: No such file or directory\n"
            "\n"
            "node7:812:901 [0] misc/shmutils.cc:129 NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl-k3Wq8Z (size 14156128), "
            "error: No such file or directory (2)"
        ),
        (
            "(WorkerDict pid=812) [2026-11-03 10:00:01] node7:812:901 [0] misc/shmutils.cc:132 (ncclShmOpen) NCCL WARN Error while attaching to "
            "shared memory segment /dev/shm/nccl-k3Wq8Z (size 4460544), error: No such file or directory (2)"
        ),
        ("[rank2]: Last error:\n[rank2]: Error while attaching to shared memory segment /dev/shm/nccl-k3Wq8Z (size 9637888)"),
        (
            "node7:812:901 [2] include/shm.h:48 NCCL WARN Error while attaching to shared memory segment nccl-shm-recv-51d0c2aa7be1903f-1-2-3 (size "
            "4460544)"
        ),
        "RuntimeError: unable to open shared memory object </torch_4711_2093847561_118> in read-write mode: No such file or directory (2)",
        "FileNotFoundError: [Errno 2] No such file or directory: '/psm_5a1f20cc'",
        "[rank5]: FileNotFoundError: [Errno 2] No such file or directory: '/dev/shm/weights_cache/part_3.bin'",
        (
            '  File "/opt/venv/lib/python3.11/multiprocessing/shared_memory.py", line 104, in __init__\n'
            "    self._fd = _posixshmem.shm_open(\n"
            "FileExistsError: [Errno 17] File exists: '/000000_locals'"
        ),
        "FileExistsError: [Errno 17] File exists: '/dev/shm/dataset_index'",
        (
            "ValueError: Reused local directory: ['/srv/mds'] vs ['/srv/mds']. Provide a different one. If using a unique local directory, try "
            "deleting the local directory."
        ),
    ),
    near_misses=(
        "node7:812:901 [2] misc/shmutils.cc:151 NCCL WARN unlink shared memory /dev/shm/nccl-k3Wq8Z failed, error: No such file or directory (2)",
        (
            "[2026-11-03 10:00:01] node7:812:901 [0] misc/shmutils.cc:129 NCCL WARN Error while attaching to shared memory segment "
            "/dev/shm/nccl-\u040c (size 0), error: No such file or directory (2)"
        ),
        (
            "node7:812:901 [0] misc/shmutils.cc:129 NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl- (size 192814336), "
            "error: No such file or directory (2)"
        ),
        (
            "node7:812:901 [1] misc/shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-k3Wq8Z to 9637892 bytes, error: No space left on "
            "device (28)\n"
            "node7:813:902 [2] misc/shmutils.cc:132 NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl-k3Wq8Z (size 9637888), "
            "error: No such file or directory (2)"
        ),
        "UserWarning: resource_tracker: '/psm_5a1f20cc': [Errno 2] No such file or directory: '/psm_5a1f20cc'",
        "FileNotFoundError: [Errno 2] No such file or directory: '/srv/data/train.bin'",
        "FileExistsError: [Errno 17] File exists: '/srv/out/checkpoint-500'",
        "resource_tracker: There appear to be 1 leaked shared_memory objects to clean up at shutdown",
    ),
    explain={
        "en": (
            "One process makes a segment in /dev/shm, tells its peer the name, and the peer opens it. Here the peer found nothing. NCCL's names are "
            "fresh each time and it removes the file as soon as the last peer has attached, so a leftover never causes this: either something "
            "deleted the file in between (cleaning scripts, systemd's RemoveIPC), or the two processes look into different /dev/shm although they "
            "count as one host (two containers), or the maker failed first, which its own line says. Python's shared memory knows the opposite too: "
            "the name is still taken by a dead run. Compare the device number of /dev/shm in both processes, and do not run rm on /dev/shm/nccl-* "
            "while a job starts. A size of 0 or an unreadable name is another cause."
        ),
        "zh": (
            "一个进程在 /dev/shm 里创建共享内存段，把名字告诉对方，对方再打开它；这里对方什么也没找到。NCCL 每次都用新名字，最后一个对端连上后立即删"
            "除文件，所以残留文件不会造成这个错误：要么文件中途被删（清理脚本、systemd 的 RemoveIPC），要么两个进程虽被视为同一主机却看到不同的 "
            "/dev/shm（两个容器），要么创建方先失败了，它自己的日志会说明。Python 的共享内存还有相反的情形：名字被已死的任务占着。比较两个进程里 "
            "/dev/shm 的设备号，任务启动时不要执行 rm /dev/shm/nccl-*。如果大小是 0 或名字是乱码，那是另一个原因。"
        ),
    },
)
