"""All numbers of a comparison side by side, and what they are put down to."""

import json
import math
from dataclasses import replace

import pytest
from tests.bench.test_nccl_log import LOG
from tests.bench.trainings import Trainings
from tests.report.test_bench import printed, report

from unhang import encoding


@pytest.fixture
def trainings(tmp_path, monkeypatch):
    found = Trainings(tmp_path, monkeypatch)
    found.step_s["b"], found.noise = 0.11, 1e-6
    found.nccl = {"a": LOG.format(off=0, via="SHM/direct/direct"), "b": LOG.format(off=1, via="NET/Socket/0")}
    found.parts_s = {"a": (0.01, 0.02, math.nan), "b": (0.01, 0.03, math.nan)}
    return found


def cells(made):
    return {title: list(row) for title, *row in made.metric_rows()}


def test_a_table_of_all_numbers(trainings):
    trainings.arms = [replace(arm, samples=32) for arm in trainings.arms]
    found = cells(report(trainings))
    assert found["throughput, all ranks"] == ["640 samples/s", "581.82 samples/s (-9.1 %)"]
    assert found["throughput, each rank"] == ["320 samples/s", "290.91 samples/s (-9.1 %)"]
    assert found["mean"] == ["100 ms", "110 ms (+10.0 %)"] and found["communication not hidden"] == ["20 ms", "30 ms (+50.0 %)"]
    assert found["most host memory of a rank"] == ["2 GiB", "2 GiB (+0.0 %)"] and "energy of the GPUs" not in found


def test_what_was_not_measured_is_called_so(trainings):
    trainings.device = "cuda:0 (NVIDIA H100)"
    made = report(trainings)
    for name in ("energy of the GPUs", "most GPU memory of a rank", "communication not hidden", "the rest (computation)"):
        assert cells(made)[name] == ["not measured"] * 2
    assert not [said for said in made.explanation() if "off a step" in said or "differs from" in said]


def test_all_forms_say_the_same(trainings):
    made = report(trainings)
    told = json.loads(encoding.encode(made.json()))
    assert [arm["exposed_s"] for arm in told["arms"]] == pytest.approx([0.02, 0.03]) and told["arms"][0]["energy_j"] is None
    assert told["in_force"]["b"]["NCCL transports"] == "NET/Socket"
    assert "NCCL transports: NET/Socket, SHM/direct/direct in a, NET/Socket in b" in told["explains"]
    assert told["explains"][-1].startswith("the mean step of b differs from that of a by +10.00 ms: data loader +0.00 ms, ")
    said, markdown = " ".join(printed(made).split()), made.markdown()
    assert "| communication not hidden | 20 ms | 30 ms (+50.0 %) |" in markdown and "communication not hidden 20 ms 30 ms (+50.0 %)" in said
    assert all(text in markdown and text in said for text in told["explains"]) and "nobody asked for" not in said
    assert "未被掩盖的通信" in report(trainings, lang="zh").markdown()
