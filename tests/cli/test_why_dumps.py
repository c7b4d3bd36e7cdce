"""unhang why on flight-recorder dumps: the cases in which torch's own analyser names the wrong ranks, and dumps beside logs."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from datetime import datetime, timezone
from pathlib import Path

import pytest
import typer
import zstandard
from tests.chinese import of_document
from tests.flight import jobs
from typer.testing import CliRunner

from unhang.cli import why
from unhang.diagnosis.recorders import with_logs
from unhang.errors import UnhangError
from unhang.flight import digest
from unhang.model import Finding, Verdict
from unhang.records import packed as unpacking

DEFAULT = ("0", "default_pg")


def groups(world):
    return {"0": ("default_pg", list(range(world)))}


def history(n):
    return [jobs.entry(i, DEFAULT, i + 1, "all_reduce", 4, 20, "completed", t=i * 1000) for i in range(n)]


def fourth(state="started", *, op="all_reduce", elements=4, line=20, dtype="Float"):
    return jobs.entry(3, DEFAULT, 4, op, elements, line, state, t=9000, dtype=dtype)


def write(folder, dumps, prefix="nccl_trace_rank_"):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for rank, raw in dumps.items():
        (folder / f"{prefix}{rank}").write_bytes(pickle.dumps(raw, protocol=2))
    return folder


def in_chinese(says, says_zh):
    """Told in Chinese with the same numbers and the same lines."""
    assert re.search("[一-鿿]", says_zh) and "{" not in says_zh, says
    for what in (r"\d+", r"\w+\.py:\d+ in \w+", r"[a-z]+_[a-z]+"):
        assert set(re.findall(what, says)) == set(re.findall(what, says_zh)), says_zh


@pytest.fixture
def ask():
    app = typer.Typer()
    app.callback()(lambda: None)
    why.register(app)

    def ask(*paths, code=1, given=None):
        done = CliRunner().invoke(app, ["why", *map(str, paths), "--json"], input=given)
        assert done.exit_code == code, done.output
        verdict = json.loads(done.stdout)
        if {i["kind"] for i in verdict["inputs"]} == {"flight"}:
            if verdict["primary"] is not None:
                in_chinese(verdict["primary"]["says"], of_document(verdict, verdict["primary"]["says"]))
            for left in verdict["not_examined"]:
                for part in ("what", "why"):
                    if left[part] in verdict["messages"]:
                        in_chinese(left[part], of_document(verdict, left[part]))
        return verdict

    ask.app = app
    return ask


@pytest.fixture
def analyser():
    """torch's own, where it is installed."""
    program = Path(sys.executable).with_name("torchfrtrace")
    if not program.is_file():
        pytest.skip("torch is not installed")

    def analyser(folder, *options):
        done = subprocess.run([program, str(folder), *options], capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, done.stdout + done.stderr

    return analyser


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ({"op": "broadcast", "line": 44}, "broadcast of [4] Float at /home/user/train.py:44"),
        ({"elements": 8}, "all_reduce of [8] Float"),
        ({"dtype": "Half"}, "all_reduce of [4] Half"),
    ],
)
def test_the_odd_rank_is_named_wherever_it_stands_in_the_directory(tmp_path, ask, odd, words):
    for rank in (0, 5, 7):
        dumps = {r: jobs.dump([*history(3), fourth(**(odd if r == rank else {}))], groups(8)) for r in range(8)}
        p = ask(write(tmp_path / "d", dumps))["primary"]
        assert (p["cause"], p["standing"], p["ranks"]) == ("collective-mismatch", "established", [rank])
        assert f"rank {rank} issued {words}" in p["says"] and "(7 of 8 ranks agree)" in p["says"]


def unequal():
    """Ranks whose rings hold other numbers, because one of them has a group of its own."""
    solo = [jobs.entry(i, ("1", "solo"), i + 1, "all_reduce", 2, 9, "completed", t=i * 500) for i in range(24)]
    last = jobs.entry(0, DEFAULT, 13, "all_reduce", 4, 20, "started", t=99_000)
    alone = [*history(12), last]
    mixed = sorted([*history(12), *solo, last], key=lambda e: e["time_created_ns"])
    rings = {0: [e | {"record_id": n} for n, e in enumerate(mixed)], 1: [e | {"record_id": n} for n, e in enumerate(alone)]}
    return {r: jobs.dump(ring[-10:], groups(2) | ({"1": ("solo", [0])} if r == 0 else {})) for r, ring in rings.items()}


def test_completed_calls_are_not_missing_because_rings_differ(tmp_path, ask):
    p = ask(write(tmp_path / "d", unequal()))["primary"]
    assert (p["cause"], p["ranks"]) == ("unknown", [0, 1])
    assert "wait in all_reduce #13" in p["says"] and "nobody is missing" in p["says"]


def test_who_has_finished_is_not_the_culprit(tmp_path, ask):
    dumps = {r: jobs.dump([*history(3), fourth("completed" if r == 2 else "scheduled")], groups(4)) for r in range(4)}
    p = ask(write(tmp_path / "d", dumps))["primary"]
    assert (p["cause"], p["standing"], p["ranks"]) == ("unknown", "not-established", [0, 1, 3])
    assert "it is over on rank 2 only: ranks 0, 1 and 3 wait for data" in p["says"] and "network-blocked" in p["says"]
    assert "a moment before" not in p["says"]


def of_gloo(*numbers, op="all_reduce", over=True):
    calls = [jobs.entry(i, DEFAULT, n, "all_reduce", 4, 20, "completed", t=i * 1000, backend="gloo") for i, n in enumerate(numbers[:-1])]
    state = "completed" if over else "scheduled"
    return jobs.dump([*calls, jobs.entry(9, DEFAULT, numbers[-1], op, 4, 30, state, t=9_000, backend="gloo")], {})


def test_who_is_missing_on_gloo_may_be_in_a_message(tmp_path, ask):
    v = ask(write(tmp_path / "d", {r: of_gloo(*range(1, 4 if r == 2 else 5), over=r == 2) for r in range(3)}))
    assert (v["primary"]["ranks"], v["primary"]["cause"]) == ([2], "collective-timeout")
    assert "or it is in a send or receive, which Gloo does not record" in v["primary"]["says"]
    assert [n["what"] for n in v["not_examined"]] == ["for how long ranks 0 and 1 had waited", "sends and receives"]
    # Who has given up has waited for its timeout; its last call is over, well or not.
    v = ask(write(tmp_path / "e", {r: of_gloo(*range(1, 4 if r == 2 else 5)) for r in range(3)}))
    assert "gave up" in v["primary"]["says"] and [n["what"] for n in v["not_examined"]] == ["sends and receives"]
    assert "(over, well or not)" in v["primary"]["evidence"][1]["text"]
    nccl = ask(write(tmp_path / "n", {r: jobs.dump([*history(3), *([fourth()] if r else [])], groups(3)) for r in range(3)}))
    assert "send" not in nccl["primary"]["says"] and [n["what"] for n in nccl["not_examined"]] == ["for how long ranks 1 and 2 had waited"]


def test_roots_are_in_no_recorder(tmp_path, ask):
    own = [jobs.dump([*history(3), fourth("completed" if r == 1 else "started") | {"profiling_name": "nccl:broadcast"}], groups(3)) for r in range(3)]
    p = ask(write(tmp_path / "d", dict(enumerate(own))))["primary"]
    assert "or ranks gave different roots, which no recorder holds" in p["says"] and "(possible: collective-mismatch, " in p["says"]


def test_one_that_waits_alone_may_have_come_once_too_often(tmp_path, ask):
    dumps = {r: jobs.dump([*history(3), *([fourth()] if r == 2 else [])], groups(4)) for r in range(4)}
    p = ask(write(tmp_path / "d", dumps))["primary"]
    assert p["ranks"] == [0, 1, 2, 3] and "or rank 2 has made a call too many" in p["says"]


def test_recorders_in_which_nobody_waits_do_not_hide_what_logs_tell(tmp_path, ask):
    write(tmp_path / "d", {r: of_gloo(1, 2, 3, 4) for r in range(2)})
    error = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.3]:2976\n"
    (tmp_path / "d" / "rank0.log").write_text(f"step 3\n{error}")
    v = ask(tmp_path / "d")
    assert v["primary"]["cause"] == "peer-lost" and [f["cause"] for f in v["symptoms"]] == ["unknown"]
    assert [n["why"] for n in v["not_examined"] if n["what"].startswith("stacks")] == ["only logs and flight-recorder dumps were given"]


def test_of_a_dump_that_is_cut_off_one_reason_is_given(tmp_path, ask):
    folder = write(tmp_path / "d", {r: jobs.dump([*history(3), fourth()], groups(3)) for r in range(3)})
    path = folder / "nccl_trace_rank_2"
    path.write_bytes(path.read_bytes()[:150])
    told = [n["what"] for n in ask(folder)["not_examined"]]
    assert not any(what.startswith("the calls of") for what in told) and any("rank_2" in what for what in told)


def test_who_has_finished_on_and_went_on_may_have_been_looked_at_later(tmp_path, ask):
    fifth = jobs.entry(4, DEFAULT, 5, "all_reduce", 4, 30, "started", t=40_000)
    dumps = {r: jobs.dump([*history(3), fourth("completed" if r else "started"), *([fifth] if r else [])], groups(3)) for r in range(3)}
    p = ask(write(tmp_path / "d", dumps))["primary"]
    assert (p["cause"], p["standing"], p["ranks"]) == ("unknown", "not-established", [0])
    assert "it is over on ranks 1 and 2 only" in p["says"] and "or its dump was taken a moment before the others'" in p["says"]


XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=2603, name=python, GPU has fallen off the bus."


def held_against(tmp_path, ask, prefix, *, lost=False, job=""):
    """What a kernel log beside the dumps of a mismatch is worth: its standing, None for nothing; and the verdict. `prefix` has the time."""
    first = 1 if lost else 0
    dumps = {r: jobs.dump([*history(3)[first:], fourth(elements=8 if r == 2 else 4)], groups(4)) for r in range(4)}
    folder = write(tmp_path / "d", dumps)
    (tmp_path / "dmesg.txt").write_text(f"{prefix} {XID}\n")
    (tmp_path / "train.log").write_text(job)
    v = ask(folder, tmp_path / "dmesg.txt", *([tmp_path / "train.log"] if job else []))
    found = [v["primary"], *v["contributing"], *v["symptoms"]]
    return next((f["standing"] for f in found if f["cause"] == "gpu-hardware"), None), v


def at(seconds, form="%a %b %d %H:%M:%S %Y"):
    return datetime.fromtimestamp(jobs.T0 / 1e9 + seconds, tz=timezone.utc).strftime(form)


def test_a_kernel_log_beside_dumps_is_held_against_their_times(tmp_path, ask):
    worth, v = held_against(tmp_path, ask, f"[{at(-36 * 3600)}]")
    assert worth is None and (v["primary"]["cause"], v["primary"]["ranks"]) == ("collective-mismatch", [2])
    (left,) = [n for n in v["not_examined"] if "of the kernel" in n["what"]]
    assert "before this job" in left["why"]
    assert not any("nothing in it was recognised" in n["why"] for n in v["not_examined"])
    worth, v = held_against(tmp_path, ask, "[ 1234.567]")
    assert worth == "possible" and v["primary"]["cause"] == "collective-mismatch"
    # Whole hours apart may be a time zone; whoever tells its zone is apart.
    assert held_against(tmp_path, ask, f"[{at(-2 * 3600)}]")[0] == "possible"
    assert held_against(tmp_path, ask, at(-2 * 3600, "%Y-%m-%dT%H:%M:%S+00:00") + " node0 kernel:")[0] is None
    # What the ring has overwritten may have been then.
    assert held_against(tmp_path, ask, at(-2 * 3600, "%Y-%m-%dT%H:%M:%S+00:00") + " node0 kernel:", lost=True)[0] == "possible"
    # Somebody may have waited for half an hour.
    assert held_against(tmp_path, ask, at(1800, "%Y-%m-%dT%H:%M:%S+00:00") + " node0 kernel:")[0] == "possible"
    assert held_against(tmp_path, ask, at(86_400, "%Y-%m-%dT%H:%M:%S+00:00") + " node0 kernel:")[0] is None
    worth, v = held_against(tmp_path, ask, f"[{at(5)}]")
    assert (
        worth == "likely"
        and "of a host of this job is not told" in next(f for f in [v["primary"], *v["contributing"]] if f["cause"] == "gpu-hardware")["says"]
    )


KILLED = "Out of memory: Killed process 777 (python) total-vm:9000000kB, anon-rss:8000000kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:9kB"


@pytest.mark.parametrize(("given", "name", "worth"), [(4, "python", "possible"), (4, "pt_data_worker", "likely"), (3, "python", "likely")])
def test_where_every_rank_has_a_dump_the_kernel_had_killed_none(tmp_path, ask, given, name, worth):
    dumps = {r: jobs.dump([*history(3), fourth(elements=8 if r == 2 else 4)], groups(4)) for r in range(4 - given, 4)}
    (tmp_path / "dmesg.txt").write_text(f"[{at(5)}] {KILLED.replace('python', name)}\n")
    v = ask(write(tmp_path / "d", dumps), tmp_path / "dmesg.txt")
    (found,) = [f for f in (v["primary"], *v["contributing"], *v["symptoms"]) if f["cause"] == "host-oom-or-killed"]
    assert found["standing"] == worth and ("every rank of the job has a dump" in found["says"]) is (worth == "possible")
    assert v["primary"]["cause"] == ("collective-mismatch" if given == 4 else "host-oom-or-killed")


def test_what_gloo_ended_strayed_in_nothing(tmp_path, ask):
    """Its log tells that sizes differ; the recorders tell whose, and where."""
    odd = of_gloo(1, 2, 3, 4)
    odd["entries"][-1]["input_sizes"] = odd["entries"][-1]["output_sizes"] = [[8]]
    folder = write(tmp_path / "d", {1: odd, 2: of_gloo(1, 2, 3, 4)})
    (folder / "rank0.log").write_text(
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at /p/gloo/transport/tcp/pair.cc:456] "
        "op.preamble.length <= op.nbytes. 136 vs 68. Received data size doesn't match expected size. Is there a distributed collective mismatch?\n"
    )
    v = ask(folder)
    assert v["primary"]["cause"] == "collective-mismatch" and v["primary"]["ranks"] == [1, 2] and "rank 1 issued" in v["primary"]["says"]
    assert [f["ranks"] for f in v["contributing"]] == [[0]]


@pytest.mark.parametrize(("logs", "dumps"), [("likely", "established"), ("established", "likely"), ("likely", "likely")])
@pytest.mark.parametrize("where", [None, "train.py:20 in step"])
def test_of_one_cause_the_recorders_say_more(logs, dumps, where):
    def found(says, standing, where):
        return Verdict(primary=Finding(cause="collective-mismatch", standing=standing, says=says, where=where))

    assert with_logs(found("logs", logs, None), found("dumps", dumps, where)).primary.says == "dumps"
    assert with_logs(found("logs", "established", "train.py:3"), found("dumps", "likely", where)).primary.says == "logs"


def test_a_log_without_times_beside_the_dumps(tmp_path, ask):
    job = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nValueError: no\n'
    worth, v = held_against(tmp_path, ask, f"[{at(-36 * 3600)}]", job=job)
    assert worth is None and any("before this job" in n["why"] for n in v["not_examined"])


def test_all_have_joined_and_none_has_finished(tmp_path, ask):
    p = ask(write(tmp_path / "d", {r: jobs.dump([*history(3), fourth()], groups(4)) for r in range(4)}))["primary"]
    assert (p["cause"], p["ranks"]) == ("unknown", [0, 1, 2, 3])
    assert "nobody is missing: the code agrees, the data does not arrive" in p["says"]


def test_a_dump_that_is_missing_is_no_missing_rank(tmp_path, ask):
    v = ask(write(tmp_path / "d", {r: jobs.dump([*history(3), fourth()], groups(4)) for r in range(3)}))
    assert (v["primary"]["cause"], v["primary"]["ranks"]) == ("unknown", [0, 1, 2])
    assert "of rank 3 there is no dump" in v["primary"]["says"]
    assert any(n["what"] == "the flight recorder of rank 3" for n in v["not_examined"])


@pytest.mark.torch
@pytest.mark.integration
def test_what_torchs_own_analyser_says_of_them(tmp_path, analyser):
    """The day on which one of these fails, it has been repaired."""
    probe = write(tmp_path / "probe", {r: jobs.dump([], groups(8)) for r in range(8)})
    first = int(next(probe.iterdir()).name.rpartition("_")[2])
    dumps = {r: jobs.dump([*history(3), fourth(**({"dtype": "Half"} if r == first else {}))], groups(8)) for r in range(8)}
    _, said = analyser(write(tmp_path / "d", dumps))
    assert "Culprit rank" in said and f"Culprit rank {first};" not in said
    _, said = analyser(write(tmp_path / "d", unequal()))
    assert "Not all ranks joining collective, sequence number: 10" in said
    _, said = analyser(
        write(tmp_path / "d", {r: jobs.dump([*history(3), fourth("completed" if r == 2 else "scheduled")], groups(4)) for r in range(4)})
    )
    assert "Culprit rank 2" in said
    code, said = analyser(write(tmp_path / "d", {r: jobs.dump([*history(3), fourth()], groups(4)) for r in range(4)}))
    assert code == 0 and "Culprit" not in said and "missing" not in said
    code, said = analyser(write(tmp_path / "d", {r: jobs.dump([*history(3), fourth()], groups(4)) for r in range(3)}))
    assert code != 0 and "AssertionError" in said


def test_the_last_call_of_who_never_came_and_where_the_others_wait(tmp_path, ask):
    dumps = {r: jobs.dump([*history(3), *([] if r == 2 else [fourth(line=30)])], groups(4)) for r in range(4)}
    p = ask(write(tmp_path / "d", dumps))["primary"]
    assert (p["cause"], p["standing"], p["ranks"], p["where"]) == ("collective-timeout", "not-established", [2], "/home/user/train.py:20 in step")
    assert "rank 2 never came to all_reduce #4 of group 0 (default_pg), in which ranks 0, 1 and 3 wait at /home/user/train.py:30 in step" in p["says"]
    assert "its last call was all_reduce #3 of group 0 at /home/user/train.py:20 in step" in p["says"]


def test_people_read_it_in_chinese(tmp_path, ask):
    write(tmp_path, {r: jobs.dump(history(3) + ([fourth()] if r else []), groups(3)) for r in range(3)})
    shown = " ".join(CliRunner().invoke(ask.app, ["why", str(tmp_path), "--lang", "zh"]).stdout.split())
    assert "rank 0 从未到达组 0 (default_pg) 的 all_reduce #4，而 rank 1、2 在其中等待" in shown and "never came" not in shown
    assert "从未到达组 0" in CliRunner().invoke(ask.app, ["why", str(tmp_path), "--lang", "zh", "--markdown"]).stdout
    write(tmp_path, {r: jobs.dump(history(3), groups(2)) for r in range(2)})
    shown = "".join(CliRunner().invoke(ask.app, ["why", str(tmp_path), "--lang", "zh", "--all"]).stdout.split())
    assert "有转储的2个rank都没有在已记录的调用中等待" in shown and "none of the" not in shown


def test_a_call_too_many_of_the_usual_kind_is_shown_where_it_was(tmp_path, ask):
    lines = {r: [30, 30, 99 if r == 1 else 30, 30] for r in range(4)}
    dumps = {}
    for r in range(4):
        calls = [jobs.entry(i, DEFAULT, i + 1, "all_reduce", 4, line, "completed", t=i * 1000) for i, line in enumerate(lines[r])]
        calls.append(jobs.entry(4, DEFAULT, 5, "all_reduce" if r == 1 else "broadcast", 4, 30 if r == 1 else 31, "started", t=9000))
        dumps[r] = jobs.dump(calls, groups(4))
    p = ask(write(tmp_path / "d", dumps))["primary"]
    assert (p["cause"], p["ranks"]) == ("collective-mismatch", [1])
    assert "already #3 came from /home/user/train.py:99 in step, where the others were at /home/user/train.py:30 in step" in p["says"]


def test_of_two_the_one_whose_line_did_otherwise_before(tmp_path, ask):
    dumps = {r: jobs.dump([*history(3), fourth(elements=8 if r == 1 else 4)], groups(2)) for r in range(2)}
    p = ask(write(tmp_path / "d", dumps))["primary"]
    assert (p["cause"], p["ranks"]) == ("collective-mismatch", [1]) and "the same line issued something else before" in p["says"]


def test_of_several_odd_ranks_the_first_beside_the_usual(tmp_path, ask):
    sizes = [4, 4, 4, 5, 6]
    p = ask(write(tmp_path / "d", {r: jobs.dump([*history(3), fourth(elements=sizes[r])], groups(5)) for r in range(5)}))["primary"]
    assert p["ranks"] == [3, 4] and "rank 3 issued all_reduce of [5] Float" in p["says"] and "(3 of 5 ranks agree)" in p["says"]
    assert "where ranks 0 to 2 issued all_reduce of [4] Float" in p["says"] and "and rank 4 issued all_reduce of [6] Float" in p["says"]
    assert ["all_reduce of [5]" in p["evidence"][0]["text"], "all_reduce of [4]" in p["evidence"][1]["text"]] == [True, True]


def test_the_calls_that_differ_are_shown_first(tmp_path, ask):
    dumps = {r: jobs.dump([*history(3), fourth(op=("all_reduce", "broadcast")[r], line=20 + r)], groups(2)) for r in range(2)}
    p = ask(write(tmp_path / "d", dumps))["primary"]
    assert ["#4 all_reduce" in p["evidence"][0]["text"], "#4 broadcast" in p["evidence"][1]["text"]] == [True, True]
    assert sum("before: #3" in e["text"] for e in p["evidence"]) == 2


def test_nothing_is_wrong(tmp_path, ask):
    folder = write(tmp_path / "d", {r: jobs.dump(history(3), groups(2)) for r in range(2)})
    v = ask(folder, code=0)
    assert v["primary"] is None
    assert [n["what"] for n in v["not_examined"]] == ["stacks, process states"]
    assert "none of the 2 ranks with a dump waits in a recorded call" in v["not_examined"][0]["why"]
    assert "the last call of group 0 (default_pg), all_reduce #3, is over on all of them" in v["not_examined"][0]["why"]
    # Cut off, it is not called healthy.
    (folder / "nccl_trace_rank_1").write_bytes((folder / "nccl_trace_rank_1").read_bytes()[:-300])
    v = ask(folder)
    assert v["primary"]["cause"] == "unknown" and any(n["unread"] and "cut off" in n["why"] for n in v["not_examined"])


def gloo(numbers):
    calls = [jobs.entry(n, DEFAULT, n, "all_reduce", 4, 20, "completed", t=n * 1000, backend="gloo") for n in numbers]
    return jobs.dump([c | {"record_id": i} for i, c in enumerate(calls)], pg_config={"": {"name": "", "desc": "", "ranks": "[]"}})


def test_calls_of_gloo_that_are_over_are_called_neither_waiting_nor_well(tmp_path, ask):
    v = ask(write(tmp_path / "d", {r: gloo([1, 2, 3]) for r in range(2)}))
    p = v["primary"]
    assert (p["cause"], p["standing"], p["ranks"]) == ("unknown", "not-established", [])
    assert p["says"].startswith(
        "none of the 2 ranks with a dump waits in a recorded call; the last call of group 0 (default_pg), all_reduce #3, is over"
    )
    assert "Gloo's recorder calls over what has failed, too" in p["says"]
    assert {"stacks, process states", "sends and receives"} == {n["what"] for n in v["not_examined"]}
    # One of two dumps.
    v = ask(write(tmp_path / "d", {1: gloo([1, 2, 3])}))
    assert "rank 1 does not wait in a recorded call; its last call of group 0 (default_pg), all_reduce #3, is over" in v["primary"]["says"]
    assert "whether others wait cannot be told: of rank 0 there is no dump" in v["primary"]["says"]


def test_who_may_have_been_wanted_in_a_call_of_gloo_that_is_over(tmp_path, ask):
    dumps = {r: gloo([1, 2, 3]) for r in range(3)}
    for r in (0, 1):
        dumps[r]["entries"].append(jobs.entry(3, ("1", "undefined"), 1, "all_reduce", 2, 30, "completed", t=9000, backend="gloo"))
    p = ask(write(tmp_path / "d", dumps))["primary"]
    assert "rank 2 has not issued all_reduce #1 of group 1, and may have been wanted in it" in p["says"]
    assert "is over on ranks 0 and 1" in p["says"]


def test_a_call_that_is_pending_while_its_ranks_go_on(tmp_path, ask):
    names = {"0": ("default_pg", [0, 1]), "ck": ("ckpt", [0, 1])}

    def of(r, *behind):
        steps = [jobs.entry(i + 1, DEFAULT, i + 1, "all_reduce", 4, 20, "completed", t=i * 1_000_000_000) for i in range(60)]
        saves = [jobs.entry(0, ("ck", "ckpt"), 1, "all_reduce", 4, 90, "started", t=0)] if r == 0 else []
        return jobs.dump([e | {"record_id": n} for n, e in enumerate((*saves, *steps, *behind))], names)

    p = ask(write(tmp_path / "d", {r: of(r) for r in range(2)}))["primary"]
    assert p["cause"] == "unknown" and p["ranks"] == [1]
    assert "rank 0 has had all_reduce #1 of group ck (ckpt) pending for over 30 s and went on with other calls" in p["says"]
    assert "rank 1 has not recorded it (the last call of rank 1 is all_reduce #60 of group 0)" in p["says"]
    assert "group ck (ckpt), all_reduce #1, is over" not in p["says"] and "line 90" in p["evidence"][0]["text"]
    # Beside a hang it is left aside, and told.
    hung = jobs.entry(0, DEFAULT, 61, "all_reduce", 4, 20, "started", t=61_000_000_000)
    v = ask(write(tmp_path / "d", {r: of(r, *([hung] if r == 0 else [])) for r in range(2)}))
    assert "rank 1 never came to all_reduce #61" in v["primary"]["says"]
    assert [n["what"] for n in v["not_examined"]] == ["all_reduce #1 of group ck (ckpt)", "for how long rank 0 had waited"]


@pytest.mark.parametrize(
    ("second", "why"),
    [
        ([], "the recorder of rank 2 holds no call"),
        ([*history(3), fourth() | {"collective_seq_id": "?"}], "the dump of rank 2 has entries that could not be understood"),
    ],
)
def test_a_dump_that_does_not_tell_is_no_missing_rank(tmp_path, ask, second, why):
    dumps = {r: jobs.dump(second if r == 2 else [*history(3), fourth()], groups(4)) for r in range(4)}
    p = ask(write(tmp_path / "d", dumps))["primary"]
    assert p["cause"] == "unknown" and p["ranks"] == [0, 1, 3] and why in p["says"]


def test_dumps_that_hold_no_calls(tmp_path, ask):
    ask(write(tmp_path / "d", {r: jobs.dump([], groups(2)) for r in range(2)}), code=2)


def test_all_forms_by_name_and_pattern(tmp_path, ask):
    dumps = {r: jobs.dump([*history(3), *([] if r == 2 else [fourth()])], groups(4)) for r in range(4)}
    (tmp_path / "rank0.json").write_text(json.dumps(dumps[0]))
    (tmp_path / "rank1.pkl").write_bytes(pickle.dumps(dumps[1]))
    (tmp_path / "rank2.pickle.gz").write_bytes(gzip.compress(pickle.dumps(dumps[2])))
    (tmp_path / "rank3").write_bytes(pickle.dumps(dumps[3], protocol=2))
    for paths in ([tmp_path], sorted(tmp_path.iterdir()), [f"{tmp_path}/rank*"]):
        p = ask(*paths)["primary"]
        assert (p["cause"], p["ranks"]) == ("collective-timeout", [2])
    (tmp_path / "node7.json").write_text(json.dumps({str(r): d for r, d in dumps.items()}))
    assert ask(tmp_path / "node7.json")["primary"]["ranks"] == [2]


def test_one_dump_alone_is_neither_a_log_nor_a_checkpoint(tmp_path, ask):
    for name, data in (
        ("a_0.json", json.dumps(jobs.dump([*history(3), fourth()], groups(2))).encode()),
        ("a_0", pickle.dumps(jobs.dump(history(2), groups(2)))),
    ):
        (tmp_path / name).write_bytes(data)
        v = ask(tmp_path / name)
        assert v["inputs"][0]["kind"] == "flight" and v["primary"]["cause"] == "unknown"


def test_a_file_that_looks_like_a_dump_and_cannot_be_read(tmp_path, ask):
    (tmp_path / "rank_0").write_bytes(pickle.dumps(jobs.dump(history(2), groups(2)))[:60])
    done = CliRunner().invoke(ask.app, ["why", str(tmp_path)])
    assert isinstance(done.exception, UnhangError) and "none of the flight-recorder dumps could be read" in str(done.exception)


def test_dumps_beside_logs(tmp_path, ask):
    write(tmp_path / "d", {r: jobs.dump([*history(3), *([] if r == 2 else [fourth()])], groups(4)) for r in range(4)})
    (tmp_path / "d" / "rank2.log").write_text(
        "Traceback (most recent call last):\n"
        '  File "train.py", line 8, in <module>\n    step()\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.15 GiB of which 1.02 GiB is free.\n"
    )
    v = ask(tmp_path / "d")
    assert v["primary"]["cause"] == "gpu-oom" and [s["ranks"] for s in v["symptoms"] if "never came" in s["says"]] == [[2]]
    assert {i["kind"] for i in v["inputs"]} == {"flight", "log"}
    (tmp_path / "d" / "rank2.log").write_text("step 1 loss 2.3\nstep 2 loss 2.1\n")
    assert ask(tmp_path / "d")["primary"]["ranks"] == [2]


def test_lines_of_nccl2_name_no_call_and_the_recorders_do(tmp_path, ask):
    def entries(n):
        return [
            jobs.entry(i, DEFAULT, i + 1, "all_reduce", 4, 20, "completed" if i < 3 else "started", t=i * 1000, backend="nccl2") for i in range(n)
        ]

    write(tmp_path / "d", {r: jobs.dump(entries(3 if r == 2 else 4), groups(4)) for r in range(4)})
    (tmp_path / "d" / "train.log").write_text(
        "".join(
            f"[rank{r}]:[E1103 10:00:01.123 ProcessGroupNCCL.cpp:641] [TC][rank={r}][name=0] Aborting process on rank {r} due to timeout - x\n"
            for r in (0, 1, 3)
        )
    )
    primary = ask(tmp_path / "d")["primary"]
    assert primary["ranks"] == [2] and "all_reduce" in primary["says"]


def test_a_dump_that_cannot_be_read_beside_a_log_that_can(tmp_path, ask):
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps(jobs.dump(history(2), groups(2)))[:60])
    (tmp_path / "train.log").write_text(
        "step 1\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.00 GiB is free.\n"
    )
    v = ask(tmp_path)
    assert (v["primary"]["cause"], v["primary"]["standing"]) == ("gpu-oom", "established")
    assert [n["unread"] for n in v["not_examined"] if "nccl_trace_rank_0" in n["what"]] == [True]
    (tmp_path / "train.log").write_text("step 1 loss 2.3\nstep 2 loss 2.1\n")
    assert ask(tmp_path, code=2)["primary"] is None


def test_what_was_not_given_beside_dumps(tmp_path, ask):
    dumps = {r: jobs.dump([*history(3), *([] if r == 2 else [fourth()])], groups(4)) for r in range(4)}
    (write(tmp_path / "d", dumps) / "rank2.log").write_text("step 1 loss 2.3\n")
    told = {n["what"]: n["why"] for n in ask(tmp_path / "d")["not_examined"]}
    assert "only logs and flight-recorder dumps were given" in told["stacks, process states"]
    assert not any("flight recorder," in what for what in told)


def message(what, *, elements=4, line=70, number=1, state="started", t=9_000_000):
    return jobs.entry(9, DEFAULT, 0, what, elements, line, state, t=t) | {"is_p2p": True, "p2p_seq_id": number}


def test_a_message_is_told_from_its_sender(tmp_path, ask):
    dumps = {0: jobs.dump([*history(2), message("recv 0<-1")], groups(2)), 1: jobs.dump([*history(2), message("send 1->0", elements=8)], groups(2))}
    p = ask(write(tmp_path / "d", dumps))["primary"]
    assert "a message of 8 elements Float (rank 1 at /home/user/train.py:70 in step) is received as 4 elements Float (rank 0" in p["says"]


def test_a_message_that_is_over_on_one_side(tmp_path, ask):
    sent = [message("send 0->1", elements=8, state="completed"), message("send 0->1", number=2, line=71, t=9_100_000)]
    got = [message("recv 1<-0", elements=8, line=72), message("recv 1<-0", number=2, line=73, t=9_100_000)]
    p = ask(write(tmp_path / "d", {0: jobs.dump([*history(2), *sent], groups(2)), 1: jobs.dump([*history(2), *got], groups(2))}))["primary"]
    assert (p["cause"], p["ranks"], p["where"]) == ("unknown", [1], "/home/user/train.py:72 in step")
    assert "both sides of a receive from rank 0" in p["says"] and "it is over on rank 0 only: rank 1 waits" in p["says"]


def test_messages_are_followed_and_shown_with_their_lines(tmp_path, ask):
    dumps = {r: jobs.dump(history(2), groups(4)) for r in range(4)}
    dumps[0]["entries"].append(message("send 0->1"))
    dumps[1]["entries"].append(message("recv 1<-2", line=71))
    p = ask(write(tmp_path / "d", dumps))["primary"]
    assert (p["cause"], p["ranks"]) == ("collective-timeout", [2])
    assert "rank 2 posted nothing that fits a receive from rank 2, in which rank 1 waits at /home/user/train.py:71 in step" in p["says"]
    assert "(rank 0 waits in a send to rank 1; rank 1 waits in a receive from rank 2)" in p["says"]
    assert any("recv 1<-2" in e["text"] and "line 71" in e["text"] for e in p["evidence"])


def test_a_message_of_another_size(tmp_path, ask):
    dumps = {0: jobs.dump([*history(2), message("send 0->1", elements=8)], groups(2)), 1: jobs.dump([*history(2), message("recv 1<-0")], groups(2))}
    p = ask(write(tmp_path / "d", dumps))["primary"]
    assert (p["cause"], p["standing"], p["ranks"]) == ("collective-mismatch", "established", [0, 1])
    assert "a message of 8 elements Float (rank 0 at /home/user/train.py:70 in step) is received as 4 elements" in p["says"]


def test_a_circle_shows_the_call_of_each_side(tmp_path, ask):
    pair = {"x": ("x", [0, 1]), "y": ("y", [0, 1])}
    dumps = {
        r: jobs.dump([jobs.entry(n, (g, g), 1, "all_reduce", 4, 10 * (r + 1) + n, "scheduled", t=n) for n, g in enumerate(order)], pair)
        for r, order in enumerate(("xy", "yx"))
    }
    p = ask(write(tmp_path / "d", dumps))["primary"]
    assert (p["cause"], p["standing"], p["ranks"]) == ("collective-mismatch", "likely", [0, 1])
    assert "rank 0 waits in all_reduce #1 of group x for rank 1; rank 1 waits in all_reduce #1 of group y for rank 0" in p["says"]
    assert ["line 10" in p["evidence"][0]["text"], "line 20" in p["evidence"][1]["text"]] == [True, True]


def test_a_chain_is_told_from_its_beginning(tmp_path, ask):
    names = {"a": ("tp", [0, 1]), "b": ("pp", [1, 2]), "c": ("dp", [2, 3])}

    def of(r):
        mine = {k: v for k, v in names.items() if r in v[1]}
        before = [jobs.entry(i, (k, v[0]), 1, "all_reduce", 4, 5, "completed", t=i) for i, (k, v) in enumerate(mine.items())]
        return jobs.dump(
            before + ([] if r == 3 else [jobs.entry(9, ("abc"[r], names["abc"[r]][0]), 2, "all_reduce", 4, 60 + r, "started", t=1000 - r)]), mine
        )

    p = ask(write(tmp_path / "d", {r: of(r) for r in range(4)}))["primary"]
    assert p["ranks"] == [3] and "never came to all_reduce #2 of group c (dp), in which rank 2 waits" in p["says"]
    assert (
        "(rank 0 waits in all_reduce #2 of group a (tp) for rank 1; rank 1 waits in all_reduce #2 of group b (pp) for rank 2; rank 2 waits"
        in p["says"]
    )


def test_dumps_have_no_attempts(tmp_path, ask):
    folder = write(tmp_path / "d", {r: jobs.dump(history(2), groups(2)) for r in range(2)})
    done = CliRunner().invoke(ask.app, ["why", str(folder), "--attempt", "1"])
    assert isinstance(done.exception, UnhangError) and "--attempt 1 is for logs" in str(done.exception)


def sum_up(ask, folder, *paths, code=0):
    done = CliRunner().invoke(ask.app, ["why", "--digest", str(folder), *map(str, paths)])
    assert done.exit_code == code, done.output
    return done


def test_digests_of_all_hosts_give_the_answer_of_the_dumps(ask, tmp_path):
    dumps = {r: jobs.dump([*history(3), fourth(elements=7 if r == 2 else 4, line=99 if r == 2 else 20)], groups(4)) for r in range(4)}
    folder = write(tmp_path / "dumps", dumps)
    whole = ask(folder)
    for n in range(2):
        host = tmp_path / f"host{n}"
        host.mkdir()
        for r in (2 * n, 2 * n + 1):
            shutil.copy(folder / f"nccl_trace_rank_{r}", host)
        told = sum_up(ask, tmp_path / "digests", host).stdout
        assert "2 dumps in" in told and f"unhang why {tmp_path}/digests" in told
    for paths in ([tmp_path / "digests"], sorted((tmp_path / "digests").iterdir()), [tmp_path / "host0", *(tmp_path / "digests").glob("*-rank2.*")]):
        merged = ask(*paths)
        for name in ("cause", "standing", "says", "ranks", "where", "remedies"):
            assert merged["primary"][name] == whole["primary"][name], name
        assert [e["text"] for e in merged["primary"]["evidence"]] == [e["text"] for e in whole["primary"]["evidence"]]
        assert merged["not_examined"] == whole["not_examined"] == []


def test_a_digest_is_told_as_json(ask, tmp_path):
    folder = write(tmp_path / "dumps", {r: jobs.dump(history(3), groups(4)) for r in (2, 3)})
    (folder / "nccl_trace_rank_1").write_bytes(b"\x80\x02}q\x00X\x09\x00\x00\x00pg_configq\x01")
    done = CliRunner().invoke(ask.app, ["why", "--json", "--digest", str(tmp_path / "digests"), str(folder)])
    told = json.loads(done.stdout)
    path = Path(told.pop("digest"))
    assert path.parent == tmp_path / "digests" and told.pop("bytes") == path.stat().st_size
    (missed,) = told.pop("not_examined")
    assert missed["what"].endswith("rank_1") and missed["unread"]
    # One of them could not be read: that is no success.
    assert done.exit_code == 2 and told == {"schema": "unhang/digest/1", "ranks": [2, 3], "dumps": 2}
    v = ask(path)
    assert v["inputs"] == [{"source": str(path), "kind": "flight", "bytes": path.stat().st_size}]
    assert any("nccl_trace_rank_1 on " in n["what"] and n["unread"] for n in v["not_examined"])


@pytest.mark.parametrize("also", ["--markdown", "--all", "--incident=1", "--attempt=1", "--report=x.html"])
def test_a_digest_is_no_verdict(ask, tmp_path, also):
    done = CliRunner().invoke(ask.app, ["why", "--digest", str(tmp_path / "d"), str(tmp_path), also])
    assert isinstance(done.exception, UnhangError) and "--digest only sums up" in str(done.exception)


def test_a_running_job_has_no_digest(ask, tmp_path):
    done = CliRunner().invoke(ask.app, ["why", "--digest", str(tmp_path / "d"), "--ras", "h"])
    assert isinstance(done.exception, UnhangError) and "--digest only sums up" in str(done.exception)


def refused(ask, *words):
    """The message of what is refused, with the exit code of the real program."""
    done = subprocess.run(
        [sys.executable, "-m", "unhang", "why", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr
    return " ".join(done.stderr.split())


def test_a_digest_of_nothing_is_refused(ask, tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "none").mkdir()
    (tmp_path / "logs" / "train.log").write_text("step 1\n")
    told = refused(ask, "--digest", tmp_path / "d", tmp_path / "logs")
    assert "there is no flight-recorder dump to sum up" in told and "given were 1 other file, as " in told
    assert f"there is no flight-recorder dump in {tmp_path}/none" in refused(ask, "--digest", tmp_path / "d", tmp_path / "none")
    assert "there is no " in refused(ask, "--digest", tmp_path / "d", tmp_path / "nowhere")
    assert not (tmp_path / "d").exists()


def test_a_digest_that_cannot_be_written(ask, tmp_path):
    folder = write(tmp_path / "dumps", {0: jobs.dump(history(3), groups(1))})
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        assert f"cannot write a digest to {place}: it is no directory" in refused(ask, "--digest", place, folder)
    assert "cannot write a digest to /proc/digests: " in refused(ask, "--digest", "/proc/digests", folder)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_digest_overwrites_no_other_one(ask, tmp_path):
    for elements in (4, 4, 8):
        folder = write(tmp_path / "dumps", {r: jobs.dump([*history(3), fourth(elements=elements)], groups(2)) for r in range(2)})
        command = ("--digest", tmp_path / "digests", folder)
        if elements == 8:
            assert "holds something else: it was left as it is" in refused(ask, *command)
        else:
            sum_up(ask, tmp_path / "digests", folder)
    (path,) = (tmp_path / "digests").iterdir()
    assert "all_reduce of [4]" in ask(path)["primary"]["evidence"][0]["text"]


def test_digests_beside_the_dumps_are_left_out_the_next_time(ask, tmp_path):
    folder = write(tmp_path / "dumps", {r: jobs.dump([*history(3), fourth()], groups(2)) for r in range(2)})
    sum_up(ask, folder, folder)
    again = sum_up(ask, folder, folder)
    assert "it is a digest, which is not summed up again" in again.stderr and "2 dumps in" in again.stdout
    v = ask(folder)
    assert v["primary"]["ranks"] == [0, 1] and ["stands in" in n["why"] for n in v["not_examined"]] == [True, False]


@pytest.mark.parametrize("left", [b"", bytes(range(256)) * 8])
def test_a_dump_of_which_nothing_is_left_is_told_by_its_digest(ask, tmp_path, left):
    folder = write(tmp_path / "dumps", {r: jobs.dump([*history(3), fourth()], groups(3)) for r in range(3)})
    (folder / "nccl_trace_rank_2").write_bytes(left)
    (folder / "notes.bin").write_bytes(left)
    done = CliRunner().invoke(ask.app, ["why", "--digest", str(tmp_path / "digests"), str(folder)])
    assert done.exit_code == 2 and "2 dumps in" in done.stdout and "not in it: " in done.stderr and "nccl_trace_rank_2: " in done.stderr
    told = [n for n in ask(tmp_path / "digests")["not_examined"] if "nccl_trace_rank_2" in n["what"]]
    assert len(told) == 1 and told[0]["unread"] and not any("notes" in n["what"] for n in ask(tmp_path / "digests")["not_examined"])


@pytest.mark.parametrize("left", [b"", b"not it", None])
def test_a_rank_whose_dump_holds_nothing_is_told_as_that_rank(ask, tmp_path, left):
    """Its own line, and no word of logs, or that it was not given."""
    dumps = {r: jobs.dump([*history(3), *([fourth()] if r else [])], groups(4)) for r in range(4)}
    folder = write(tmp_path / "dumps", dumps)
    whole = (folder / "nccl_trace_rank_3").read_bytes()
    (folder / "nccl_trace_rank_3").write_bytes(whole[:90] if left is None else left)
    for given in (folder, tmp_path / "digests", packed(folder, "d.tar.gz")):
        if given == tmp_path / "digests":
            sum_up(ask, given, folder, code=2)
        if given.is_file() and left == b"not it":
            continue
        v = ask(given)
        assert v["primary"]["ranks"] == [0] and "rank 3" not in v["primary"]["says"].split(" never came ")[0]
        told = {n["what"]: n for n in v["not_examined"]}
        rank = told["the flight recorder of rank 3"]
        assert rank["unread"] and "nothing is left in its dump: " in rank["why"] and "nccl_trace_rank_3" in rank["why"]
        assert not any("no dump of it was given" in n["why"] for n in told.values())
        assert left == b"not it" or {i["kind"] for i in v["inputs"]} == {"flight"}
    # It is the one that is wanted: nobody calls it missing.
    write(folder, {r: jobs.dump([*history(3), fourth()], groups(4)) for r in range(4)})
    (folder / "nccl_trace_rank_3").write_bytes(whole[:90] if left is None else left)
    p = ask(folder)["primary"]
    assert p["ranks"] != [3] and "nothing is left in the dump of rank 3" in p["says"]


@pytest.mark.parametrize("bytes_left", [0, 5, 14, 15, 40])
def test_a_digest_that_was_cut_is_told_as_one(ask, tmp_path, bytes_left):
    folder = write(tmp_path / "dumps", {r: jobs.dump([*history(3), fourth()], groups(3)) for r in range(3)})
    for host in range(2):
        alone = write(tmp_path / "one", {r: pickle.loads((folder / f"nccl_trace_rank_{r}").read_bytes()) for r in ((0, 1), (2,))[host]})
        sum_up(ask, tmp_path / f"host{host}", alone)
    (cut,), (other,) = ((tmp_path / f"host{host}").iterdir() for host in range(2))
    cut.write_bytes(cut.read_bytes()[:bytes_left])
    told = refused(ask, cut)
    assert "none of the flight-recorder dumps could be read" in told and "damaged" in told
    v = ask(cut.parent, other)
    (left,) = [n for n in v["not_examined"] if n["what"] == str(cut)]
    assert left["unread"] and "it was cut off while it was written or copied" in left["why"]
    # What is left out of the next one is the same.
    again = CliRunner().invoke(ask.app, ["why", "--digest", str(tmp_path / "more"), str(cut.parent), str(folder)])
    assert "3 dumps in" in again.stdout and f"{cut}: it is a digest, which is not summed up again" in again.stderr


def test_no_digest_of_a_newer_unhang_passes_for_nothing(ask, tmp_path):
    folder = write(tmp_path / "dumps", {r: jobs.dump(history(3), groups(2)) for r in range(2)})
    sum_up(ask, tmp_path / "digests", folder)
    (path,) = (tmp_path / "digests").iterdir()
    path.write_bytes(b"UNHANG-DIGEST\x09\n" + path.read_bytes()[15:])
    told = refused(ask, path)
    assert "a digest of format 9, and this unhang reads format 2" in told and "another version of unhang wrote it" in told


def test_progress_is_shown_on_a_terminal(ask, tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr("unhang.cli.digest.reading", lambda quiet=False: contextlib.nullcontext(lambda done, total: told.append((done, total))))
    folder = write(tmp_path / "dumps", {r: jobs.dump(history(3), groups(3)) for r in range(3)})
    sum_up(ask, tmp_path / "digests", folder)
    size = sum(p.stat().st_size for p in folder.iterdir())
    assert len(told) == 3 and told[-1] == (size, size)


def packed(folder, name):
    archive = folder.parent / name
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, folder.name)
    return archive


def test_dumps_in_an_archive_are_those_in_its_folder(tmp_path, ask):
    dumps = {r: jobs.dump([*history(3), fourth(op="broadcast" if r == 2 else "all_reduce")], groups(4)) for r in range(4)}
    folder = write(tmp_path / "d", dumps)
    loose, archive = ask(folder), packed(folder, "d.tar.gz")
    found = ask(archive)
    assert json.loads(json.dumps(found).replace(f"{archive}!d/", f"{folder}/")) == loose
    (folder / "train.log").write_text(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.15 GiB\n"
    )
    both = ask(packed(folder, "both.tgz"))
    assert {both["primary"]["cause"], *(c["cause"] for c in both["contributing"])} == {"gpu-oom", "collective-mismatch"}
    assert not any("no log: a flight-recorder dump" in n["why"] for n in both["not_examined"])


def test_an_archive_whose_dumps_cannot_be_read_is_called_by_its_name(tmp_path, ask):
    folder = write(tmp_path / "d", {r: jobs.dump(history(3), groups(2)) for r in range(2)})
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes()[:70])
    ran = CliRunner().invoke(ask.app, ["why", str(packed(folder, "d.tar.gz"))])
    assert isinstance(ran.exception, UnhangError) and "d.tar.gz!d/nccl_trace_rank_" in (ran.exception.cause or "")


def four():
    return {r: jobs.dump([*history(3), fourth(op="broadcast" if r == 2 else "all_reduce")], groups(4)) for r in range(4)}


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Where everything is unpacked to: nothing stays."""
    folder = tmp_path / "kept"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield folder
    assert not list(folder.iterdir())


@pytest.mark.parametrize("singly", [False, True])
def test_dumps_in_an_archive_through_a_pipe(tmp_path, ask, kept, singly):
    folder = write(tmp_path / "d", four())
    for path in folder.iterdir() if singly else ():
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    found = ask("-", given=packed(folder, "d.tar.gz").read_bytes())
    assert json.loads(json.dumps(found).replace("stdin!d/", f"{folder}/")) == ask(folder)
    assert "kept" not in json.dumps(found)


def test_dumps_singly_packed_in_an_archive(tmp_path, ask, kept):
    folder = write(tmp_path / "d", four())
    for path in folder.iterdir():
        path.with_name(f"{path.name}.zst").write_bytes(zstandard.compress(path.read_bytes()))
        path.unlink()
    archive = packed(folder, "d.tar.gz")
    assert json.loads(json.dumps(ask(archive)).replace(f"{archive}!d/", f"{folder}/")) == ask(folder)


def test_archives_of_several_hosts(tmp_path, ask, kept):
    dumps = four()
    for host in range(2):
        # Only the folders of the archives tell the ranks.
        for local in range(2):
            write(tmp_path / f"h{2 * host + local}" / "d", {0: dumps[2 * host + local]}, prefix="trace")
            packed(tmp_path / f"h{2 * host + local}" / "d", "dumps.tar.gz")
    loose = ask(*(tmp_path / f"h{n}" / "d" for n in range(4)))
    found = ask(*(tmp_path / f"h{n}" / "dumps.tar.gz" for n in range(4)))
    assert found["primary"]["ranks"] == loose["primary"]["ranks"] == [2]
    assert json.loads(json.dumps(found).replace("/dumps.tar.gz!d/", "/d/")) == loose


def test_an_archive_is_looked_through_once(tmp_path, ask, monkeypatch):
    looked = []
    held = unpacking.held
    monkeypatch.setattr(unpacking, "held", lambda given, **options: (looked.append(given.name), held(given, **options))[1])
    archive = packed(write(tmp_path / "d", four()), "d.tar.gz")
    ask(archive)
    assert looked == [str(archive)]


def test_dumps_behind_what_is_looked_through_are_not_called_healthy(tmp_path, ask, monkeypatch):
    monkeypatch.setattr(unpacking, "_LOOK_BYTES", 1000)
    folder = write(tmp_path / "d", four())
    (folder / "a.log").write_text("step 1\n" * 1000)
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        for name in sorted(p.name for p in folder.iterdir()):
            tar.add(folder / name, name)
    assert any(n["unread"] and "flight-recorder dump" in n["why"] for n in ask(path, code=2)["not_examined"])


def test_nothing_stays_behind_when_it_is_interrupted(tmp_path, ask, kept, monkeypatch):
    archive = packed(write(tmp_path / "d", four()), "d.tar.gz")
    seen = []

    def interrupted(*_, **__):
        seen.extend(kept.rglob("nccl_trace_rank_*"))
        raise KeyboardInterrupt

    monkeypatch.setattr("unhang.diagnosis.recorders.examine", interrupted)
    for given in (None, archive.read_bytes()):
        assert CliRunner().invoke(ask.app, ["why", "-" if given else str(archive)], input=given).exit_code == 130
    assert len(seen) == 8


@pytest.mark.parametrize("how", ["archive", "pipe", "with a log"])
def test_dumps_in_archives_are_summed_up(tmp_path, ask, kept, how):
    folder = write(tmp_path / "d", four())
    sum_up(ask, tmp_path / "loose", folder)
    if how == "with a log":
        (folder / "train.log").write_text("step 1\n")
    archive = packed(folder, "d.tar.gz")
    given = ["-"] if how == "pipe" else [str(archive)]
    ran = CliRunner().invoke(ask.app, ["why", *given, "--digest", str(tmp_path / "digests"), "--json"], input=archive.read_bytes())
    assert ran.exit_code == 0, ran.output
    told = json.loads(ran.stdout)
    assert (told["ranks"], told["dumps"]) == ([0, 1, 2, 3], 4)
    one, two = ask(tmp_path / "loose"), ask(tmp_path / "digests")
    assert (one["primary"]["says"], one["primary"]["ranks"]) == (two["primary"]["says"], two["primary"]["ranks"])
    (made,) = (tmp_path / "digests").iterdir()
    assert all(digest.read(made).dump(n)[1].name.startswith("stdin!d/" if how == "pipe" else f"{archive}!d/") for n in range(4))


def test_an_archive_without_dumps_cannot_be_summed_up(tmp_path, ask, kept):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a.log").write_text("step 1\n")
    archive = packed(tmp_path / "d", "d.tar.gz")
    ran = CliRunner().invoke(ask.app, ["why", str(archive), "--digest", str(tmp_path / "digests")])
    assert isinstance(ran.exception, UnhangError) and str(archive) in (ran.exception.cause or "")
    folder = write(tmp_path / "d", {0: jobs.dump(history(1), groups(2))})
    (folder / "nccl_trace_rank_0").write_bytes((folder / "nccl_trace_rank_0").read_bytes()[:70])
    ran = CliRunner().invoke(ask.app, ["why", str(packed(folder, "d.tar.gz")), "--digest", str(tmp_path / "digests")])
    assert isinstance(ran.exception, UnhangError) and f"{archive}!d/nccl" in (ran.exception.cause or "")


def test_a_bundle_of_dumps_is_judged_alike(tmp_path, ask):
    dumps = {r: jobs.dump([*history(3), fourth(op="broadcast" if r == 2 else "all_reduce")], groups(4)) for r in range(4)}
    folder, target = write(tmp_path / "d", dumps), tmp_path / "b.tar.gz"
    for _ in range(2):
        ran = CliRunner().invoke(ask.app, ["why", str(folder), "--json", "--bundle", str(target)])
        assert ran.exit_code == 1, ran.output
        one, two = json.loads(ran.stdout)["primary"], ask(target)["primary"]
        assert (one["cause"], one["says"], one["ranks"], one["where"]) == (two["cause"], two["says"], two["ranks"], two["where"])


def test_a_report_of_dumps_has_their_timeline_and_reads_none_of_them_again(tmp_path, ask, monkeypatch):
    from unhang.flight import read_all

    read = []
    opened = read_all.opened
    monkeypatch.setattr(read_all, "opened", lambda path, **more: read.append(path) or opened(path, **more))
    folder = write(
        tmp_path / "job7", {r: jobs.dump([*history(3), fourth(**({"line": 44, "op": "broadcast"} if r == 2 else {}))], groups(4)) for r in range(4)}
    )
    ask(folder)
    without = sorted(read)
    read.clear()
    ask(folder, "--report", tmp_path / "x.html")
    page = (tmp_path / "x.html").read_text("utf-8")
    assert sorted(read) == without
    assert '<canvas id="lanes"' in page and "job7" in page and "Where the ranks parted" in page and "/home/user/train.py:44 in step" in page


@pytest.mark.parametrize("how", ["beside logs", "in an archive", "not one can be read"])
def test_a_report_wherever_dumps_stand(tmp_path, ask, how):
    folder = write(tmp_path / "job7", {r: jobs.dump([*history(3), fourth()], groups(3)) for r in range(2)})
    given, code = [folder], 1
    if how != "in an archive":
        (tmp_path / "train.log").write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
        given.append(tmp_path / "train.log")
    if how == "not one can be read":
        for path in folder.iterdir():
            path.write_bytes(path.read_bytes()[:70])
    if how == "in an archive":
        given = [packed(folder, "job7.tar.gz")]
    ask(*given, "--report", tmp_path / "x.html", code=code)
    page = (tmp_path / "x.html").read_text("utf-8")
    assert ('<canvas id="lanes"' in page) is (how != "not one can be read")
    assert ("job7.tar.gz" in page) is (how == "in an archive") and str(tmp_path) not in page.split('id="scene"')[1]


def test_of_a_run_directory_the_last_dumps_are_summed_up(ask, tmp_path):
    run = tmp_path / "run"
    write(run / "incidents" / "1" / "flight", {0: jobs.dump(history(3), groups(2))}, prefix="rank_")
    write(run / "incidents" / "10" / "flight", {r: jobs.dump([*history(3), fourth()], groups(2)) for r in range(2)}, prefix="rank_")
    write(run / "flight" / "attempt-0", {0: jobs.dump(history(2), groups(2))}, prefix="rank_")
    (run / "run.json").write_text('{"schema": "unhang/run/1"}')
    done = sum_up(ask, tmp_path / "digests", run)
    assert "2 dumps in" in done.stdout and "summing up incidents/10/flight" in done.stderr
    # Nothing but dumps was there; what else is given is named.
    assert "not in it" not in done.stderr
    for rank in range(2):
        (run / "incidents" / "10" / "stacks").mkdir(exist_ok=True)
        (run / "incidents" / "10" / "stacks" / f"rank{rank}.json").write_text("{}")
    said = f"the stacks of 2 ranks in the run directory {run}", f"; unhang why {run} judges all of it"
    assert all(part in sum_up(ask, tmp_path / "again", run).stderr for part in said)
    (left,) = [n for n in ask(tmp_path / "again")["not_examined"] if "stacks" in n["what"]]
    assert left["what"].startswith(f"{said[0]} on ") and said[1] in left["why"] and not left["unread"]
    (run / "incidents" / "1" / "kernel.txt").write_text("NVRM: hello\n")
    assert "incidents/1/kernel.txt: no dump\n" in sum_up(ask, tmp_path / "others", run / "incidents" / "1").stderr
    shutil.rmtree(run / "incidents")
    assert "summing up flight/attempt-0" in sum_up(ask, tmp_path / "torchs", run).stderr
