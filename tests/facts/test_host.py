import ctypes

import pynvml
import pytest

from unhang.facts.host import Host


def test_run():
    ran = Host().run(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout_s=10)
    assert (ran.exitcode, ran.out, ran.err) == (3, "out\n", "err\n")


def test_missing_command_and_slow_command():
    with pytest.raises(FileNotFoundError):
        Host().run(["no-such-command-here"], timeout_s=1)
    with pytest.raises(TimeoutError):
        Host().run(["sleep", "60"], timeout_s=0.1)


def test_a_machine_that_is_a_directory_runs_nothing(tmp_path):
    with pytest.raises(FileNotFoundError):
        Host(tmp_path).run(["true"], timeout_s=1)


def test_nvml_says_why_it_is_not_there(monkeypatch, tmp_path):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    def refuses():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)

    with pytest.raises(FileNotFoundError, match="only a directory"):
        Host(tmp_path).nvml()
    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(FileNotFoundError, match=r"libnvidia-ml\.so\.1: cannot open"):
        Host().nvml()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: None)
    monkeypatch.setattr(pynvml, "nvmlInit", refuses)
    with pytest.raises(OSError, match="version mismatch"):
        Host().nvml()
