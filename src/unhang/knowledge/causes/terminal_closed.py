"""terminal-closed: the terminal or ssh session that the training was started from was closed."""

from __future__ import annotations

from unhang.knowledge.cause import Cause, Signature
from unhang.model import Remedy

CAUSE = Cause(
    id="terminal-closed",
    role="root",
    title="The terminal or ssh session was closed",
    title_zh="终端或 ssh 会话已关闭",
    what="The launcher received SIGHUP, which the kernel sends when a terminal closes, and ended the ranks.",
    why="A window was closed, an ssh connection dropped, or a notebook server restarted its terminals.",
    signatures=(
        Signature(
            needle="got signal: 1",
            pattern=r"SignalException: Process (?P<pid>\d+) got signal: 1\b(?!\d)",
            says="the launcher (pid {pid}) received SIGHUP: the terminal or ssh session that it was started from was closed",
            says_zh="启动器（pid {pid}）收到 SIGHUP：启动它的终端或 ssh 会话已关闭",
            remedies=("detach",),
        ),
        Signature(
            needle=" death signal, shutting down workers",
            pattern=r"Received (?:1|Signals\.SIGHUP) death signal",
            says="the launcher received SIGHUP: the terminal or ssh session that it was started from was closed",
            says_zh="启动器收到 SIGHUP：启动它的终端或 ssh 会话已关闭",
            remedies=("detach",),
        ),
    ),
    remedies=(
        Remedy(
            id="detach",
            says=(
                "Start it where no terminal can take it down: in tmux or screen, as a service, or with setsid. nohup alone does not help, "
                "because torchrun installs its own handler for SIGHUP."
            ),
            says_zh="在不受终端影响的环境中启动：tmux 或 screen、系统服务，或 setsid。只用 nohup 不够，因为 torchrun 会安装自己的 SIGHUP 处理函数。",
            command="tmux new -d -s train 'torchrun --nproc-per-node N train.py > train.log 2>&1'",
        ),
    ),
    leads_to=("host-oom-or-killed", "rank-exception", "loader-worker-died", "premature-exit"),
    mistaken_for={"launcher-teardown": "signal 15 (SIGTERM) comes from a scheduler, a container or a person; a terminal that closes sends 1"},
    sources=("https://man7.org/linux/man-pages/man7/signal.7.html",),
    hits=(
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 4711 got signal: 1",
        "W1103 09:10:41.194000 4711 torch/distributed/elastic/agent/server/api.py:719] Received 1 death signal, shutting down workers",
    ),
    near_misses=(
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 4711 got signal: 15",
        "W1103 09:10:41.194000 4711 torch/distributed/elastic/agent/server/api.py:719] Received 15 death signal, shutting down workers",
    ),
    explain={
        "en": (
            "The training was started from a terminal, and that terminal was closed: the launcher received SIGHUP and ended the ranks. Nothing "
            "failed in the training. Start it where no terminal can take it down."
        ),
        "zh": "训练是从一个终端启动的，而这个终端被关闭了：启动器收到 SIGHUP 并结束了各进程。训练本身没有出错。请在不受终端影响的环境中启动。",
    },
)
