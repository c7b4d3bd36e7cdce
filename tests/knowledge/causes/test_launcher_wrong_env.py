"""launcher-wrong-env in plain logs: a missing module, and frames from two environments."""

from __future__ import annotations

from unhang.frames import Frame
from unhang.knowledge import catalogue
from unhang.knowledge.cause import LogView
from unhang.logs import Traceback, match
from unhang.logs.log_facts import At, Exit

CAUSE = catalogue.load()["launcher-wrong-env"]


def frames(*files: str) -> tuple[Frame, ...]:
    return tuple(Frame(file=f, line=8, name="<module>") for f in files)


def raised(text: str, *files: str, line: int = 1, rank: int | None = None) -> Traceback:
    kind = "ModuleNotFoundError" if text.startswith("No module") else "torch.distributed.elastic.multiprocessing.errors.ChildFailedError"
    return Traceback(source="a.log", line=line, end=line + 4, type=kind, text=text, frames=frames(*files), rank=rank)


def judge(view: LogView):
    assert CAUSE.in_logs is not None
    return CAUSE.in_logs(view)


MISSING = raised("No module named 'trainer'", "/srv/job/train.py", rank=0)


def test_a_launcher_of_the_user_site_is_named():
    launcher = raised("", "/home/ann/.local/bin/torchrun", "/home/ann/.local/lib/python3.12/site-packages/torch/distributed/run.py", line=20)
    text = "failed (exitcode: 1) local_rank: 0 (pid: 51) of binary: /opt/base/bin/python3.12"
    exits = (Exit(at=At(source="a.log", line=18, text=text), code=1, local_rank=0),)
    found = judge(LogView(tracebacks=(MISSING, launcher), exits=exits))
    assert found.standing == "likely" and found.ranks == (0,)
    assert "/home/ann/.local/bin/torchrun" in found.says and "/opt/base/bin/python3.12" in found.says
    assert found.evidence[0].line == 5


def test_packages_from_two_places_are_named():
    mixed = raised(
        "No module named 'tensorboard'",
        "/home/ann/.local/lib/python3.10/site-packages/wrapt/importer.py",
        "/opt/miniconda/lib/python3.10/site-packages/torch/utils/tensorboard/__init__.py",
    )
    found = judge(LogView(tracebacks=(mixed,)))
    assert found.standing == "likely" and "/home/ann/.local and /opt/miniconda" in found.says


def test_a_missing_module_in_one_environment_is_not_this():
    launcher = raised("", "/srv/env/bin/torchrun", "/srv/env/lib/python3.12/site-packages/torch/distributed/run.py", line=20)
    assert judge(LogView(tracebacks=(MISSING, launcher))) is None


def test_a_missing_launcher_speaks_for_itself():
    hits = tuple(match("/bin/sh: 1: torchrun: not found", CAUSE.signatures, source="a.log", line=1))
    found = judge(LogView(hits={CAUSE.id: hits}, tracebacks=(MISSING,)))
    assert found.standing == "established" and "torchrun is not on the PATH" in found.says
