"""extension-build-lock: ranks wait for the lock file of a torch extension's build, and nobody builds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.frames import inside
from unhang.knowledge import text, words
from unhang.knowledge.blocked_threads import polls_a_lock, standstill
from unhang.knowledge.cause import Cause, Signature
from unhang.knowledge.text import Text
from unhang.model import Finding, Remedy

if TYPE_CHECKING:
    from unhang.records.incident_view import IncidentView

_BUILD = "torch/utils/cpp_extension"


def _in_run(picture: IncidentView) -> Finding | None:
    if not standstill(picture):
        return None
    waiting = [r for r in picture.ranks if polls_a_lock(r)]
    # Who builds has torch's build below it, and not its wait: the others wait for that one rightly.
    if not waiting or any(inside(f, _BUILD) for r in picture.ranks if r not in waiting for f in r.frames):
        return None
    first, numbers = waiting[0], [r.number for r in waiting]
    some = len(waiting) < len(picture.ranks)
    rest = (
        Text("no rank builds it", "没有 rank 在编译") if some else Text("all of them wait, and none builds it", "全部 rank 都在等待，没有一个在编译")
    )
    return CAUSE.finding(
        standing="likely",
        says=Text(
            "{who} {wait} for the lock file of a torch extension's build{at}, and {rest}: the file was left by a process that has ended, or another "
            "job builds at this moment",
            "{who} 在等待 torch 扩展编译的锁文件{at}，而{rest}：锁文件是已经结束的进程留下的，或者此刻有别的任务在编译",
        ).fill(who=text.ranks(numbers), wait=words.verb(numbers, "waits", "wait"), at=text.at(picture, first), rest=rest),
        ranks=tuple(numbers),
        hosts=words.hosts(picture, numbers),
        where=picture.where(first),
        evidence=(*words.stack_evidence(picture, first), *words.activity_evidence(picture, first)),
    )


CAUSE = Cause(
    id="extension-build-lock",
    role="root",
    title="A stale lock of an extension build",
    title_zh="扩展编译遗留的锁文件",
    what="Ranks wait at their start for a torch extension (of DeepSpeed, say) to be built, and the lock file that they wait for belongs to nobody.",
    why=(
        "torch.utils.cpp_extension.load puts a file named lock beside the build and removes it at the end; a build that was killed leaves it, and "
        "whoever comes later waits until it is gone, without a limit."
    ),
    signatures=(
        Signature(
            needle="Waited on lock file ",
            pattern=r'Waited on lock file "(?P<path>[^"]{1,400})" for (?P<seconds>\d+) seconds',
            standing="possible",
            says="a process has waited {seconds} s for the lock file {path} of a build, which may be in progress or have been killed",
            says_zh="有进程等待编译锁文件 {path} 已 {seconds} 秒，该编译可能还在进行，也可能已被杀死",
        ),
    ),
    in_run=_in_run,
    remedies=(
        Remedy(
            id="remove-the-lock",
            says="Make sure that nothing compiles (no ninja, nvcc or c++ of any job or host that shares the folder), then remove the lock file.",
            says_zh="先确认没有任何编译在进行（共享该目录的作业和主机上都没有 ninja、nvcc、c++），再删除锁文件。",
            command=(
                # pgrep ends with 1 where it has found none, and with more where it could not look.
                "pgrep -ax 'ninja|nvcc|cicc|hipcc|clang.*|(c|g)\\+\\+.*|cc1plus'; [ $? -eq 1 ] && "
                'find "${TORCH_EXTENSIONS_DIR:-$HOME/.cache/torch_extensions}" -name lock -print -delete'
            ),
        ),
        Remedy(
            id="build-before",
            says="Build extensions once before the training starts (DeepSpeed: DS_BUILD_OPS=1 at its installation), into a folder of this host.",
            says_zh="在训练之前先编译好扩展（DeepSpeed：安装时设 DS_BUILD_OPS=1），并放在本机目录中。",
            command="export TORCH_EXTENSIONS_DIR=/tmp/torch_extensions_$(id -un)",
        ),
    ),
    leads_to=("process-stuck", "straggler-timeout", "rank-exception", "network-blocked", "rendezvous-misconfig"),
    mistaken_for={
        "straggler-timeout": "a build that is in progress has a compiler running, and ends",
        "process-stuck": "there it is not known what a rank waits for",
    },
    sources=(
        "https://github.com/pytorch/pytorch/blob/main/torch/utils/file_baton.py",
        "https://docs.pytorch.org/docs/stable/cpp_extension.html",
        "https://github.com/deepspeedai/DeepSpeed/issues/2816",
    ),
    hits=('UserWarning: Waited on lock file "/home/u/.cache/torch_extensions/py311_cu121/fused_adam/lock" for 300 seconds.',),
    near_misses=("Waiting for lock file /var/lib/dpkg/lock", "Waited on lock file of the download for a while"),
    explain={
        "en": (
            "Some packages compile a part of themselves when they are first used. torch lets one process build and the others wait, by a file named "
            "lock in the folder of the build (TORCH_EXTENSIONS_DIR, by default ~/.cache/torch_extensions). Where the builder was killed, the file "
            "stays, and every later start waits for it for ever, without CPU and without a word; the stacks end in file_baton.py. Look that "
            "nothing compiles, remove the file, and start again."
        ),
        "zh": (
            "有些软件包在首次使用时编译自身的一部分。torch 让一个进程编译、其余等待，方法是在编译目录"
            "（TORCH_EXTENSIONS_DIR，默认 ~/.cache/torch_extensions）中放一个名为 lock 的文件。"
            "如果编译进程被杀死，该文件会遗留下来，之后每次启动都会无限等待，不占 CPU，也没有任何输出；"
            "调用栈停在 file_baton.py。"
            "确认没有编译在进行后删除该文件，再重新启动。"
        ),
    },
)
