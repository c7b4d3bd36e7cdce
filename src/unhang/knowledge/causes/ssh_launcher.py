"""ssh-launcher: a launcher that starts ranks by ssh does not get to a host, or arrives without its environment."""

from __future__ import annotations

from unhang.knowledge.cause import Cause, LogView, Signature, command
from unhang.model import Finding, Remedy
from unhang.patterns import lazily

_GIT = r"git@|Could not read from remote repository|git clone|Cloning into"


def _in_logs(view: LogView) -> Finding | None:
    hits = tuple(h for h in view.hits_of(CAUSE.id) if h.signature != _NOT_FOUND_THERE or h.host is not None or _BY_SSH.search(h.text))
    host = next((h.groups["peer"] for h in hits if "peer" in h.groups), None)
    prove = command("ssh-copy-id {host:login} && ssh -o BatchMode=yes {host:login} hostname", host=host)
    return CAUSE.of_hits(hits, view, commands={"passwordless": prove} if host else None)


# What a shell prints that finds no program. Here it counts where pdsh's prefix names another host, or what ssh starts is itself part of a launcher.
_NOT_FOUND_THERE = Signature(
    needle="bash: line ",
    pattern=r"bash: line \d+: (?P<program>\S+): (?P<error>(?:[Cc]ommand not found|No such file or directory|cannot execute.{0,60}))",
    standing="likely",
    says="the shell that was opened on another host cannot run {program}: {error}",
    says_zh="在另一台主机上打开的 shell 无法运行 {program}：{error}",
    remedies=("same-path",),
)
_BY_SSH = lazily(r"\b(?:ssh|pdsh|srun|mpirun)\b|^(?:\[[\w,<>]+\]:)?[\w.-]+: bash: line ")

CAUSE = Cause(
    id="ssh-launcher",
    role="root",
    title="The launcher cannot start ranks over ssh",
    title_zh="启动器无法通过 ssh 启动其他主机上的进程",
    what="pdsh, mpirun, horovodrun or the deepspeed launcher starts the ranks of other hosts over ssh, and ssh did not get in, or found no programs.",
    why=(
        "No key without a passphrase, an unknown host key, sshd on another port (containers), no ssh or pdsh installed, or a "
        "non-interactive shell whose PATH lacks the environment."
    ),
    signatures=(
        Signature(
            needle="ssh: connect to host ",
            pattern=r"ssh: connect to host (?P<peer>\S+) port (?P<port>\d+): (?P<error>.+)",
            unless=_GIT,
            says="ssh did not reach {peer} on port {port}: {error}",
            says_zh="ssh 没有连上 {peer} 的端口 {port}：{error}",
            remedies=("reach-sshd", "passwordless"),
        ),
        Signature(
            needle="Permission denied (",
            pattern=r"(?:(?P<peer>(?<![\w.@-])[\w.@-]{1,253}): )?Permission denied \((?:publickey|password|gssapi|keyboard|hostbased)[^)]*\)",
            unless=_GIT,
            says="ssh was refused: this user has no key on the other host",
            says_zh="ssh 被拒绝：该用户在另一台主机上没有密钥",
            remedies=("passwordless",),
        ),
        Signature(
            needle="Permission denied, please try again",
            standing="likely",
            says="ssh asked for a password, which a launcher cannot give",
            says_zh="ssh 要求输入密码，而启动器无法提供",
            remedies=("passwordless",),
        ),
        Signature(
            needle="Host key verification failed",
            unless=_GIT,
            says="ssh does not know the host key of the other host, and a launcher cannot answer its question",
            says_zh="ssh 不认识另一台主机的公钥，而启动器无法回答它的询问",
            remedies=("know-the-host", "passwordless"),
        ),
        Signature(
            needle="REMOTE HOST IDENTIFICATION HAS CHANGED",
            says="the other host has another host key than before (a new container or machine), and ssh refuses it",
            says_zh="另一台主机的公钥与之前不同（新的容器或机器），ssh 拒绝接受",
            remedies=("know-the-host",),
        ),
        Signature(
            needle="exchange_identification: ",
            pattern=r"(?:kex|ssh)_exchange_identification: (?P<error>.+)",
            unless=_GIT,
            says="sshd of the other host dropped the connection: {error}",
            says_zh="另一台主机的 sshd 断开了连接：{error}",
            remedies=("reach-sshd", "fewer-at-once"),
        ),
        Signature(
            needle="ssh exited with exit code 255",
            pattern=r"(?:pdsh@\S{1,253}: )?(?P<peer>(?<!\S)\S{1,253}): ssh exited with exit code 255",
            says="pdsh's ssh to {peer} failed",
            says_zh="pdsh 到 {peer} 的 ssh 失败",
            remedies=("passwordless", "reach-sshd"),
        ),
        Signature(
            needle="not reachable via ssh",
            pattern=r"host=(?P<peer>\S+) was not reachable via ssh",
            says="the deepspeed launcher could not reach {peer} by ssh",
            says_zh="deepspeed 启动器无法通过 ssh 连上 {peer}",
            remedies=("passwordless", "no-ssh"),
        ),
        Signature(
            needle="PasswordAuthentication=no",
            pattern=r"Command '?\[?'?ssh.*PasswordAuthentication=no.* (?P<peer>[\w.@-]+) hostname'?.*returned non-zero exit status (?P<status>\d+)",
            says="the deepspeed launcher could not reach {peer} by ssh",
            says_zh="deepspeed 启动器无法通过 ssh 连上 {peer}",
            remedies=("passwordless", "no-ssh"),
        ),
        Signature(
            needle=" not installed",
            pattern=r"launcher '(?P<launcher>\w+)' not installed",
            says="the deepspeed launcher wants {launcher} for several hosts, and it is not installed",
            says_zh="deepspeed 启动器在多机时需要 {launcher}，但它没有安装",
            remedies=("install-pdsh", "no-ssh"),
        ),
        Signature(
            needle="PDSH_SSH_ARGS_APPEND",
            pattern=r"KeyError: 'PDSH_SSH_ARGS_APPEND'",
            says="this DeepSpeed needs PDSH_SSH_ARGS_APPEND set where --ssh_port is given",
            says_zh="给出 --ssh_port 时，这个 DeepSpeed 要求设置 PDSH_SSH_ARGS_APPEND",
            remedies=("ssh-port",),
        ),
        Signature(
            needle='pdsh/" insecure',
            pattern=r"module path \"\S*pdsh/?\" insecure",
            says="pdsh refuses its modules, because another user than root could write there",
            says_zh="pdsh 拒绝加载它的模块，因为 root 以外的用户可以写入那里",
            remedies=("install-pdsh",),
        ),
        Signature(
            needle="load any pdsh modules",
            says="pdsh found none of its modules",
            says_zh="pdsh 没有找到它的任何模块",
            remedies=("install-pdsh",),
        ),
        # Open MPI and PRRTE.
        Signature(
            needle="unable to reliably start one or more daemons",
            pattern=r"(?P<daemon>ORTE|PRTE|PRRTE) was unable to reliably start one or more daemons",
            standing="likely",
            says="mpirun could not start its daemon on another host",
            says_zh="mpirun 无法在另一台主机上启动它的守护进程",
            remedies=("passwordless", "same-path", "reach-sshd"),
        ),
        Signature(
            needle="daemon has unexpectedly failed after launch",
            standing="likely",
            says="mpirun's daemon on another host ended before it could report back",
            says_zh="mpirun 在另一台主机上的守护进程还没能回报就已结束",
            remedies=("same-path", "reach-sshd"),
        ),
        Signature(
            needle="plm_rsh_agent",
            pattern=r"plm_rsh_agent(?:\"|'|:).{0,120}",
            near=r"was set to a path|could not be found|not found",
            says="mpirun finds neither ssh nor rsh",
            says_zh="mpirun 既找不到 ssh 也找不到 rsh",
            remedies=("install-ssh",),
        ),
        Signature(
            needle="ommand not found",
            pattern=r"(?:ba|z|da)?sh: (?:line \d+: )?(?P<program>\S*(?:orted|prted|hydra_pmi_proxy|pdsh|ssh))\b: [Cc]ommand not found",
            standing="likely",
            says="{program} was not found in the shell that ssh opened: the environment did not travel",
            says_zh="ssh 打开的 shell 中找不到 {program}：环境没有带过去",
            remedies=("same-path", "install-ssh"),
        ),
        _NOT_FOUND_THERE,
        Signature(
            needle="authenticity of host ",
            pattern=r"The authenticity of host '(?P<peer>[^'\s(]+)",
            standing="likely",
            says="ssh asks whether {peer} is to be trusted, and nobody answers",
            says_zh="ssh 询问是否信任 {peer}，而没有人回答",
            remedies=("know-the-host",),
        ),
    ),
    in_logs=_in_logs,
    remedies=(
        Remedy(
            id="passwordless",
            says="Give this user a key without a passphrase on every host (localhost too, where it stands in the host file), and prove it.",
            says_zh="为该用户在每台主机（如果 hostfile 里有 localhost，也包括它）配置免密钥登录，并验证。",
            command="ssh-keygen -t ed25519 -N '' -f ~/.ssh/id_ed25519; ssh-copy-id HOST && ssh -o BatchMode=yes HOST hostname",
        ),
        Remedy(
            id="know-the-host",
            says="Record the host keys beforehand, and remove the old one where a machine was replaced.",
            says_zh="事先登记主机公钥；机器更换过的，先删除旧公钥。",
            command="ssh-keygen -R HOST; ssh-keyscan HOST >> ~/.ssh/known_hosts",
            verify="ssh -o BatchMode=yes HOST hostname",
        ),
        Remedy(
            id="reach-sshd",
            says="See that sshd runs there and on which port; in a container it has to be started, and often shares the host's port 22.",
            says_zh="确认对端 sshd 正在运行以及所用端口；容器里需要自己启动 sshd，且常与宿主机的 22 端口冲突。",
            command="nc -vz -w 5 HOST 22; ssh -v -o BatchMode=yes HOST hostname 2>&1 | tail -5",
        ),
        Remedy(
            id="ssh-port",
            says="Name the port in ~/.ssh/config, which every launcher reads, instead of on the command line.",
            says_zh="把端口写进 ~/.ssh/config，所有启动器都会读取它，而不是写在命令行上。",
            command="printf 'Host node*\\n  Port 2222\\n' >> ~/.ssh/config; export PDSH_SSH_ARGS_APPEND='-p 2222'",
        ),
        Remedy(
            id="no-ssh",
            says="Or do without ssh: start the launcher once on every host by other means, with its own node rank.",
            says_zh="或者不用 ssh：用其他方式在每台主机上各启动一次启动器，并给出各自的 node rank。",
            command="deepspeed --no_ssh --hostfile hosts --node_rank 0 --master_addr 10.0.0.1 --master_port 29500 train.py",
        ),
        Remedy(
            id="install-pdsh",
            says="Install pdsh with its ssh module, or choose another launcher (deepspeed --launcher openmpi).",
            says_zh="安装带 ssh 模块的 pdsh，或改用其他启动方式（deepspeed --launcher openmpi）。",
            command="sudo apt-get install -y pdsh && sudo chown root:root /usr/lib && PDSH_RCMD_TYPE=ssh pdsh -w HOST hostname",
        ),
        Remedy(
            id="install-ssh",
            says="Install the ssh client where the launcher runs.",
            says_zh="在运行启动器的主机上安装 ssh 客户端。",
            command="sudo apt-get install -y openssh-client",
        ),
        Remedy(
            id="same-path",
            says=(
                "Make the non-interactive shell find the same programs: same paths on all hosts, mpirun --prefix, or PATH and LD_LIBRARY_PATH set "
                "above the line of ~/.bashrc that returns for non-interactive shells."
            ),
            says_zh=(
                "让非交互 shell 找到同样的程序：各主机路径一致，用 mpirun --prefix，或把 PATH、LD_LIBRARY_PATH 写在 ~/.bashrc 中非交互返回语句之前。"
            ),
            command="ssh HOST 'which python orted; echo $PATH; echo $LD_LIBRARY_PATH'",
        ),
        Remedy(
            id="fewer-at-once",
            says="Start fewer connections at once, or raise MaxStartups in sshd_config.",
            says_zh="减少同时发起的连接数，或调大 sshd_config 中的 MaxStartups。",
            command="pdsh -f 8 -w HOSTS hostname",
        ),
    ),
    leads_to=("rendezvous-misconfig", "rank-exception", "launcher-wrong-env"),
    mistaken_for={
        "dns-resolution": "'Could not resolve hostname' is a name, not ssh",
        "network-blocked": "an open port 22 says nothing about the ports of the training, nor the other way round",
        "env-relocation": "an interpreter that is missing on every host is an environment that moved; missing on one, a path that differs there",
        "launcher-wrong-env": "a program that starts and is the wrong one (another python) is no matter of ssh",
    },
    sources=(
        "https://www.deepspeed.ai/getting-started/#multi-node-environment-variables",
        "https://docs.open-mpi.org/en/v5.0.x/launching-apps/ssh.html",
        "https://man.openbsd.org/ssh_config",
    ),
    hits=(
        "ssh: connect to host node8 port 22: Connection refused",
        "node8: ssh: connect to host node8 port 2222: No route to host",
        "trainer@node8: Permission denied (publickey,password).",
        "localhost: Permission denied, please try again.",
        "Host key verification failed.",
        "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @",
        "kex_exchange_identification: Connection closed by remote host",
        "pdsh@node1: node8: ssh exited with exit code 255",
        (
            "RuntimeError: Using hostfile at hosts.txt but host=10.0.0.8 was not reachable via ssh. If you are running with a single node "
            "please remove hosts.txt or setup passwordless ssh."
        ),
        "subprocess.CalledProcessError: Command 'ssh -o PasswordAuthentication=no 10.0.0.8 hostname' returned non-zero exit status 255.",
        "RuntimeError: launcher 'pdsh' not installed.",
        "KeyError: 'PDSH_SSH_ARGS_APPEND'",
        'pdsh@node1: module path "/usr/lib/x86_64-linux-gnu/pdsh/" insecure.',
        "pdsh@node1: Couldn't load any pdsh modules",
        "ORTE was unable to reliably start one or more daemons.",
        "An ORTE daemon has unexpectedly failed after launch and before\ncommunicating back to mpirun.",
        ('The value of the MCA parameter "plm_rsh_agent" was set to a path\nthat could not be found:\n\n  plm_rsh_agent: ssh : rsh'),
        "bash: /opt/openmpi/bin/orted: command not found",
        "node8: bash: line 1: /srv/env/bin/python3.11: No such file or directory",
        "The authenticity of host 'node8 (10.0.0.8)' can't be established.",
    ),
    near_misses=(
        "git@github.com: Permission denied (publickey).",
        "Host key verification failed.\nfatal: Could not read from remote repository.",
        "ssh: Could not resolve hostname node8: Name or service not known",
        "pdsh@node1: node8: ssh exited with exit code 1",
        "PermissionError: [Errno 13] Permission denied: '/srv/checkpoints'",
        "/usr/bin/python3: No module named deepspeed",
    ),
    explain={
        "en": (
            "This launcher starts the ranks of the other hosts over ssh, and at least one of them it did not get to, or the shell there lacked "
            "the programs. Nothing of the training has run on that host. A launcher cannot type a password nor answer a question: ssh -o "
            "BatchMode=yes HOST hostname must print the name, from the user and the container in which the launcher runs. A login by hand "
            "proves less: it reads other start-up files. torchrun and accelerate do not need ssh at all, if they are started once on every "
            "host."
        ),
        "zh": (
            "这个启动器通过 ssh 在其他主机上启动进程，而其中至少一台没有连上，或者那边的 shell 里缺少程序。那台主机上训练根本没有开始。启动器不"
            "会输入密码，也不会回答提问：在启动器所用的用户和容器里执行 ssh -o BatchMode=yes HOST hostname，必须能直接打印出主机名。手工登录成"
            "功说明不了问题，因为它读取的启动文件不同。torchrun 和 accelerate 完全不需要 ssh，在每台主机上各启动一次即可。"
        ),
    },
)
