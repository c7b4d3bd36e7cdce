"""topology-file: what NCCL was told to read is named, wherever the setting came from."""

from __future__ import annotations

from unhang.knowledge import catalogue
from unhang.knowledge.cause import LogView
from unhang.logs import match
from unhang.logs.log_facts import At, NcclSaid

CAUSE = catalogue.load()["topology-file"]

ATTRIBUTE = "node7:4711:4788 [0] graph/xml.h:77 NCCL WARN Attribute arch of node cpu not found"


def found(*lines: str, settings: tuple[str, ...] = ()):
    hits = tuple(h for n, line in enumerate(lines, 1) for h in match(line, CAUSE.signatures, source="job.log", line=n, rank=2))
    said = {s: (At(source="job.log", line=9, text=s),) for s in settings}
    assert CAUSE.in_logs is not None
    return CAUSE.in_logs(LogView(hits={CAUSE.id: hits}, nccl=NcclSaid(settings=said)))


def test_a_missing_attribute_is_only_likely_without_a_file():
    assert found(ATTRIBUTE).standing == "likely"


def test_a_path_that_the_line_names_is_not_said_twice():
    line = "node7:4711:4788 [0] graph/xml.cc:325 NCCL WARN Could not open XML topology file /opt/topo/p5.xml : No such file or directory"
    assert found(line, settings=("NCCL_TOPO_FILE=/opt/topo/p5.xml",)).says.count("/opt/topo/p5.xml") == 1


def test_a_setting_alone_is_no_finding():
    assert found(settings=("NCCL_TOPO_FILE=/opt/topo/p5.xml",)) is None
