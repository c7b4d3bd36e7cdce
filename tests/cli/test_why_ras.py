"""`unhang why --ras`: a job that still runs is asked over a real socket; answers that were kept are read."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
from tests.diagnosis.test_ras import all_but, later
from tests.records.nccl_ras import V26, V28, in_json, in_text, job, listening, nccl

WHY = [sys.executable, "-m", "unhang", "why"]


def why(*args, **how):
    return subprocess.run([*WHY, *args], capture_output=True, text=True, timeout=60, check=False, **how)


def test_a_job_that_hangs():
    with listening(nccl(V28, all_but(5))) as server:
        ended = why("--ras", f"127.0.0.1:{server.port}", "--apart", "0.1", "--json")
    verdict = json.loads(ended.stdout)
    assert ended.returncode == 1 and ended.stderr == ""
    assert verdict["primary"]["ranks"] == [5] and [i["kind"] for i in verdict["inputs"]] == ["ras", "ras"]
    assert server.commands.count("VERBOSE STATUS") == 2


def test_the_user_is_told_that_it_is_asked_again():
    with listening(nccl(V28, all_but(5))) as server:
        ended = why("--ras", f"127.0.0.1:{server.port}", "--apart", "0.1")
    assert ended.returncode == 1 and "asking again in 0.1 s" in ended.stderr
    assert "rank 5" in ended.stdout


def test_asked_once_a_healthy_job_is_not_called_healthy():
    with listening(nccl(V28, job())) as server:
        ended = why("--ras", f"127.0.0.1:{server.port}", "--apart", "0")
    assert ended.returncode == 2 and "asked once" in ended.stdout
    assert server.commands.count("VERBOSE STATUS") == 1


def test_a_job_that_goes_on(tmp_path):
    for name, of_job in (("a.json", job()), ("b.json", later(job()))):
        (tmp_path / name).write_text(json.dumps(in_json(V28, of_job)))
    ended = why("--ras", str(tmp_path / "a.json"), "--ras", str(tmp_path / "b.json"))
    assert ended.returncode == 0, ended.stdout


def test_a_text_answer_that_was_kept(tmp_path):
    (tmp_path / "ras.txt").write_text("".join(in_text(V26, all_but(5), True)))
    ended = why("--ras", str(tmp_path / "ras.txt"), "--json")
    assert ended.returncode == 1 and "rank 5" in json.loads(ended.stdout)["primary"]["says"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "give either PATH... or --ras"),
        (("log", "--ras", "localhost"), "give either PATH... or --ras"),
        (("--ras", "127.0.0.1:1"), "cannot connect to 127.0.0.1:1"),
        (("--ras", "host:99999"), "no address of NCCL's RAS"),
        (("--ras", "/no/such/file"), "there is no such file"),
        (("--ras", "localhost", "--ras", "localhost"), "give one HOST:PORT"),
        (("--ras", "localhost", "--apart", "-1"), "--apart"),
        (("--ras", "localhost", "--apart", "nan"), "--apart"),
        (("--ras", "localhost", "--attempt", "2"), "--attempt"),
    ],
)
def test_bad_input_is_told_in_words(args, says):
    ended = why(*args)
    assert ended.returncode == 2 and says in ended.stderr and "Traceback" not in ended.stderr


def test_an_interrupt_while_waiting():
    with listening(nccl(V28, job())) as server:
        process = subprocess.Popen([*WHY, "--ras", f"127.0.0.1:{server.port}", "--apart", "600"], stderr=subprocess.PIPE, text=True)
        try:
            assert "asking again in 600 s" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
        finally:
            process.kill()
            process.stderr.close()
