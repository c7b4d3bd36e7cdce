"""topology-file: a topology or graph file that was given to NCCL does not fit the machine."""

from __future__ import annotations

from unhang.knowledge.cause import Cause, LogView, Signature
from unhang.knowledge.text import Text, joined, same
from unhang.model import Finding, Remedy

_FILES = ("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE")


def _in_logs(view: LogView) -> Finding | None:
    hits = view.hits_of(CAUSE.id)
    given = [s for s in view.nccl.settings if s.partition("=")[0] in _FILES]
    found = CAUSE.of_hits(hits, view, standing="established" if given else None)
    if found is None or not given or any(s.partition("=")[2] in found.says for s in given):
        return found
    # What NCCL read from /etc/nccl.conf or from a container image is not in anybody's command line: name it.
    told = Text("; it was told to read {files}", "；它被要求读取 {files}").fill(files=joined(map(same, sorted(given)), Text(" and ", " 和 ")))
    return CAUSE.of_hits(hits, view, standing="established", says=_bare(found) + told)


def _bare(found: Finding) -> Text:
    """The sentence without the ranks that `of_hits` puts in front of it."""
    said = Text(found.says, found.says_zh)
    return Text(said.en.partition(": ")[2], said.zh.partition("：")[2]) if found.ranks else said


CAUSE = Cause(
    id="topology-file",
    role="root",
    title="A topology file does not fit the machine",
    title_zh="指定的拓扑文件与机器不符",
    what=(
        "NCCL reads a description of the machine (NCCL_TOPO_FILE) or of its rings (NCCL_GRAPH_FILE) that is missing, malformed, or of another "
        "machine."
    ),
    why=(
        "A file of a cloud image or of another instance type, a graph dumped with another number of GPUs, a setting left over in /etc/nccl.conf "
        "or in the container."
    ),
    signatures=(
        Signature(
            needle="Could not open XML ",
            pattern=r"Could not open XML (?P<kind>topology|graph) file (?P<path>\S+) : (?P<error>[\w ]+)",
            says="the {kind} file {path} cannot be opened: {error}",
            says_zh="无法打开 {kind} 文件 {path}：{error}",
            remedies=("without-the-file", "who-sets-it"),
        ),
        Signature(
            needle="XML Topology has wrong version",
            pattern=r"wrong version (?P<version>-?\d+), (?P<needed>\d+) needed",
            says="the topology file has version {version}, and this NCCL needs {needed}",
            says_zh="拓扑文件的版本是 {version}，而这个 NCCL 需要 {needed}",
            remedies=("without-the-file", "dump-again"),
        ),
        Signature(
            needle="XML Graph has wrong version",
            pattern=r"wrong version (?P<version>-?\d+), (?P<needed>\d+) needed",
            says="the graph file has version {version}, and this NCCL needs {needed}",
            says_zh="graph 文件的版本是 {version}，而这个 NCCL 需要 {needed}",
            remedies=("without-the-file", "dump-again"),
        ),
        Signature(
            needle="XML Import Channel : ",
            pattern=r"XML Import Channel : dev (?P<device>-?\d+) not found",
            says="the graph file names GPU {device}, which this job does not have: it was made for another number of GPUs",
            says_zh="graph 文件列出了 GPU {device}，而这个任务没有它：该文件是按另一个 GPU 数量生成的",
            remedies=("without-the-graph", "who-sets-it"),
        ),
        Signature(
            needle="XML Mismatch : ",
            pattern=r"XML Mismatch : (?P<opened>[^\s/]{1,60}) / (?P<closed>\S{1,60})",
            says="the topology file is malformed: {opened} is closed by {closed}",
            says_zh="拓扑文件格式错误：{opened} 由 {closed} 关闭",
            remedies=("without-the-file", "dump-again"),
        ),
        Signature(
            needle="XML Parse ",
            pattern=r"XML Parse(?: error)? : (?!Ignoring)(?P<error>[^\n]{3,120})",
            says="the topology file is malformed: {error}",
            says_zh="拓扑文件格式错误：{error}",
            remedies=("without-the-file", "dump-again"),
        ),
        Signature(
            needle="Error : XML parser is limited to ",
            pattern=r"limited to (?P<limit>\d+) (?P<what>nodes|subnodes)",
            says="the topology has more than {limit} {what}: a file of another machine, or more devices than this NCCL can hold",
            says_zh="拓扑中的 {what} 超过 {limit} 个：文件属于另一台机器，或设备多于这个 NCCL 所能容纳的数量",
            remedies=("without-the-file", "dump-again"),
        ),
        Signature(
            needle="Error : too many XML ",
            pattern=r"too many XML (?P<what>nodes|subnodes|attributes) \(max (?P<limit>\d+)\)",
            says="the topology has more than {limit} {what}: a file of another machine, or more devices than this NCCL can hold",
            says_zh="拓扑中的 {what} 超过 {limit} 个：文件属于另一台机器，或设备多于这个 NCCL 所能容纳的数量",
            remedies=("without-the-file", "dump-again"),
        ),
        Signature(
            needle="missing or faulty information in the provided topology file",
            says="NCCL misses information in the topology file that it was given",
            says_zh="给 NCCL 的拓扑文件缺少它要的信息",
            remedies=("without-the-file", "who-sets-it", "dump-again"),
        ),
        Signature(
            needle="system node not found in XML",
            says="the topology file describes no system",
            says_zh="拓扑文件没有描述任何 system",
            remedies=("without-the-file", "dump-again"),
        ),
        Signature(
            needle="Attribute ",
            pattern=r"NCCL WARN Attribute (?P<attribute>\w+) of node (?P<node>\w+) not found|^Attribute (?P<lone>\w+) of node (?P<at>\w+) not found$",
            standing="likely",
            says="NCCL misses an attribute in the description of the machine: a topology file that is incomplete, or a container that hides /sys",
            says_zh="NCCL 在机器的描述中缺少某个属性：拓扑文件不完整，或容器隐藏了 /sys",
            remedies=("without-the-file", "who-sets-it", "whole-sysfs"),
        ),
        Signature(
            needle="could not obtain complete PCI topology information",
            standing="possible",
            says="NCCL could not read the whole PCI topology, as happens in containers or with an incomplete file",
            says_zh="NCCL 无法读到完整的 PCI 拓扑，在容器中或文件不完整时会这样",
            remedies=("whole-sysfs", "without-the-file"),
        ),
    ),
    in_logs=_in_logs,
    remedies=(
        Remedy(
            id="without-the-file",
            says=(
                "Start without the file: on bare metal NCCL finds the topology by itself. Also remove it from /etc/nccl.conf, ~/.nccl.conf and "
                "the image."
            ),
            says_zh="先不使用该文件启动：在物理机上 NCCL 能自行探测拓扑。同时从 /etc/nccl.conf、~/.nccl.conf 和镜像中删除该设置。",
            command="env -u NCCL_TOPO_FILE -u NCCL_GRAPH_FILE NCCL_DEBUG=INFO torchrun --standalone --nproc-per-node gpu train.py",
            verify="NCCL_DEBUG=INFO torchrun --standalone --nproc-per-node gpu train.py 2>&1 | grep -cE 'NCCL_(TOPO|GRAPH)_FILE set by environment'",
        ),
        Remedy(
            id="without-the-graph",
            says=(
                "Remove NCCL_GRAPH_FILE everywhere: a graph only fits the number of GPUs that it was dumped with. NCCL_TOPO_FILE of a virtual "
                "machine may stay."
            ),
            says_zh="在所有地方删除 NCCL_GRAPH_FILE：graph 文件只适用于导出它时的 GPU 数量。虚拟机的 NCCL_TOPO_FILE 可以保留。",
            command="grep -n NCCL_GRAPH_FILE /etc/nccl.conf ~/.nccl.conf; env | grep NCCL_GRAPH_FILE",
        ),
        Remedy(
            id="who-sets-it",
            says=(
                "Find out who sets it: the environment, NCCL's configuration files, the image, or a network plugin that sets it by itself (EFA's "
                "does)."
            ),
            says_zh="查清是谁设置的：环境变量、NCCL 配置文件、镜像，或会自动设置它的网络插件（EFA 插件就会）。",
            command=(
                "env | grep -E 'NCCL_(TOPO|GRAPH)_FILE'; cat /etc/nccl.conf ~/.nccl.conf 2>/dev/null; ls /opt/microsoft/*topo.xml "
                "/usr/share/nccl/*.xml 2>/dev/null"
            ),
        ),
        Remedy(
            id="dump-again",
            says=(
                "Let NCCL write the topology that it sees, and compare it with the file; in virtual machines take the file that the provider "
                "gives for this instance type."
            ),
            says_zh="让 NCCL 导出它看到的拓扑，与该文件对比；虚拟机请使用云厂商为该机型提供的文件。",
            command="env -u NCCL_TOPO_FILE NCCL_TOPO_DUMP_FILE=/tmp/topo.xml all_reduce_perf -b 8 -e 8 -g 8; xmllint --noout /tmp/topo.xml",
        ),
        Remedy(
            id="whole-sysfs",
            says="Let the container see the host's /sys and its network devices, or give it a topology file of this host.",
            says_zh="让容器能看到主机的 /sys 和网络设备，或提供这台主机的拓扑文件。",
            command="ls -l /sys/class/infiniband /sys/class/net; ls /sys/bus/pci/devices | head",
        ),
    ),
    leads_to=("rank-exception",),
    mistaken_for={
        "container-capability": "a container that hides /sys gives the same missing attributes without any file having been set",
        "nccl-bug": "more devices than the parser's limits on an old NCCL want a newer one, not another file",
    },
    sources=(
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-topo-file",
        "https://github.com/NVIDIA/nccl/issues/1008",
        "https://github.com/NVIDIA/nccl/issues/1726",
        "https://github.com/NVIDIA/nccl/blob/master/src/graph/xml.cc",
    ),
    hits=(
        "node7:4711:4788 [0] graph/xml.cc:325 NCCL WARN Could not open XML topology file /opt/topo/ndv5.xml : No such file or directory",
        "[2026-11-03 10:00:01] node7:4711:4788 [0] graph/xml.cc:411 NCCL WARN Could not open XML graph file /srv/graph.xml : Permission denied",
        "node7:4711:4788 [0] graph/xml.cc:266 NCCL WARN XML Topology has wrong version 0, 1 needed",
        "node7:4711:4788 [0] graph/xml.cc:266 NCCL WARN XML Graph has wrong version 3, 1 needed",
        "[rank1]: XML Import Channel : dev 3 not found.",
        "node7:4711:4788 [0] graph/xml.cc:211 NCCL WARN XML Mismatch : pci / cpu",
        "node7:4711:4788 [0] graph/xml.cc:35 NCCL WARN XML Parse : Unexpected EOF",
        "node7:4711:4788 [0] graph/xml.cc:122 NCCL WARN XML Parse error : expecting '<', got 'n'",
        "node7:4711:4788 [0] graph/xml.cc:188 NCCL WARN Error : XML parser is limited to 1024 nodes",
        "node7:4711:4788 [0] graph/xml.h:241 NCCL WARN Error : too many XML nodes (max 256)",
        "HINT: In many cases this error indicates missing or faulty information in the provided topology file.",
        "node7:4711:4788 [0] graph/topo.cc:702 NCCL WARN ncclTopoGetSystemFromXml: system node not found in XML",
        "node7:4711:4788 [0] graph/xml.h:77 NCCL WARN Attribute arch of node cpu not found",
        "Attribute busid of node nic not found",
        (
            "HINT: In many cases this error indicates that NCCL could not obtain complete PCI topology information, which inside a container is "
            "often caused"
        ),
    ),
    near_misses=(
        "node7:4711:4788 [0] NCCL INFO NCCL_TOPO_FILE set by environment to /opt/topo/ndv5.xml",
        "node7:4711:4788 [0] NCCL INFO Loading topology file /var/run/nvidia-topologyd/virtualTopology.xml",
        "node7:4711:4788 [0] NCCL INFO Topology detection : could not read /sys/devices/pci0000:00/class, ignoring",
        "node7:4711:4788 [0] NCCL INFO XML Parse : Ignoring extra attributes (max 16)",
        "node7:4711:4788 [0] NCCL INFO KV Convert to int : could not find value of '' in dictionary, falling back to 60",
        "xml.etree.ElementTree.ParseError: mismatched tag: line 7, column 2",
        "AttributeError: Attribute names of node module not found",
        "node7:4711:4788 [0] NCCL INFO Unable to open /tmp/topo.xml, not dumping topology.",
    ),
    explain={
        "en": (
            "NCCL was told to believe a file about the machine instead of looking for itself, and the file is missing, broken, or describes "
            "another machine. torch reports only an internal error. Files of cloud images fit one instance type, a graph file fits only the "
            "number of GPUs that it was dumped with, and the setting often hides in /etc/nccl.conf or in a container image. Start once without "
            "the file: on bare metal nothing is lost; in a virtual machine use the provider's file for this very instance type."
        ),
        "zh": (
            "NCCL 被要求相信一个描述机器的文件，而不是自行探测，而这个文件缺失、损坏，或描述的是另一种机器。torch 只会报告 internal error。云镜像"
            "里的拓扑文件只适用于一种机型，graph 文件只适用于导出时的 GPU 数量，而且该设置常常藏在 /etc/nccl.conf 或容器镜像里。先去掉该文件运行一"
            "次：物理机上没有任何损失；虚拟机请使用云厂商为该机型提供的文件。"
        ),
    },
)
