"""version-mismatch: parts of one job that have to agree were built for, or are, different versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from unhang.knowledge import cann
from unhang.knowledge.cause import Cause, LogView, Signature, command
from unhang.knowledge.text import COMMA, NOTHING, Text, joined, same
from unhang.model import Evidence, Finding, HostFinding, Remedy
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.facts.libraries import Libraries
    from unhang.facts.snapshot import Snapshot
    from unhang.logs.log_facts import At

_RELEASE = lazily(r"(\d+\.\d+\.\d+)(?:\+cuda(\d+\.\d+))?")
_ANEW = "{python:program} -m pip install --force-reinstall --no-deps {packages:name*}"
_PINS = "python -m pip install {pins:requirement*}"


def _in_logs(view: LogView) -> Finding | None:
    """NCCL itself compares versions only late; what each rank prints shows the difference before that."""
    own = view.hits_of(CAUSE.id)
    # Places by NCCL release, the toolkit that it was built with left aside: builds of one release understand each other.
    found: dict[str, list[At]] = {}
    for text, places in sorted(view.nccl.versions.items()):
        if release := _RELEASE.search(text):
            found.setdefault(release[1], []).extend(places)
    printed = found
    apart = _apart(printed)
    named = next((h for h in own if "first_version" in h.groups), None)
    if named is not None:
        g = named.groups
        return CAUSE.of_hits(
            own,
            view,
            says=Text(
                "rank {first} runs NCCL {one}, rank {second} runs NCCL {other}", "rank {first} 使用 NCCL {one}，rank {second} 使用 NCCL {other}"
            ).fill(first=g["first"], one=_release(g["first_version"]), second=g["second"], other=_release(g["second_version"])),
            remedies=("same-everywhere", "see-what-is-loaded"),
        )
    if apart is None or not _failed(view):
        # An address that cannot be read is interface-selection's, unless releases differ.
        return CAUSE.of_hits([h for h in own if "family" not in h.groups], view)
    told = joined((Text("{release} on {places}", "{release}（{places}）").fill(release=v, places=_places(p)) for v, p in printed.items()), COMMA)
    who = Text("hosts", "各主机") if apart == "hosts" else Text("ranks", "各 rank ")
    says = Text("{who} run different NCCL releases: {told}", "{who}使用不同的 NCCL 版本：{told}").fill(who=who, told=told)
    garbled = any(h.groups.keys() & {"family", "received_bytes"} for h in own)
    return CAUSE.finding(
        standing="established" if garbled and apart == "hosts" else "likely" if apart == "hosts" else "possible",
        says=says,
        ranks=tuple(sorted({a.rank for places in printed.values() for a in places if a.rank is not None})),
        hosts=tuple(dict.fromkeys(a.host for places in printed.values() for a in places if a.host is not None)),
        evidence=(
            *(Evidence(source=places[0].source, line=places[0].line, text=places[0].text.strip()) for places in printed.values()),
            *(h.evidence() for h in own[:1]),
        ),
        remedies=("same-everywhere", "see-what-is-loaded"),
    )


def _apart(printed: Mapping[str, list[At]]) -> str | None:
    """Who disagrees: "hosts", "ranks", or nobody. One process may hold two NCCLs (torch's and a plugin's) and be healthy."""
    if len(printed) < 2:
        return None
    hosts = [{a.host for a in places if a.host} for places in printed.values()]
    if all(hosts) and not set.intersection(*hosts):
        return "hosts"
    ranks = [{a.rank for a in places if a.rank is not None} for places in printed.values()]
    return "ranks" if all(ranks) and not set.intersection(*ranks) else None


def _failed(view: LogView) -> bool:
    return bool(view.hits or view.tracebacks or view.timeouts or any(not i.completed for i in view.nccl.inits) or any(e.code for e in view.exits))


def _places(places: Iterable[At]) -> Text:
    names = list(dict.fromkeys(a.host or (f"rank {a.rank}" if a.rank is not None else a.source) for a in places))
    more = Text(" and {n} more", "，另有 {n} 个").fill(n=len(names) - 3) if len(names) > 3 else NOTHING
    return joined(map(same, names[:3]), COMMA) + more


def _release(code: str) -> str:
    """ "22105" is 2.21.5; up to 2.8 the code was shorter ("2708" is 2.7.8)."""
    number = int(code)
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}" if number >= 10000 else f"{number // 1000}.{number // 100 % 10}.{number % 100}"


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import libraries, python_env

    seen = host.get(libraries.SUBJECT)
    if seen is not None:
        yield from _pins(seen)
        yield from _replaced(seen)
    envs = host.get(python_env.SUBJECT)
    for env in envs.environments if envs is not None else ():
        doubled = {n: v for n, v in env.duplicates.items() if n in python_env.TRAINING or n.startswith("nvidia-")}
        if doubled:
            told = joined(same(f"{n} ") + joined(map(same, v), Text(" and ", " 和 ")) for n, v in list(doubled.items())[:4])
            yield CAUSE.host_finding(
                area="python_env",
                severity="warning",
                says=Text("{prefix} has records of two releases of one package: {told}", "{prefix} 中同一软件包有两个版本的记录：{told}").fill(
                    prefix=env.prefix, told=told
                ),
                leads_to=Text(
                    "the files are a mixture of both, and what pip and packages believe to be installed is not what is imported",
                    "文件是两个版本的混合，pip 和各软件包以为已安装的并不是实际导入的",
                ),
                evidence=tuple(Evidence(source=env.prefix, text=f"{n}-{one}.dist-info") for n, v in list(doubled.items())[:2] for one in v),
                remedies=("install-anew",),
                commands={"install-anew": command(_ANEW, python=env.python, packages=doubled)},
            )


def _pins(seen: Libraries) -> Iterable[HostFinding]:
    # What is not there at all is library-link's, where torch really lacks it.
    apart = [p for p in seen.broken_pins if p.installed is not None]
    for package in dict.fromkeys(p.package for p in apart):
        own = [p for p in apart if p.package == package]
        about_torch = own[0].name == "torch"
        yield CAUSE.host_finding(
            area="libraries",
            severity="warning",
            says=Text(
                "{package} {version} was built for other releases than the installed ones: {others}",
                "{package} {version} 编译时面向的版本与已安装的不同：{others}",
            ).fill(
                package=package,
                version=seen.packages.get(package, seen.torch.version),
                others=joined(
                    (Text(f"{p.name} {p.wanted}, not {p.installed}", f"{p.name} 应为 {p.wanted}，而不是 {p.installed}") for p in own[:4]),
                    Text(", ", "；"),
                ),
            ),
            leads_to=Text(
                f"importing {package} fails with undefined symbols or missing operators", f"import {package} 失败：undefined symbol，或缺少算子"
            )
            if about_torch
            else Text(
                "libraries that torch was not tested with; where only some hosts have them, ranks do not understand each other",
                "这些库没有与此 torch 一起测试过；若只有部分主机如此，各 rank 之间无法正常通信",
            ),
            evidence=tuple(Evidence(source=f"Requires-Dist of {p.package}", text=f"{p.name}=={p.wanted}") for p in own[:4]),
            remedies=("matching-packages",),
            commands=None if about_torch else {"matching-packages": command(_PINS, pins=[f"{p.name}=={p.wanted}" for p in own])},
        )


def _replaced(seen: Libraries) -> Iterable[HostFinding]:
    """The file of a wheel, and what the wheel's record says that it is."""
    wheel = next(((n, v) for n, v in seen.packages.items() if n.startswith("nvidia-nccl-cu")), None)
    file = next((c for c in (*seen.loaded, *seen.others) if c.name == "nccl" and "/nvidia/nccl/lib/" in c.path and c.version is not None), None)
    if wheel is not None and file is not None and ".".join(wheel[1].split(".")[:3]) != file.version:
        yield CAUSE.host_finding(
            area="libraries",
            severity="warning",
            says=Text(
                f"{wheel[0]} {wheel[1]} is recorded, and its library is NCCL {file.version}",
                f"记录的是 {wheel[0]} {wheel[1]}，而其中的库是 NCCL {file.version}",
            ),
            leads_to=Text(
                "this host runs another NCCL than pip lists, and than hosts that were installed in the same way",
                "本机运行的 NCCL 与 pip 列出的不同，也与同样方式安装的主机不同",
            ),
            evidence=(Evidence(source=file.path, text=f"NCCL version {file.version}"),),
            remedies=("install-anew",),
            commands={"install-anew": command("python -m pip install --force-reinstall --no-deps {wheel:requirement}", wheel="==".join(wheel))},
        )


CAUSE = Cause(
    id="version-mismatch",
    role="root",
    title="Parts of the job have different versions",
    title_zh="作业各部分的版本不一致",
    what=(
        "Ranks, hosts, or libraries that have to agree are different releases: NCCL, torch, CUDA, Python, Ray, or an extension and the torch it "
        "was built for."
    ),
    why=(
        "Hosts were installed at different times or start different images; a package was upgraded alone; the CUDA toolkit of the host is "
        "another one than torch was built with."
    ),
    signatures=(
        cann.message("driver version capacity is insufficient", remedies=("matching-packages",)),
        cann.message(" versions are inconsistent", standing="established", remedies=("same-everywhere",)),
        Signature(
            needle="Mismatched NCCL version detected",
            pattern=r"Mismatched NCCL version detected : rank (?P<first>\d+) version (?P<first_version>\d+) "
            r"rank (?P<second>\d+) version (?P<second_version>\d+)",
            says="rank {first} runs NCCL {first_version} and rank {second} runs NCCL {second_version}",
            says_zh="rank {first} 使用 NCCL {first_version}，rank {second} 使用 NCCL {second_version}",
            remedies=("same-everywhere", "see-what-is-loaded"),
        ),
        # The peer's address arrives in the layout of another release or network plugin: the family is then a stray word of it.
        Signature(
            needle="ncclSocketInit: connecting to address",
            pattern=r"connecting to address .{0,80}?with family (?P<family>\d+) is neither AF_INET",
            standing="likely",
            says="NCCL got a peer's address that it cannot read (family {family}), as happens between different NCCL releases or network plugins",
            says_zh="NCCL 收到的对端地址无法识别（family {family}），NCCL 版本或网络插件不同时会这样",
            remedies=("same-everywhere", "see-what-is-loaded"),
        ),
        # Bootstrap only; collectives of different sizes speak of "message truncated : receiving".
        Signature(
            needle="Message truncated : received",
            pattern=r"Message truncated : received (?P<received_bytes>\d+) bytes instead of (?P<expected_bytes>\d+)",
            standing="possible",
            says="NCCL's bootstrap received {received_bytes} bytes where {expected_bytes} were expected: the ranks do not follow the same steps",
            says_zh="NCCL 的 bootstrap 收到 {received_bytes} 字节，而预期是 {expected_bytes} 字节：各 rank 执行的步骤不一致",
            remedies=("same-everywhere", "same-settings"),
        ),
        Signature(
            needle="differ from rank ",
            pattern=(
                r"NCCL DIAG \[INFO\] (?P<what>[\w .-]{1,60}): (?:\w{1,20} )?mismatch across [^\n]{0,120}?rank\(s\) (?P<whose>[\d, and-]{1,120}?) "
                r"differ from rank (?P<other>\d{1,7}) \((?P<value>[^)\n]{0,120})\)"
            ),
            standing="possible",
            says="NCCL's own check: {what} differs, on rank(s) {whose} from rank {other} ({value})",
            says_zh="NCCL 自带的检查：{what} 不一致，rank {whose} 与 rank {other}（{value}）不同",
            remedies=("same-everywhere",),
        ),
        # torch's symmetric memory, made for the device API of NCCL 2.28: 2.29 wants it initialised.
        Signature(
            needle="ncclDevCommCreate failed",
            near=r"NCCL version 2\.(?:29|[3-9]\d)\.",
            standing="likely",
            says="this torch was built for the device API of another NCCL release than the one that is loaded (symmetric memory)",
            says_zh="这个 torch 编译时所用的 NCCL 设备 API 与实际加载的版本不同（对称内存）",
            remedies=("matching-packages", "see-what-is-loaded"),
        ),
        Signature(
            needle="NVSHMEM host library version",
            pattern=r"NVSHMEM device library version.{0,40}does not match with NVSHMEM host library version",
            says="the NVSHMEM host library is another release than the device code was built with",
            says_zh="NVSHMEM 主机端库的版本与编译设备代码时所用的不同",
            remedies=("rebuild-the-extension", "see-what-is-loaded"),
        ),
        Signature(
            needle="were compiled with different CUDA",
            pattern=r"PyTorch and (?P<package>\w+) were compiled with different CUDA(?: major)? versions?\.?"
            r"(?: PyTorch has CUDA Version=(?P<torch_cuda>[\d.]+) and \w+ has CUDA Version=(?P<package_cuda>[\d.]+\d))?",
            says="torch and {package} were built for different CUDA versions",
            says_zh="torch 与 {package} 是针对不同的 CUDA 版本编译的",
            remedies=("matching-packages",),
        ),
        Signature(
            needle=" or higher required",
            pattern=r"Error: (?P<library>[\w.+-]{1,40}) version (?P<least>\d[\d.x]{0,20}) or higher required",
            says="{library} is older than {least}, which this needs",
            says_zh="{library} 低于所需的 {least}",
            remedies=("matching-packages",),
        ),
        Signature(
            needle="torchvision::nms does not exist",
            says="torchvision was built for another torch than the one that is installed",
            says_zh="torchvision 是针对另一个 torch 编译的，不是现在安装的这个",
            remedies=("matching-packages",),
        ),
        Signature(
            needle="cuDNN version incompatibility",
            pattern=r"compiled {1,2}against (?P<built>\(?\d+[\d, .]*\)?) but found runtime version (?P<found>\(?\d+[\d, .]*\)?)",
            says="torch was built against cuDNN {built} and loaded {found}",
            says_zh="torch 编译时用的是 cuDNN {built}，加载的是 {found}",
            remedies=("drop-foreign-libraries", "matching-packages"),
        ),
        Signature(
            needle="mismatches the version that was used to compile",
            pattern=r"detected CUDA version \((?P<toolkit>[\d.]+)\) mismatches",
            says="the CUDA toolkit of this host ({toolkit}) is not the one that torch was built with, so extensions cannot be compiled",
            says_zh="这台主机的 CUDA 工具包（{toolkit}）不是编译 torch 时所用的那个，因此无法编译扩展",
            remedies=("toolkit-of-torch", "prebuilt-extension"),
        ),
        Signature(
            needle="is not defined for option 'std'",
            pattern=r"nvcc fatal {1,4}: Value '(?P<standard>c\+\+\d\w)' is not defined",
            says="the CUDA toolkit of this host is too old for {standard}, which this torch needs, so extensions cannot be compiled",
            says_zh="这台主机的 CUDA 工具包太旧，不支持此 torch 需要的 {standard}，因此无法编译扩展",
            remedies=("toolkit-of-torch", "prebuilt-extension"),
        ),
        Signature(
            needle="does not match the version torch was compiled with",
            pattern=r"Installed CUDA version (?P<toolkit>[\d.]+) does not match the version torch was compiled with (?P<torch_cuda>[\d.]*\d)"
            # It goes on where the major version is the same, or where it was told not to mind.
            r"(?!.{0,200}(?:accepting|[Aa]llowing) this combination)",
            says="the CUDA toolkit of this host is {toolkit} and torch was built with {torch_cuda}, so DeepSpeed cannot compile its operators",
            says_zh="这台主机的 CUDA 工具包是 {toolkit}，而 torch 编译时用的是 {torch_cuda}，因此 DeepSpeed 无法编译它的算子",
            remedies=("toolkit-of-torch", "prebuilt-extension"),
        ),
        Signature(
            needle="Version mismatch: The cluster was started with",
            pattern=r"(?:Error|Exception): Version mismatch",
            says="this node joins a Ray cluster that was started with another Ray or Python",
            says_zh="该节点要加入的 Ray 集群是用另一个版本的 Ray 或 Python 启动的",
            remedies=("same-everywhere",),
        ),
        # Where only the patch release of Python differs, newer Rays warn and go on.
        Signature(
            needle="Version mismatch: The cluster was started",
            pattern=r"-- Version mismatch",
            standing="possible",
            says="this node joined a Ray cluster that was started with another Ray or Python",
            says_zh="该节点加入的 Ray 集群是用另一个版本的 Ray 或 Python 启动的",
            remedies=("same-everywhere",),
        ),
        Signature(
            needle="unsupported pickle protocol",
            pattern=r"unsupported pickle protocol: (?P<protocol>\d+)",
            standing="possible",
            says="an object pickled by a newer Python (protocol {protocol}) reached an older one",
            says_zh="较新的 Python 用 pickle 序列化的对象（协议 {protocol}）传到了较旧的 Python",
            remedies=("same-everywhere",),
        ),
        Signature(
            needle="not initialized via NCCL_CONFIG_INITIALIZER",
            standing="possible",
            says="the caller of NCCL was compiled with headers of another NCCL release than the library that is loaded",
            says_zh="NCCL 的调用方编译时所用头文件的 NCCL 版本，与加载的库不同",
            remedies=("see-what-is-loaded", "rebuild-the-extension"),
        ),
    ),
    in_logs=_in_logs,
    on_host=_on_host,
    remedies=(
        Remedy(
            id="same-everywhere",
            says="Make every host run the same image or environment, then compare what they report line by line.",
            says_zh="让所有主机使用同一个镜像或环境，然后逐行比较它们报告的版本。",
            command=(
                "srun --label python -c 'import sys, torch; print(sys.version.split()[0], torch.__version__, torch.version.cuda, "
                "torch.cuda.nccl.version())' | sort -k2 | awk '{$1=\"\"; print}' | uniq -c"
            ),
            verify="NCCL_DEBUG=VERSION torchrun ARGS train.py 2>&1 | grep 'NCCL version'",
        ),
        Remedy(
            id="see-what-is-loaded",
            says="See which libnccl each running rank has really mapped; a copy found through LD_LIBRARY_PATH wins over the one in the environment.",
            says_zh="查看每个运行中的进程实际映射的是哪一个 libnccl；通过 LD_LIBRARY_PATH 找到的副本会抢在环境自带的之前。",
            command="for p in $(pgrep -f train.py); do echo \"$p $(grep -om1 '/.*libnccl[^ ]*' /proc/$p/maps)\"; done",
        ),
        Remedy(
            id="same-settings",
            says="Compare the NCCL settings of the ranks: NCCL_PROTO, NCCL_ALGO and their like have to be the same on all of them.",
            says_zh="比较各进程的 NCCL 设置：NCCL_PROTO、NCCL_ALGO 等变量在所有进程上必须一致。",
            command="srun --label env | grep NCCL_ | sort -k2",
            verify="NCCL_DEBUG=INFO torchrun ARGS train.py 2>&1 | grep 'set by environment to'",
        ),
        Remedy(
            id="matching-packages",
            says="Install torch and the packages that belong to it (torchvision, torchaudio) in one command, for one CUDA version.",
            says_zh="用一条命令、针对同一个 CUDA 版本安装 torch 及其配套包（torchvision、torchaudio）。",
            command="python -m pip list | grep -iE '^(torch|nvidia-)'",
            verify="python -c 'import torch, torchvision; print(torch.__version__, torchvision.__version__)'",
        ),
        Remedy(
            id="install-anew",
            says="Uninstall the package until pip finds no more of it, then install the release that is meant.",
            says_zh="反复卸载该软件包，直到 pip 再也找不到它，然后安装所需的版本。",
            command="python -m pip install --force-reinstall --no-deps PACKAGE",
            verify="python -m pip check",
        ),
        Remedy(
            id="drop-foreign-libraries",
            says="Start without LD_LIBRARY_PATH, so that torch finds the CUDA libraries that it brought along.",
            says_zh="去掉 LD_LIBRARY_PATH 再启动，让 torch 使用它自带的 CUDA 库。",
            command="env -u LD_LIBRARY_PATH torchrun ARGS train.py",
            verify="env -u LD_LIBRARY_PATH python -c 'import torch; print(torch.backends.cudnn.version())'",
        ),
        Remedy(
            id="toolkit-of-torch",
            says="Point CUDA_HOME at the toolkit of the version that torch was built with.",
            says_zh="把 CUDA_HOME 指向 torch 编译时所用版本的 CUDA 工具包。",
            command="export CUDA_HOME=/usr/local/cuda-$(python -c 'import torch; print(torch.version.cuda)')",
            verify="python -c 'from torch.utils.cpp_extension import CUDA_HOME; print(CUDA_HOME)' && $CUDA_HOME/bin/nvcc --version",
        ),
        Remedy(
            id="prebuilt-extension",
            says="Or avoid compiling: use an extension that was built for this torch, or torch's own optimizer instead of DeepSpeed's compiled one.",
            says_zh="或者避免编译：使用针对当前 torch 预编译好的扩展，或用 torch 自带的优化器代替 DeepSpeed 需要编译的优化器。",
            command="ds_report",
        ),
        Remedy(
            id="rebuild-the-extension",
            says="Rebuild the extension against the libraries that are installed now, without its cached build.",
            says_zh="清除缓存，针对现在安装的库重新编译该扩展。",
            command="python -m pip install --force-reinstall --no-deps --no-cache-dir --no-build-isolation EXTENSION",
        ),
    ),
    leads_to=("rank-exception",),
    mistaken_for={
        "collective-mismatch": "there all ranks run the same release and issue different calls; compare the printed versions first",
        "library-link": "there one process loads a library that lacks what another needs; here each part works, and they do not fit each other",
        "foreign-traffic": "a stranger on the bootstrap port sends garbage once; different releases fail at every start",
        ("interface-selection"): (
            "an address without a family comes from a host without a usable one; it counts here only where the log shows different releases as well"
        ),
        "launcher-wrong-env": "that is one way to it: another environment answers on one host",
    },
    sources=(
        "https://github.com/NVIDIA/nccl/blob/master/src/init.cc",
        "https://github.com/NVIDIA/nccl/blob/master/src/misc/socket.cc",
        "https://github.com/NVIDIA/nccl/issues/1267",
        "https://docs.pytorch.org/docs/stable/cpp_extension.html",
    ),
    hits=(
        "EE1015: [PID: 812] 2026-01-08 rtMemcpyBatch failed. Reason: The driver version capacity is insufficient. Feature 7 is missing",
        "EI0008: [PID: 812] 2026-01-08 The CANN versions are inconsistent: tag [x], local_version [1.83], remote_version [1.84]",
        "nvcc fatal   : Value 'c++17' is not defined for option 'std'",
        "[rank0]: AssertionError: CublasLt version 12.1.3.x or higher required for FP8 execution on Ada.",
        "node7:4711 NCCL DIAG [INFO] CUDA driver version: mismatch across 16 ranks in comm 0x5581, rank(s) 8-15 differ from rank 0 (13000)",
        "torch.distributed.DistBackendError: NCCL error in: nccl_devcomm.hpp:73, invalid usage, NCCL version 2.29.3\nncclDevCommCreate failed",
        "node7:5120:5333 [0] init.cc:1203 NCCL WARN Mismatched NCCL version detected : rank 8 version 21903 rank 0 version 22105",
        (
            "[2026-11-03 10:00:01] node7:5120:5333 [0] init.cc:1203 (initTransportsRank) NCCL WARN Mismatched NCCL version detected : rank 1 "
            "version 22809 rank 0 version 22707"
        ),
        "[rank3]: Mismatched NCCL version detected : rank 3 version 22005 rank 0 version 22304",
        (
            "node7:5120:5120 [0] NCCL INFO NCCL version 2.19.3+cuda12.3\n"
            "node8:612:612 [1] NCCL INFO NCCL version 2.21.5+cuda12.4\n"
            "node8:612:901 [1] misc/socket.cc:441 NCCL WARN ncclSocketInit: connecting to address  with family 0 is neither AF_INET(2) nor "
            "AF_INET6(10)"
        ),
        (
            "node7:5120:5120 [0] NCCL INFO NCCL version 2.18.1+cuda12.1\n"
            "node8:612:612 [1] NCCL INFO NCCL version 2.27.7+cuda12.9\n"
            "node8:612:901 [1] misc/socket.cc:717 NCCL WARN ncclSocketInit: connecting to address with family 41120 is neither AF_INET(2) nor "
            "AF_INET6(10)"
        ),
        "1: node7:4011:4820 [4] bootstrap.cc:77 NCCL WARN Message truncated : received 512 bytes instead of 128",
        "NVSHMEM device library version does not match with NVSHMEM host library version",
        (
            "RuntimeError: Detected that PyTorch and torchvision were compiled with different CUDA major versions. PyTorch has CUDA Version=12.8 "
            "and torchvision has CUDA Version=11.8. Please reinstall the torchvision that matches your PyTorch install."
        ),
        "RuntimeError: Detected that PyTorch and TorchAudio were compiled with different CUDA versions.",
        "RuntimeError: operator torchvision::nms does not exist",
        (
            "RuntimeError: cuDNN version incompatibility: PyTorch was compiled  against (9, 1, 0) but found runtime version (8, 9, 7). PyTorch "
            "already comes bundled with cuDNN."
        ),
        "The detected CUDA version (11.5) mismatches the version that was used to compile",
        (
            "deepspeed.ops.op_builder.builder.CUDAMismatchException: >- DeepSpeed Op Builder: Installed CUDA version 11.5 does not match the "
            "version torch was compiled with 12.4, unable to compile cuda/cpp extensions without a matching cuda version."
        ),
        (
            "(raylet, ip=10.9.0.4) RuntimeError: Version mismatch: The cluster was started with:\n    Ray: 2.40.0\n    Python: 3.11.9\nThis "
            "process on node 10.9.0.4 was started with:\n    Ray: 2.40.0\n    Python: 3.10.14"
        ),
        "2026-11-03 10:00:01,324 WARNING utils.py:1597 -- Version mismatch: The cluster was started with:",
        "[rank1]: ValueError: unsupported pickle protocol: 5",
        "node7:5120:5120 [0] init.cc:1720 NCCL WARN ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER",
    ),
    near_misses=(
        "node7:4711 NCCL DIAG [OK]   CUDA driver version: 13000 consistent across 16 ranks in comm 0x5581",
        "NCCL version 2.21.5+cuda12.4",
        (
            "Installed CUDA version 12.2 does not match the version torch was compiled with 12.6 but since the APIs are compatible, accepting this "
            "combination"
        ),
        (
            "[WARNING] DeepSpeed Op Builder: Installed CUDA version 11.8 does not match the version torch was compiled with 12.1.Detected "
            "`DS_SKIP_CUDA_CHECK=1`: Allowing this combination of CUDA, but it may result in unexpected behavior."
        ),
        (
            "node7:5120:5333 [0] transport/net_socket.cc:424 NCCL WARN NET/Socket : peer 10.9.0.4<41522> message truncated : receiving 2097152 "
            "bytes instead of 131072"
        ),
        "node7:5120:5120 [0] NCCL INFO NET/Plugin: Failed to find ncclNetPlugin_v8 symbol.",
        "UserWarning: There was a version mismatch between CUDA driver and the toolkit, performance may be reduced",
        "Failed to initialize NVML: Driver/library version mismatch",
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:93, invalid usage, NCCL version 2.27.7",
    ),
    explain={
        "en": (
            "A distributed job is one program in many processes, and its parts exchange structures whose layout belongs to one release. Where "
            "hosts run different NCCL releases, the handshake itself breaks: addresses without a family, messages of the wrong length, or a "
            "silent hang before the first collective; newer releases name the two ranks. The same holds for torch and the packages built for it, "
            "for Ray and Python across nodes, and for the CUDA toolkit with which extensions are compiled. To be sure, let every rank print the "
            "versions of Python, torch, CUDA and NCCL and look for the odd one out. Do not be fooled by `pip list`: what counts is the library "
            "file that the process has mapped."
        ),
        "zh": (
            "分布式作业是由许多进程组成的同一个程序，各部分互相交换的数据结构只在同一版本内一致。主机之间 NCCL 版本不同时，握手阶段就会出错：收到"
            "没有地址族的地址、长度不对的消息，或者在第一次集合通信之前无声地挂住；较新的版本会直接指出是哪两个进程。torch 与为它编译的包、各节点"
            "的 Ray 与 Python、编译扩展所用的 CUDA 工具包，道理相同。确认方法：让每个进程打印 Python、torch、CUDA、NCCL 的版本，找出与众不同的那"
            "一个。不要只看 `pip list`：真正起作用的是进程映射的那个库文件。"
        ),
    },
)
