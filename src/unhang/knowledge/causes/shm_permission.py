"""shm-permission: shared-memory segments may not be created or opened."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.cause import Cause, Signature, command
from unhang.knowledge.text import NOTHING, Text
from unhang.model import Evidence, HostFinding, Remedy

if TYPE_CHECKING:
    from unhang.facts.shm import Shm
    from unhang.facts.snapshot import Snapshot

_DENIED = r"(?P<error>Permission denied|Operation not permitted|Read-only file system|Function not implemented|No such file or directory)"
_REFUSED = r"(?P<error>Permission denied|Operation not permitted|Read-only file system)"


def _fails(error: str, error_zh: str = "") -> Text:
    makes = Text(
        "NCCL, torch's data loaders and Python's semaphores make files there: each of them fails with {error}",
        "NCCL、torch 的 DataLoader 和 Python 的信号量都要在其中创建文件：每一个都会失败：{error}",
    )
    return makes.fill(error=Text(error, error_zh or error))


_MEMORY = ("tmpfs", "devtmpfs", "ramfs")


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import shm

    seen = host.get(shm.SUBJECT)
    if seen is None:
        return
    if seen.present is False:
        yield CAUSE.host_finding(
            area="shm",
            severity="error",
            says=Text("there is no /dev/shm", "没有 /dev/shm"),
            leads_to=_fails("'No such file or directory' or 'Function not implemented'", "'No such file or directory' 或 'Function not implemented'"),
            remedies=("mount-shm",),
        )
        return
    evidence = _evidence(seen)
    if seen.options is not None and "ro" in seen.options:
        yield CAUSE.host_finding(
            area="shm",
            severity="error",
            says=Text("/dev/shm is mounted read-only", "/dev/shm 以只读方式挂载"),
            leads_to=_fails("'Read-only file system'"),
            evidence=evidence,
            remedies=("mount-shm",),
            commands={"mount-shm": command("sudo mount -o remount,rw /dev/shm")} if seen.mounted else None,
        )
    elif seen.mode is not None and not _may_write(seen):
        yield CAUSE.host_finding(
            area="shm",
            severity="error",
            says=Text(
                f"/dev/shm has mode {seen.mode:04o} and belongs to user {seen.owner_uid}: this user ({seen.uid}) may not make files there",
                f"/dev/shm 的权限是 {seen.mode:04o}，属于用户 {seen.owner_uid}：当前用户（{seen.uid}）无权在其中创建文件",
            ),
            leads_to=_fails("'Permission denied'"),
            evidence=evidence,
            remedies=("mode-of-shm",),
            commands={"mode-of-shm": command("sudo chmod 1777 /dev/shm")},
        )
    elif seen.mode is not None and seen.uid == 0 and not seen.mode & 0o002:
        yield CAUSE.host_finding(
            area="shm",
            severity="note",
            says=Text(
                f"/dev/shm has mode {seen.mode:04o}: root may make files there, other users may not",
                f"/dev/shm 的权限是 {seen.mode:04o}：root 可以在其中创建文件，其他用户不行",
            ),
            leads_to=Text("trainings of other users fail with 'Permission denied'", "其他用户的训练会失败：'Permission denied'"),
            evidence=evidence,
            remedies=("mode-of-shm",),
            commands={"mode-of-shm": command("chmod 1777 /dev/shm")},
        )
    if seen.kind is not None and seen.kind not in _MEMORY:
        empty_dir = Text("; it is an emptyDir volume of the pod without `medium: Memory`", "；它是 pod 中没有 `medium: Memory` 的 emptyDir 卷")
        volume = empty_dir if seen.limit_from == "empty-dir" else NOTHING
        yield CAUSE.host_finding(
            area="shm",
            severity="warning",
            says=Text(f"/dev/shm is no tmpfs: it lies on {seen.kind}", f"/dev/shm 不是 tmpfs：它位于 {seen.kind}") + volume,
            leads_to=Text(
                "each batch of a data loader and each segment of NCCL goes to a disk, or is refused with 'Operation not supported'",
                "DataLoader 的每个 batch 和 NCCL 的每个段都写到磁盘，或被拒绝：'Operation not supported'",
            ),
            evidence=evidence,
            remedies=("mount-shm",),
        )


def _may_write(seen: Shm) -> bool:
    """Whether the mode allows it; what a group may do is taken for allowed, since we do not know our groups."""
    assert seen.mode is not None
    return seen.uid == 0 or bool(seen.mode & 0o022) or (seen.uid == seen.owner_uid and bool(seen.mode & 0o200))


def _evidence(seen: Shm) -> tuple[Evidence, ...]:
    mode = () if seen.mode is None else (Evidence(source="/dev/shm", text=f"mode {seen.mode:04o}, owner {seen.owner_uid}"),)
    if seen.kind is None or seen.options is None:
        return mode
    return (*mode, Evidence(source="/proc/mounts", text=f"{seen.kind} {','.join(seen.options)}"))


CAUSE = Cause(
    id="shm-permission",
    role="root",
    title="Shared-memory segments may not be created or opened",
    title_zh="没有权限创建或打开共享内存段",
    what="/dev/shm is there with room, or is not there at all, and the process may not make or open files in it.",
    why="Wrong mode or owner of /dev/shm, a read-only or missing mount in the container, SELinux or AppArmor, or ranks that run as different users.",
    signatures=(
        Signature(
            needle="Call to shm_open failed",
            pattern=rf"Call to shm_open failed ?: {_REFUSED}",
            says="NCCL may not make its segment in /dev/shm: {error}",
            says_zh="NCCL 不能在 /dev/shm 中创建它的段：{error}",
        ),
        Signature(
            needle="failed to create shared memory file",
            pattern=rf"failed to create shared memory file (?P<path>/dev/shm/\S{{1,80}}), error:? {_DENIED}",
            says="NCCL may not make {path}: {error}",
            says_zh="NCCL 不能创建 {path}：{error}",
        ),
        Signature(
            needle="shared memory segment",
            pattern=(
                rf"Error while (?:creating|attaching to) shared memory segment (?P<path>\S{{1,160}}) \(size (?P<size_bytes>\d+)\), error:?"
                rf" {_REFUSED}"
            ),
            unless=r"Cuda failure",
            says="NCCL may not use {path} ({size_bytes} bytes): {error}",
            says_zh="NCCL 不能使用 {path}（{size_bytes} 字节）：{error}",
        ),
        Signature(
            needle="Call to open failed",
            pattern=rf"Call to open failed ?: {_REFUSED}",
            near=r"shared memory segment|/dev/shm/",
            says="NCCL may not open its peer's segment in /dev/shm: {error}; the ranks may run as different users",
            says_zh="NCCL 不能打开对端在 /dev/shm 中的段：{error}；各 rank 可能以不同用户运行",
            remedies=("same-user", "mode-of-shm", "mount-shm"),
        ),
        Signature(
            needle="failed to extend /dev/shm/",
            pattern=r"failed to extend (?P<path>/dev/shm/\S{1,80}) to \d+ bytes, error:? (?P<error>Operation not supported|Function not implemented)",
            says="NCCL could not extend {path}: {error}; what is mounted on /dev/shm is no tmpfs",
            says_zh="NCCL 无法扩展 {path}：{error}；挂载在 /dev/shm 上的不是 tmpfs",
            remedies=("mount-shm",),
        ),
        Signature(
            needle="unable to open shared memory object",
            pattern=rf"unable to open shared memory object <(?P<path>[^>]{{1,120}})> in read-write mode: {_REFUSED}",
            says="torch may not make the shared tensor {path}: {error}",
            says_zh="torch 不能创建共享张量 {path}：{error}",
        ),
        Signature(
            needle="unable to allocate shared memory(shm) for file",
            pattern=(
                r"for file <(?P<path>[^>]{1,120})>: (?P<error>Operation not supported|Permission denied|Function not implemented|Read-only"
                r" file system)"
            ),
            says="torch could not allocate the shared tensor {path}: {error}",
            says_zh="torch 无法分配共享张量 {path}：{error}",
            remedies=("mount-shm", "mode-of-shm"),
        ),
        Signature(
            needle="Permission denied: '/",
            pattern=(
                r"\[Errno (?:1|13|30)\] (?:Permission denied|Operation not permitted|Read-only file system): '(?P<path>/(?:psm_|wnsm_|sem\."
                r"|dev/shm)[^']{0,160})'"
            ),
            says="{path} may not be made or opened: permission denied",
            says_zh="没有权限创建或打开 {path}",
        ),
        Signature(
            needle="PermissionError: [Errno 13] Permission denied",
            pattern=r"PermissionError: \[Errno 13\] Permission denied(?!: ')",
            near=r"_multiprocessing\.SemLock|multiprocessing/synchronize\.py|_posixshmem|multiprocessing/shared_memory\.py",
            says="Python may not make a semaphore or segment in /dev/shm: permission denied",
            says_zh="Python 没有权限在 /dev/shm 中创建信号量或共享内存段",
        ),
        # sem_open answers ENOSYS or ENOENT where /dev/shm is not mounted: chroots, some serverless and batch sandboxes.
        Signature(
            needle="Function not implemented",
            pattern=r"OSError: \[Errno 38\] (?P<error>Function not implemented)",
            near=r"_multiprocessing\.SemLock|multiprocessing/synchronize\.py",
            says="Python cannot make semaphores here: {error}; /dev/shm is not mounted or not writable",
            says_zh="Python 在这里无法创建信号量：{error}；/dev/shm 没有挂载或不可写",
            remedies=("mount-shm", "mode-of-shm"),
        ),
        Signature(
            needle="[Errno 30] Read-only file system",
            pattern=r"OSError: \[Errno 30\] (?P<error>Read-only file system)(?!: ')",
            near=r"_multiprocessing\.SemLock|multiprocessing/(?:synchronize|context|shared_memory)\.py|_posixshmem",
            says="Python may not make a semaphore or segment: /dev/shm is mounted read-only",
            says_zh="Python 不能创建信号量或共享内存段：/dev/shm 以只读方式挂载",
            remedies=("mount-shm",),
        ),
        Signature(
            needle="FileNotFoundError: [Errno 2] No such file or directory",
            pattern=r"FileNotFoundError: \[Errno 2\] No such file or directory(?!: ')",
            near=r"_multiprocessing\.SemLock",
            says="Python cannot make semaphores here: /dev/shm is not mounted",
            says_zh="Python 在这里无法创建信号量：/dev/shm 没有挂载",
            remedies=("mount-shm",),
        ),
        Signature(
            needle="This platform lacks a functioning sem_open implementation",
            standing="likely",
            says="Python finds no working semaphores: /dev/shm is not mounted or not writable",
            says_zh="Python 找不到可用的信号量：/dev/shm 没有挂载或不可写",
            remedies=("mount-shm", "mode-of-shm"),
        ),
    ),
    on_host=_on_host,
    remedies=(
        Remedy(
            id="mode-of-shm",
            says="/dev/shm must be writable for everybody, with the sticky bit; set that, inside the container where there is one.",
            says_zh="/dev/shm 必须对所有用户可写，并带粘滞位；如果在容器里，就在容器里设置。",
            command="ls -ld /dev/shm; sudo chmod 1777 /dev/shm",
            verify="touch /dev/shm/probe && rm /dev/shm/probe && echo writable",
        ),
        Remedy(
            id="mount-shm",
            says="Mount a writable tmpfs on /dev/shm; in a container by its options.",
            says_zh="在 /dev/shm 上挂载可写的 tmpfs；容器则用相应选项。",
            command="docker run --shm-size=8g IMAGE   # or on the host: sudo mount -t tmpfs -o rw,nosuid,nodev,mode=1777,size=8g tmpfs /dev/shm",
            verify="findmnt -T /dev/shm -o TARGET,FSTYPE,OPTIONS",
        ),
        Remedy(
            id="same-user",
            says="Run all ranks of a host as one user, and remove segments of other users that stand in the way.",
            says_zh="同一主机上的所有进程用同一个用户运行，并清除其他用户留下的共享内存段。",
            command="ls -l /dev/shm | head; id -un",
        ),
        Remedy(
            id="label",
            says="Where the mode is right, look whether SELinux or AppArmor refuses it.",
            says_zh="如果权限位正确，检查是否被 SELinux 或 AppArmor 拒绝。",
            command="sudo ausearch -m avc -ts recent | grep shm; sudo dmesg | grep -i 'apparmor.*denied' | tail",
        ),
        Remedy(
            id="without-shm",
            says="To go on meanwhile, let NCCL do without shared memory; slower where GPUs have no direct path.",
            says_zh="临时办法：让 NCCL 不使用共享内存；GPU 之间没有直连时会变慢。",
            env={"NCCL_SHM_DISABLE": "1"},
            verify=(
                "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV torchrun --nproc-per-node N train.py 2>&1 | grep 'NCCL_SHM_DISABLE set by environment "
                "to 1'"
            ),
        ),
    ),
    leads_to=("rank-exception", "shm-stale-or-missing"),
    mistaken_for={
        "shm-exhausted": "'No space left' is a matter of size; permissions give 'Permission denied' whatever the size",
        "container-capability": "a capability concerns a system call; here it is a file system's mode or mount",
        "shm-stale-or-missing": "there the segment was made and is gone; here it was never allowed",
    },
    sources=(
        "https://github.com/NVIDIA/nccl/issues/328",
        "https://github.com/NVIDIA/nccl/blob/master/src/misc/shmutils.cc",
        "https://man7.org/linux/man-pages/man7/shm_overview.7.html",
        "https://man7.org/linux/man-pages/man3/sem_open.3.html",
    ),
    hits=(
        (
            "node7:812:901 [0] include/shm.h:27 NCCL WARN Call to shm_open failed : Permission denied\n"
            "node7:812:901 [0] NCCL INFO include/shm.h:41 -> 2\n"
            "node7:812:901 [0] include/shm.h:48 NCCL WARN Error while creating shared memory segment nccl-shm-recv-51d0c2aa7be1903f-0-3-0 (size "
            "4460544)"
        ),
        (
            "node7:812:901 [0] misc/shmutils.cc:63 NCCL WARN Error: failed to create shared memory file /dev/shm/nccl-XXXXXX, error Permission "
            "denied (13)"
        ),
        (
            "[2026-11-03 10:00:01] node7:812:901 [0] misc/shmutils.cc:76 NCCL WARN Error: failed to create shared memory file /dev/shm/nccl-XXXXXX, "
            "error No such file or directory (2)"
        ),
        (
            "[rank0]: Last error:\n"
            "[rank0]: Error while creating shared memory segment /dev/shm/nccl-XXXXXX (size 9637888), error: Read-only file system (30)"
        ),
        (
            "node7:812:901 [1] misc/shmutils.cc:93 NCCL WARN Call to open failed: Permission denied\n"
            "\n"
            "node7:812:901 [1] misc/shmutils.cc:129 NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl-k3Wq8Z (size 4460544), "
            "error: Permission denied (13)"
        ),
        (
            "node7:812:901 [1] misc/shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-Qr4tZp to 9637892 bytes, error: Operation not "
            "supported (95)"
        ),
        "RuntimeError: unable to open shared memory object </torch_4711_2093847561_118> in read-write mode: Permission denied (13)",
        "RuntimeError: unable to allocate shared memory(shm) for file </torch_4711_2093847561_118>: Operation not supported (95)",
        "PermissionError: [Errno 13] Permission denied: '/psm_5a1f20cc'",
        (
            '  File "/usr/lib/python3.11/multiprocessing/synchronize.py", line 57, in __init__\n'
            "    sl = self._semlock = _multiprocessing.SemLock(\n"
            "PermissionError: [Errno 13] Permission denied"
        ),
        (
            '  File "/usr/lib/python3.8/multiprocessing/synchronize.py", line 57, in __init__\n'
            "    sl = self._semlock = _multiprocessing.SemLock(\n"
            "OSError: [Errno 38] Function not implemented"
        ),
        (
            '  File "/usr/lib/python3.11/multiprocessing/synchronize.py", line 57, in __init__\n'
            "    sl = self._semlock = _multiprocessing.SemLock(\n"
            "FileNotFoundError: [Errno 2] No such file or directory"
        ),
        (
            '[rank0]:   File "/usr/lib/python3.11/multiprocessing/context.py", line 93, in Event\n'
            "[rank0]:     return Event(ctx=self.get_context())\n"
            '[rank0]:   File "/usr/lib/python3.11/multiprocessing/synchronize.py", line 57, in __init__\n'
            "[rank0]:     sl = self._semlock = _multiprocessing.SemLock(\n"
            "[rank0]: OSError: [Errno 30] Read-only file system"
        ),
        (
            '  File "/srv/env/lib/python3.12/multiprocessing/context.py", line 103, in Queue\n'
            "    return Queue(maxsize, ctx=self.get_context())\n"
            "OSError: [Errno 30] Read-only file system"
        ),
        (
            "ImportError: This platform lacks a functioning sem_open implementation, therefore, the required synchronization primitives needed will "
            "not function, see issue 3770."
        ),
    ),
    near_misses=(
        "PermissionError: [Errno 13] Permission denied: '/srv/checkpoints/step_200'",
        "node7:812:901 [1] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device",
        "Permission denied (publickey,password).",
        "RuntimeError: unable to open shared memory object </torch_4711_2093847561_118> in read-write mode: Too many open files (24)",
        "node7:812:901 [0] misc/ibvwrap.cc:262 NCCL WARN Call to ibv_open_device failed",
        "NotImplementedError: Function not implemented for this backend",
        '  File "/srv/job/train.py", line 40, in save\n    os.mkdir(out)\nOSError: [Errno 30] Read-only file system',
        (
            '  File "/usr/lib/python3.11/multiprocessing/context.py", line 93, in Event\n'
            "OSError: [Errno 30] Read-only file system: '/srv/data/run.lock'"
        ),
    ),
    explain={
        "en": (
            "NCCL, torch and Python's multiprocessing make files and semaphores in /dev/shm. It has to be a tmpfs that every user may write to "
            "(mode 1777). Here the system refused: the mode or owner was changed, the container mounts it read-only or not at all, a security "
            "module forbids it, or two ranks run as different users and one may not open what the other made. Size has nothing to do with it. touch "
            "a file in /dev/shm as the user of the job, in the same container, and you see at once."
        ),
        "zh": (
            "NCCL、torch 和 Python 的 multiprocessing 都要在 /dev/shm 里创建文件和信号量。它必须是所有用户可写的 tmpfs（权限 1777）。这里被系统拒绝"
            "了：权限或属主被改过，容器把它挂成只读或根本没挂载，安全模块禁止，或者两个进程属于不同用户、其中一个不能打开另一个创建的文件。这与空间"
            "大小无关。用任务的用户、在同一个容器里到 /dev/shm 下 touch 一个文件，立刻就能看出来。"
        ),
    },
)
