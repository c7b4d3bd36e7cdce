"""`unhang why --ras`: a job that still runs is asked over a real socket; answers that were kept are read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from tests.diagnosis.test_ras import all_but, later
from tests.ras.nccl_ras import V26, V28, in_json, in_text, job, listening, nccl
from tests.tables import for_each

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
    for name, of_job, minute in (("a.json", job(), 40), ("b.json", later(job()), 41)):
        (tmp_path / name).write_text(json.dumps(in_json(V28, of_job) | {"timestamp": f"2026-11-22 03:{minute}:00"}))
    ended = why("--ras", str(tmp_path / "a.json"), "--ras", str(tmp_path / "b.json"))
    assert ended.returncode == 0, ended.stdout


def test_a_text_answer_that_was_kept(tmp_path):
    (tmp_path / "ras.txt").write_text("".join(in_text(V26, all_but(5), True)))
    ended = why("--ras", str(tmp_path / "ras.txt"), "--json")
    assert ended.returncode == 1 and "rank 5" in json.loads(ended.stdout)["primary"]["says"]


@for_each(
    ("args", "says"),
    [
        ((), "give either PATH... or --ras"),
        (("log", "--ras", "localhost"), "give either PATH... or --ras"),
        (("--ras", "127.0.0.1:1"), "cannot connect to 127.0.0.1:1"),
        (("--ras", "host:99999"), "no address of NCCL's RAS"),
        (("--ras", "/no/such/file"), "there is no such file"),
        (("--ras", "nofile.invalid"), "there is neither such a file nor such a host"),
        (("--ras", "nofile.invalid:1"), "cannot find the host 'nofile.invalid'"),
        (("--ras", "."), "that is a directory, no file that holds an answer"),
        (("--ras", "/tmp"), "that is a directory, no file that holds an answer"),
        (("--ras", "/dev/zero"), "that is a device, no file that holds an answer"),
        (("--ras", "a..b"), "no address of NCCL's RAS"),
        (("--ras", "x" * 64), "no address of NCCL's RAS"),
        (("--ras", __file__, "--ras", "/no/such"), "/no/such: there is no such file"),
        (("--ras", __file__, "--ras", "nofile"), "nofile: there is no such file"),
        (("--ras", __file__, "--ras", "/dev/zero"), "/dev/zero: that is a device"),
        (("log", "--apart", "60"), "--apart is for --ras"),
        (("--ras", __file__, "--apart", "60"), "--apart is for a job that is asked"),
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


def test_a_pipe_is_said_to_be_one_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, where in ((str(tmp_path / "pipe"), None), ("pipe", tmp_path)):
        ended = why("--ras", path, cwd=where)
        assert ended.returncode == 2 and "that is a named pipe, no file that holds an answer" in ended.stderr


def test_a_host_may_be_called_like_a_directory(tmp_path):
    (tmp_path / "localhost").mkdir()
    with listening(nccl(V28, job())) as server:
        ended = why("--ras", f"localhost:{server.port}", "--apart", "0", cwd=tmp_path)
    assert "asked once" in ended.stdout
    ended = why("--ras", "localhost", cwd=tmp_path, env=os.environ | {"NCCL_RAS_ADDR": ""})
    assert "directory" not in ended.stderr


def answers(tmp_path, first, second):
    """Two answers of a job that hangs, given at these times."""
    for name, timestamp in (("a.json", first), ("b.json", second)):
        (tmp_path / name).write_text(json.dumps(in_json(V28, all_but(5)) | {"timestamp": timestamp}))
    return why("--ras", str(tmp_path / "a.json"), "--ras", str(tmp_path / "b.json"))


@pytest.mark.parametrize("first", ["2026-11-22 03:40:00", "2026-11-22T03:40:00+00:00", "", "yesterday", "0001-01-01T00:00:00+23:00"])
def test_times_that_cannot_be_compared_are_not_known(tmp_path, first):
    ended = answers(tmp_path, first, "2026-11-22T03:50:00+00:00" if first == "2026-11-22 03:40:00" else "2026-11-22 03:50:00")
    assert ended.returncode == 1, ended.stderr
    assert "nobody launched anything: the" in " ".join(ended.stdout.split())


def test_the_time_between_two_files_is_told(tmp_path):
    assert "nobody launched anything for 90 s" in " ".join(answers(tmp_path, "2026-11-22 03:40:00", "2026-11-22 03:41:30").stdout.split())


def test_files_in_the_wrong_order_are_refused(tmp_path):
    ended = answers(tmp_path, "2026-11-22 03:40:00", "2026-11-22 02:40:10")
    assert ended.returncode == 2 and "is older than that of" in ended.stderr
    assert f"unhang why --ras {tmp_path / 'b.json'} --ras {tmp_path / 'a.json'}" in ended.stderr


def test_one_answer_twice_is_refused(tmp_path):
    ended = answers(tmp_path, "2026-11-22 03:40:00", "2026-11-22 03:40:00")
    assert ended.returncode == 2 and "both answers are of 2026-11-22 03:40:00" in ended.stderr
    (tmp_path / "link").symlink_to(tmp_path / "a.json")
    ended = why("--ras", str(tmp_path / "a.json"), "--ras", str(tmp_path / "link"))
    assert ended.returncode == 2 and "the same answer twice shows nothing" in ended.stderr


def test_answers_without_a_communicator_in_common_are_not_called_healthy(tmp_path):
    for name, hash in (("a.json", 1), ("b.json", 2)):
        of_job = replace(job(), comms=tuple(replace(c, hash=c.hash + hash) for c in later(job(), by=hash).comms))
        (tmp_path / name).write_text(json.dumps(in_json(V28, of_job) | {"timestamp": f"2026-11-22 03:4{hash}:00"}))
    ended = why("--ras", str(tmp_path / "a.json"), "--ras", str(tmp_path / "b.json"), "--json")
    assert ended.returncode == 2 and "made anew" in ended.stdout


@pytest.mark.parametrize("empty", ["", " "])
def test_an_empty_address_is_not_this_machine(tmp_path, empty):
    ended = why("--ras", empty, cwd=tmp_path)
    assert ended.returncode == 2 and "--ras is empty" in ended.stderr
