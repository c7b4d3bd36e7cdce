"""driver-too-old in plain logs: the number that torch prints is told as a CUDA version."""

from __future__ import annotations

import pytest

from unhang.knowledge import catalogue
from unhang.knowledge.cause import LogView
from unhang.logs import match

CAUSE = catalogue.load()["driver-too-old"]


@pytest.mark.parametrize(("code", "cuda"), [("11040", "11.4"), ("12020", "12.2"), ("9000", "9.0"), ("10010", "10.1")])
def test_the_code_is_decoded(code, cuda):
    text = f"RuntimeError: The NVIDIA driver on your system is too old (found version {code}). Please update your GPU driver"
    assert CAUSE.in_logs is not None
    found = CAUSE.in_logs(LogView(hits={CAUSE.id: tuple(match(text, CAUSE.signatures, source="a.log", line=1, rank=3))}))
    assert found is not None and found.standing == "established"
    assert f"CUDA up to {cuda}," in found.says and found.ranks == (3,)
    assert [r.id for r in found.remedies] == ["upgrade-the-driver", "older-cuda-build"]


def test_without_a_number_the_line_speaks():
    text = "CUDA error: CUDA driver version is insufficient for CUDA runtime version"
    assert CAUSE.in_logs is not None
    found = CAUSE.in_logs(LogView(hits={CAUSE.id: tuple(match(text, CAUSE.signatures, source="a.log", line=1))}))
    assert found is not None and "older than the CUDA runtime" in found.says


def test_without_any_driver_it_is_not_too_old():
    text = "CUDA error: CUDA driver version is insufficient for CUDA runtime version"
    around = f"{text}\nOSError: libcuda.so.1: cannot open shared object file: No such file or directory"
    assert not match(text, CAUSE.signatures, source="a.log", line=1, around=around)
