"""backend-unavailable in plain logs: one cause for a torch without NCCL and for a machine without GPUs, and none of what hides GPUs."""

from __future__ import annotations

import pytest

from unhang.diagnosis.logs import judge_logs

FRAMES = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/app/train.py", line 2, in <module>
[rank0]:     dist.init_process_group("nccl")
[rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2043, in _new_process_group_helper
[rank0]:     backend_class = ProcessGroupNCCL(
"""
NOT_BUILT = "RuntimeError: Distributed package doesn't have NCCL built in"
NO_GPU = "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!"


@pytest.fixture
def primary(tmp_path):
    def primary(text):
        log = tmp_path / "train.log"
        log.write_text(text)
        found = judge_logs([str(log)]).verdict.primary
        assert found is not None
        return found

    return primary


@pytest.mark.parametrize(("said", "second"), [(NOT_BUILT, "cuda-build"), (NO_GPU, "see-the-gpus")])
def test_it_is_named_with_what_works_unmodified(primary, said, second):
    found = primary(f"{FRAMES}[rank0]: {said}\n")
    assert (found.cause, found.standing, found.ranks) == ("backend-unavailable", "established", (0,))
    assert "asks for the backend NCCL" in found.says
    assert found.where == "/app/train.py:2 in <module>"
    assert [r.id for r in found.remedies[:2]] == ["gloo-instead", second]
    assert found.remedies[0].command == "unhang run --set backend=gloo -- COMMAND"


def test_what_hides_the_gpus_comes_first(primary):
    driver = "UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver"
    assert primary(f"{driver}\n{FRAMES}[rank0]: {NO_GPU}\n").cause == "driver-too-old"
    behind = "closing\n" * 40
    assert primary(f"{FRAMES}[rank0]: {NO_GPU}\n{behind}{driver}\n").cause == "driver-too-old"
