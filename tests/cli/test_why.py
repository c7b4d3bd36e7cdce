"""unhang why: exit codes, JSON as promised, and errors that say what to do."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time

import msgspec
import psutil
import pytest
import typer
from tests.tables import for_each
from typer.testing import CliRunner

from unhang.cli import why
from unhang.errors import UnhangError
from unhang.knowledge import catalogue
from unhang.logs.readers import cores
from unhang.model import Counters, Finding, NotExamined, Verdict
from unhang.records.incident import Activity, Incident, RankRecord
from unhang.records.rundir import RunDir


@pytest.fixture
def app():
    app = typer.Typer()
    app.callback()(lambda: None)
    why.register(app)
    return app


@pytest.fixture
def rundir(tmp_path):
    rundir = RunDir.create(tmp_path / "run")
    rundir.write(rundir.run, {"schema": "unhang/run/1"})
    stopped = Activity(window_s=2.0, state="T", cpu_share=0.0, tree_cpu_share=0.0, switches_per_s=0.0)
    common = {"host": "node0", "world_size": 2, "last_beat_s": 1.0}
    ranks = (
        RankRecord(rank=0, pid=10, groups={"0": Counters(enqueued=5, completed=4)}, **common),
        RankRecord(rank=1, pid=11, groups={"0": Counters(enqueued=4, completed=4)}, activity=stopped, **common),
    )
    for number in (1, 2):
        incident = Incident(
            number=number, attempt=0, kind="hang", at_s=9.0, at="now", cwd="/p", command=("x",), stalled_for_s=5.0 * number, ranks=ranks
        )
        rundir.write(rundir.incident(number), incident)
    return rundir


def run(app, *arguments, **more):
    return CliRunner().invoke(app, ["why", *map(str, arguments)], catch_exceptions=True, **more)


def test_a_verdict_is_exit_code_1_and_json_is_the_interface(app, rundir):
    ran = run(app, rundir.path, "--json")
    assert ran.exit_code == 1
    verdict = msgspec.json.decode(ran.stdout, type=Verdict)
    assert verdict.primary.cause == "process-stuck" and verdict.schema == "unhang/verdict/1"
    raw = json.loads(ran.stdout)
    assert list(raw) == ["schema", "primary", "contributing", "symptoms", "contradictions", "not_examined", "inputs", "recovered", "messages"]
    assert list(raw["primary"]) == ["cause", "standing", "says", "ranks", "hosts", "where", "evidence", "remedies"]
    assert list(raw["primary"]["evidence"][0]) == ["source", "text", "line"]
    assert list(raw["primary"]["remedies"][0]) == ["id", "says", "env", "command", "verify", "trial"]


def test_people_get_a_screen(app, rundir):
    ran = run(app, rundir.path, "--lang", "zh", env={"NO_COLOR": "1"})
    assert ran.exit_code == 1 and "process-stuck" in ran.stdout and "证据" in ran.stdout and "\x1b" not in ran.stdout
    assert "# " in run(app, rundir.path, "--markdown", "--lang", "en").stdout


def test_the_last_incident_unless_asked(app, rundir):
    assert "10 s" in run(app, rundir.path, "--json").stdout
    assert "5.0 s" in run(app, rundir.path, "--incident", 1, "--json").stdout


def test_nothing_wrong_is_0(app, tmp_path):
    clean = RunDir.create(tmp_path / "clean")
    clean.write(clean.run, {})
    clean.events.write_text('{"s":1.0,"event":"Started"}\n{"s":9.0,"event":"Finished","exitcode":0,"attempts":1}\n')
    ran = run(app, clean.path, "--json")
    assert (ran.exit_code, json.loads(ran.stdout)["primary"]) == (0, None)
    assert "✓ nothing is wrong" in run(app, clean.path, "--lang", "en").stdout
    log = tmp_path / "ok.log"
    log.write_text("step 1\n")
    ran = run(app, log, "--lang", "en")
    assert ran.exit_code == 0 and "✓" not in ran.stdout and "nothing recognised" in ran.stdout


@pytest.mark.parametrize(("unread", "found", "code"), [(False, False, 0), (True, False, 2), (True, True, 1)])
def test_what_could_not_be_read_is_not_called_healthy(app, tmp_path, monkeypatch, unread, found, code):
    left = (NotExamined(what="model.pt", why="no log"), NotExamined(what="rank1.log.gz", why="it is cut off", unread=unread))
    verdict = Verdict(primary=Finding(cause="unknown", standing="possible", says="x") if found else None, not_examined=left)
    monkeypatch.setattr(why, "_judge", lambda *_, **__: (verdict, None))
    for options in ((), ("--json",), ("--markdown",)):
        assert run(app, tmp_path, *options).exit_code == code


@for_each("how", ["empty.log", "empty.log.gz", "config.json", "junk", "-"])
@for_each("options", [(), ("--json",)])
def test_where_no_log_was_read_it_is_not_called_healthy(app, tmp_path, how, options):
    (tmp_path / "empty.log").write_text("")
    (tmp_path / "empty.log.gz").write_bytes(gzip.compress(b""))
    (tmp_path / "config.json").write_text('{"model_type": "t5"}\n')
    (tmp_path / "junk").write_bytes(bytes(range(256)) * 800)
    ran = run(app, how if how == "-" else tmp_path / how, *options, input="")
    assert isinstance(ran.exception, UnhangError) and "nothing was read" in str(ran.exception) and not ran.stdout


@pytest.mark.parametrize(
    ("how", "why"), [("empty.log", "it is empty"), ("empty.gz", "it is empty"), ("junk", "binary data"), ("junk.gz", "binary data")]
)
def test_a_named_log_without_a_line_beside_another_one(app, tmp_path, how, why):
    (tmp_path / "good.log").write_text("step 1\n")
    content = bytes(range(256)) * 800 if how.startswith("junk") else b""
    (tmp_path / how).write_bytes(gzip.compress(content) if how.endswith(".gz") else content)
    ran = run(app, tmp_path / how, tmp_path / "good.log", "--json")
    told = {n["what"]: n for n in json.loads(ran.stdout)["not_examined"]}
    mute = told[str(tmp_path / how)]
    # The shell gives the empty logs of ranks by name, too: nothing is lost by those.
    assert (ran.exit_code, mute["unread"]) == ((0, False) if how.startswith("empty") else (2, True))
    assert why in mute["why"]
    # What is said of the other one is said of it alone.
    assert "may be a healthy log" in told[str(tmp_path / "good.log")]["why"]
    # What was found and not named is left out on purpose; ranks often have an empty log.
    assert run(app, tmp_path, "--json").exit_code == 0
    (tmp_path / "bad.log").write_text("OSError: [Errno 98] Address already in use\n")
    assert run(app, tmp_path / how, tmp_path / "bad.log").exit_code == 1


@pytest.mark.parametrize("at", [12, 5000])
def test_what_is_damaged_reads_like_what_is_cut_off(app, tmp_path, at):
    data = gzip.compress(b"".join(b"step %d of %d\n" % (n, n * 7919 % 1009) for n in range(3000)))
    (tmp_path / "cut.gz").write_bytes(data[:at])
    (tmp_path / "hit.gz").write_bytes(data[:at] + b"\xff" * 8 + data[at + 8 :])
    cut, hit = (run(app, tmp_path / name, "--lang", "en", env={"COLUMNS": "400"}) for name in ("cut.gz", "hit.gz"))
    assert type(cut.exception) is type(hit.exception) and cut.exit_code == hit.exit_code
    if at == 5000:
        assert hit.exit_code == 2 and "hit.gz: its gzip data is damaged; only what stands before the damage" in hit.stdout
        assert all(("what the rest holds is not known" in ran.stdout) for ran in (cut, hit))


def damaged(folder, how):
    data = gzip.compress(b"".join(b"step %d\n" % n for n in range(100_000)))
    (folder / "good.log").write_text("step 1\n")
    if how == "cut off in its first block":
        (folder / "rank1.log.gz").write_bytes(data[:30])
    elif how == "cut off later":
        (folder / "rank1.log.gz").write_bytes(data[: len(data) // 2])
    elif how == "damaged in an archive":
        with tarfile.open(folder / "job.tar", "w") as tar:
            member = tarfile.TarInfo("rank1.log.gz")
            member.size = 30
            tar.addfile(member, io.BytesIO(data[:30]))
    elif how == "unreadable":
        (folder / "rank1.log").symlink_to("rank1.log")
    else:
        (folder / "model.pt").write_bytes(b"x")


@pytest.mark.parametrize(
    ("how", "code"),
    [("cut off in its first block", 2), ("cut off later", 2), ("damaged in an archive", 2), ("unreadable", 2), ("left out on purpose", 0)],
)
def test_damage_is_not_called_healthy(app, tmp_path, how, code):
    damaged(tmp_path, how)
    ran = run(app, tmp_path, "--lang", "en")
    assert ran.exit_code == code and ("what the rest holds is not known" in ran.stdout) is (code == 2)
    (tmp_path / "bad.log").write_text("OSError: [Errno 98] Address already in use\n")
    assert run(app, tmp_path).exit_code == 1


def test_a_log_file(app, tmp_path):
    log = tmp_path / "train.log"
    log.write_text("OSError: [Errno 98] Address already in use\n")
    ran = run(app, log, "--json")
    assert (ran.exit_code, json.loads(ran.stdout)["primary"]["cause"]) == (1, "port-in-use")


def test_bad_input_says_what_is_wrong(app, rundir, tmp_path):
    log = tmp_path / "a.log"
    log.write_text("step 1\n")
    for arguments, words in (
        ((tmp_path / "none",), "there is no"),
        ((rundir.path, log), "give it alone"),
        ((rundir.path, "--incident", 9), "no incident 9; it has: 1, 2"),
        ((log, "--incident", 1), "only a run directory has incidents"),
        ((rundir.path, "--lang", "fr"), "en, zh"),
    ):
        ran = run(app, *arguments)
        assert isinstance(ran.exception, UnhangError) and words in str(ran.exception)


def test_a_damaged_incident_is_a_clear_error(app, rundir):
    rundir.incident(2).write_text('{"number": 2')
    ran = run(app, rundir.path, "--incident", 2)
    assert isinstance(ran.exception, UnhangError) and "is damaged" in str(ran.exception)


def test_the_newest_of_several_runs(app, rundir, tmp_path):
    for name, day in (("z", 1), ("b", 3), ("c", 2)):
        other = RunDir.create(tmp_path / "runs" / name)
        other.write(other.run, {"schema": "unhang/run/1", "started": f"2026-11-0{day}T10:00:00+00:00"})
        other.events.write_text(f'{{"s":9.0,"event":"Finished","exitcode":{day}}}\n')
    ran = run(app, tmp_path / "runs", "--json")
    verdict = msgspec.json.decode(ran.stdout, type=Verdict)
    assert ran.exit_code == 1 and "exit code 3" in verdict.primary.says
    assert any("2 other runs" in n.what and n.why.endswith("runs/b") for n in verdict.not_examined)
    assert "runs/b, the newest of 3 runs" in ran.stderr


def test_a_run_that_was_started_again_and_finished_is_well(app, rundir):
    events = ('{"event":"Started","attempt":0}', '{"event":"Opened","incident":1,"kind":"hang"}', '{"event":"Started","attempt":1}')
    rundir.events.write_text("\n".join((*events, '{"s":9.0,"event":"Finished","exitcode":0}', "")))
    ran = run(app, rundir.path, "--lang", "en")
    assert ran.exit_code == 0 and ran.stdout.startswith("✓ process-stuck") and "✗" not in ran.stdout
    assert msgspec.json.decode(run(app, rundir.path, "--json").stdout)["recovered"] is True
    assert run(app, rundir.path, "--incident", "1").exit_code == 1


def test_what_a_full_disk_refused_is_judged_from_where_it_was_kept(app, rundir, monkeypatch):
    # Named after its run.json, which no other run has.
    rundir.write(rundir.run, {"schema": "unhang/run/1", "started": str(rundir.path)})
    there = RunDir(rundir.elsewhere)
    try:
        shutil.copytree(rundir.path, there.path)
        for number in (1, 2):
            rundir.incident(number).unlink()
        ran = run(app, rundir.path, "--lang", "en")
        assert ran.exit_code == 1 and "process-stuck" in ran.stdout and str(there.path) in ran.stderr
        # Anybody may make a directory of that name.
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
        os.chown(there.path, 4712, -1)
        assert "process-stuck" not in run(app, rundir.path, "--lang", "en").stdout
    finally:
        shutil.rmtree(there.path)


def test_the_newest_of_several_runs_went_well(app, tmp_path):
    for day in (1, 2):
        run_of_day = RunDir.create(tmp_path / "runs" / str(day))
        run_of_day.write(run_of_day.run, {"schema": "unhang/run/1", "started": f"2026-11-0{day}T10:00:00+00:00"})
        run_of_day.events.write_text('{"s":9.0,"event":"Finished","exitcode":0,"attempts":1}\n')
    ran = run(app, tmp_path / "runs", "--lang", "en")
    said, _, rest = ran.stdout.partition("not examined")
    assert ran.exit_code == 0 and said.startswith("✓ nothing is wrong: the run ended with exit code 0") and "1 other run in" in rest
    assert run(app, tmp_path / "runs", "--markdown", "--lang", "en").stdout.startswith("# nothing is wrong")
    # What was not seen of the run itself is another matter.
    run_of_day.run.write_text('{"schema": "unhang/run/1", "sta')
    assert "nothing is wrong" not in run(app, run_of_day.path, "--lang", "en").stdout


def test_an_empty_path_is_said_to_be_one(app, tmp_path):
    for given in ([""], [tmp_path, ""]):
        ran = run(app, *given)
        assert isinstance(ran.exception, UnhangError) and "PATH is empty" in str(ran.exception)


@for_each("name", ["bad.tar.gz", "bad.TGZ", "bad.tar", "bad.zip", "bad.xz", "bad.zst", "bad.bz2"])
@for_each("how", ["named", "in a directory"])
def test_what_is_named_as_an_archive_and_is_none_is_not_called_healthy(app, tmp_path, name, how):
    """What Git LFS leaves, and the page of a download that failed."""
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    ran = run(app, folder / name if how == "named" else folder, "--json")
    assert ran.exit_code == 2
    left = [n for n in json.loads(ran.stdout)["not_examined"] if n["unread"]]
    assert [n["what"] for n in left] == [str(folder / name)] and "nothing packed" in left[0]["why"]
    # It may be a log all the same.
    (folder / name).write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    assert run(app, folder / name, "--json").exit_code == 1


@pytest.mark.parametrize("name", ["run.json", "events.jsonl", "verdict.json", "verdict.md", "incident.json"])
def test_records_are_no_logs(app, tmp_path, name):
    (tmp_path / name).write_text("OSError: [Errno 98] Address already in use\n")
    if name != "run.json":
        (tmp_path / "a.log").write_text("step 1\n")
        ran = run(app, tmp_path, "--json")
        assert (ran.exit_code, json.loads(ran.stdout)["primary"]) == (0, None)
    assert "a record that unhang wrote" in str(run(app, tmp_path / name).exception)


@pytest.mark.parametrize("inner", ["incidents", "incidents/1", "incidents/1/incident.json", "run.json", "fatal", "logs"])
def test_a_part_of_a_run_directory_stands_for_it(app, rundir, inner):
    rundir.fatal(0).mkdir(parents=True)
    rundir.logs(0).mkdir(parents=True)
    ran = run(app, rundir.path / inner, "--json")
    verdict = msgspec.json.decode(ran.stdout, type=Verdict)
    assert (ran.exit_code, verdict.primary.cause) == (1, "process-stuck") and "is part of the run directory" in ran.stderr
    assert ("5.0 s" in ran.stdout) is inner.startswith("incidents/1")


@pytest.mark.parametrize("inner", ["logs/attempt-0", "logs/attempt-0/rank0.err", "output/train.log"])
def test_logs_in_a_run_directory_are_read_as_logs(app, rundir, inner):
    path = rundir.path / inner
    for log in (rundir.log(0, rank=0, stream="err"), rundir.path / "output" / "train.log"):
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("OSError: [Errno 98] Address already in use\n")
    ran = run(app, path, "--json")
    assert json.loads(ran.stdout)["primary"]["cause"] == "port-in-use"
    assert "which knows more: unhang why" in ran.stderr and str(rundir.path.name) in ran.stderr


@pytest.mark.parametrize("how", ["w:gz", "w"])
def test_a_packed_run_directory(app, rundir, tmp_path, how):
    path = tmp_path / "packed"
    with tarfile.open(path, how) as archive:
        archive.add(rundir.path, "runs/mine")
    ran = run(app, path, "--json")
    verdict = msgspec.json.decode(ran.stdout, type=Verdict)
    assert (ran.exit_code, verdict.primary.cause) == (1, "process-stuck") and "packed!runs/mine" in ran.stderr
    assert "5.0 s" in run(app, path, "--json", "--incident", 1).stdout
    with pytest.raises(UnhangError, match=r"packed!runs/mine has no incident 9; it has: 1, 2"):
        raise run(app, path, "--incident", 9).exception
    assert "is for logs" in str(run(app, path, "--attempt", 1).exception)


@pytest.mark.parametrize("how", ["w:gz", "w"])
def test_a_run_directory_in_an_archive_through_a_pipe(app, rundir, tmp_path, how):
    path = tmp_path / "packed"
    with tarfile.open(path, how) as archive:
        archive.add(rundir.path, "runs/mine")
        archive.add(rundir.path, "runs/again")
    ran = run(app, "-", "--json", input=path.read_bytes())
    verdict = msgspec.json.decode(ran.stdout, type=Verdict)
    assert (ran.exit_code, verdict.primary.cause) == (1, "process-stuck") and "stdin!runs/mine, the newest of 2 runs in stdin" in ran.stderr
    assert any(n.what == "1 other run in stdin" for n in verdict.not_examined)
    assert "5.0 s" in run(app, "-", "--json", "--incident", 1, input=path.read_bytes()).stdout
    refused = run(app, "-", "--incident", 1, input=b"step 1\n").exception
    assert isinstance(refused, UnhangError) and "only a run directory has incidents" in str(refused)


def test_a_packed_run_directory_that_is_cut_off(app, rundir, tmp_path):
    rundir.events.write_text('{"s":9.0,"event":"Finished","exitcode":0}\n')
    path = tmp_path / "packed"
    with tarfile.open(path, "w") as archive:
        archive.add(rundir.run, "mine/run.json")
        archive.add(rundir.events, "mine/events.jsonl")
    assert run(app, path).exit_code == 0
    data = path.read_bytes().rstrip(b"\0")
    path.write_bytes(data + bytes(-len(data) % 512))
    ran = run(app, path, "--json")
    assert ran.exit_code == 2 and any(n["unread"] for n in json.loads(ran.stdout)["not_examined"])


def test_another_programs_run_json_hides_no_logs(app, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "run.json").write_text('{"name": "my run"}')
    (tmp_path / "train.log").write_text("OSError: [Errno 98] Address already in use\n")
    ran = run(app, tmp_path, "--json")
    assert (ran.exit_code, json.loads(ran.stdout)["primary"]["cause"]) == (1, "port-in-use")


def test_an_interrupt_ends_it(tmp_path):
    """Whatever is still to be read: thousands of lines, all of which have to be looked at."""
    lines = "\n".join(line for c in catalogue.load().values() for line in c.hits)
    for n in range(40):
        (tmp_path / f"rank{n}.log").write_text(lines * 4)
    process = subprocess.Popen([sys.executable, "-m", "unhang", "why", str(tmp_path)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        waiting = psutil.Process(process.pid)
        deadline = time.monotonic() + 300
        # Its threads are there once it reads.
        while waiting.num_threads() < 2 and time.monotonic() < deadline:
            process.poll()
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 130, process.stderr.read()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


EACH = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)


def interrupted(*argv, number=signal.SIGINT, times=1, when=None):
    """The exit code and what was said, after that many signals, the first once `when` is true of the process."""
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    try:
        deadline = time.monotonic() + 300
        while not when(psutil.Process(process.pid)) and time.monotonic() < deadline:
            time.sleep(0.002)
        for _ in range(times):
            process.send_signal(number)
            time.sleep(0.05)
        said = process.communicate(timeout=300)[1]
        assert not [p for p in psutil.process_iter(["status"]) if os.getpgid(p.pid) == process.pid and p.info["status"] != "zombie"]
        return process.returncode, said
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@EACH
def test_an_interrupt_while_it_is_still_imported(tmp_path, number):
    """The first import behind the handler never ends."""
    (tmp_path / "typer.py").write_text("import pathlib, time\npathlib.Path(__file__).with_name('here').touch()\nwhile True: time.sleep(1)\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from unhang.cli.main import entry; entry()"
    assert interrupted(sys.executable, "-c", code, number=number, when=lambda _: (tmp_path / "here").exists()) == (128 + number, b"")


def test_a_hangup_that_is_ignored_stays_ignored(tmp_path):
    """nohup unhang why ..."""
    (tmp_path / "ok.log").write_text("step 1\n")
    code = (
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); import sys; sys.argv[1:] = ['why', 'ok.log']\n"
        "from unhang.cli import why; before = why._judge\n"
        "why._judge = lambda *a, **k: (signal.raise_signal(signal.SIGHUP), before(*a, **k))[1]\n"
        "from unhang.cli.main import entry; entry()"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, timeout=60).returncode == 0


@EACH
def test_interrupts_that_come_one_after_the_other(tmp_path, number):
    """A log that is large enough for processes of ours."""
    for n in range(3):
        (tmp_path / f"rank{n}.log").write_text("NCCL WARN Call to connect failed\n" * 600_000)
    command = (sys.executable, "-m", "unhang", "why", str(tmp_path))
    code = interrupted(*command, number=number, times=3, when=lambda p: len(p.children()) >= min(2, cores()))
    assert code == (128 + number, b"")


def test_the_same_verdict_without_torch_and_elsewhere(rundir, tmp_path):
    moved = tmp_path / "elsewhere"
    rundir.path.rename(moved)
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from pathlib import Path\n"
        "from unhang.diagnosis.why import judge\n"
        "from unhang.records.rundir import RunDir\n"
        f"print(judge(RunDir.open(Path({str(moved)!r}))).primary.cause)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd="/")
    assert ran.stdout == "process-stuck\n", ran.stderr


@pytest.mark.parametrize("how", ["a run directory", "of several", "an archive", "logs"])
def test_a_report_is_written_beside_what_is_printed(app, rundir, tmp_path, how):
    path = tmp_path / "out.html"
    given = rundir.path
    if how == "of several":
        given = tmp_path
        rundir.events.write_bytes(b"")
    elif how == "an archive":
        given = tmp_path / "run.tar.gz"
        with tarfile.open(given, "w:gz") as tar:
            tar.add(rundir.path, "run")
    elif how == "logs":
        given = tmp_path / "rank0.log"
        given.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    shown = run(app, given, "--report", path, "--json")
    page = path.read_text("utf-8")
    assert shown.exit_code == 1
    assert msgspec.json.decode(shown.stdout, type=Verdict).primary.says in page.replace("&lt;", "<").replace("&gt;", ">")
    assert ("node0" in page) is (how != "logs")
    assert "out.html" in shown.stderr


def test_a_report_that_cannot_be_written_is_the_users_error(app, rundir, tmp_path):
    for path in (tmp_path, tmp_path / "no" / "such" / "folder.html"):
        failed = run(app, rundir.path, "--report", path)
        assert isinstance(failed.exception, UnhangError) and str(path.name) in str(failed.exception)
    assert run(app, rundir.path, "--report", tmp_path / "zh.html", "--lang", "zh").exit_code == 1
    assert 'lang="zh-CN"' in (tmp_path / "zh.html").read_text("utf-8")


def test_a_bundle_is_judged_like_what_it_was_made_of(app, rundir, tmp_path):
    target = tmp_path / "why.tar.gz"
    ran = run(app, rundir.path, "--bundle", target, "--json")
    assert ran.exit_code == 1 and f"wrote {target}" in ran.stderr and "look before you send it" in ran.stderr
    again = run(app, target, "--json")
    assert again.exit_code == 1
    primary, packed = (json.loads(told.stdout)["primary"] for told in (ran, again))
    # No archive names processes to signal.
    for remedy in (*primary["remedies"], *packed["remedies"]):
        remedy["command"] = None
    assert packed == primary


def test_a_bundle_does_not_write_over_a_log(app, tmp_path):
    log = tmp_path / "train.log"
    log.write_text("step 1\n")
    ran = run(app, log, "--bundle", log)
    assert isinstance(ran.exception, UnhangError) and "has to end in .tar.gz" in str(ran.exception)
    assert log.read_text() == "step 1\n"


def test_a_bundle_of_a_running_job_or_to_nowhere_is_refused(app, rundir, tmp_path):
    ran = run(app, "--ras", "localhost:1", "--bundle", tmp_path / "a.tar.gz")
    assert isinstance(ran.exception, UnhangError) and "--bundle is for what has ended" in str(ran.exception)
    ran = run(app, rundir.path, "--bundle", tmp_path / "no" / "a.tar.gz")
    assert isinstance(ran.exception, UnhangError) and "cannot write the bundle" in str(ran.exception)


@pytest.mark.parametrize(
    ("member", "code"),
    [("run.json", 2), ("events.jsonl", 2), ("incidents/2/incident.json", 1), ("host.json", 1), ("verdict.json", 1), ("logs/attempt-0/rank0.out", 1)],
)
def test_a_fifo_in_a_run_directory_is_not_waited_for(rundir, member, code):
    place = rundir.path / member
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    os.mkfifo(place)
    # Nobody writes to it: whoever opens it waits for ever.
    ran = subprocess.run([sys.executable, "-m", "unhang", "why", rundir.path, "--lang", "en"], capture_output=True, text=True, timeout=60)
    assert ran.returncode == code, ran.stderr
    if member == "events.jsonl":
        assert "it is a FIFO" in ran.stderr


@for_each("option", ["--report", "--bundle"])
@for_each("what", ["a log", "by another program", "a directory", "a fifo", "a link to a log"])
def test_what_is_not_ours_is_not_written_over(app, tmp_path, option, what):
    """`--report *.log` takes the first log for the report."""
    log = tmp_path / "a.log"
    log.write_text("step 1\n")
    target = tmp_path / ("x.html" if option == "--report" else "x.tar.gz")
    if what == "a log":
        target = log
    elif what == "by another program":
        target.write_bytes(b"<!doctype html>\n<title>mine</title>" if option == "--report" else gzip.compress(b"step 1\n"))
    elif what == "a directory":
        target.mkdir()
    elif what == "a fifo":
        os.mkfifo(target)
    else:
        target.symlink_to(log)
    before = target.read_bytes() if target.is_file() else None
    other = tmp_path / "b.log"
    other.write_text("step 1\n")
    ran = run(app, other, option, target)
    assert isinstance(ran.exception, UnhangError) and option in str(ran.exception) and not ran.stdout
    assert before is None or target.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted({"a.log", "b.log", target.name})


def test_a_record_of_a_run_is_not_written_over(app, rundir):
    before = rundir.run.read_bytes()
    assert isinstance(run(app, rundir.path, "--report", rundir.run).exception, UnhangError)
    assert rundir.run.read_bytes() == before


@pytest.mark.parametrize("name", ["out.html", "OUT.HTM", "why.tar.gz"])
def test_what_is_ours_is_written_anew(app, rundir, tmp_path, name):
    target = tmp_path / name
    target.write_bytes(b"")
    option = "--bundle" if name.endswith(".gz") else "--report"
    for _ in range(2):
        assert run(app, rundir.path, option, target).exit_code == 1 and target.stat().st_size > 500
    assert [p.name for p in tmp_path.iterdir() if p != rundir.path] == [name]


@pytest.mark.parametrize("target", ["no/x.html", "no/x.tar.gz"])
def test_the_verdict_is_told_whatever_becomes_of_the_files(app, rundir, tmp_path, target):
    ran = run(app, rundir.path, "--report" if target.endswith("html") else "--bundle", tmp_path / target)
    assert isinstance(ran.exception, UnhangError) and "cannot write" in str(ran.exception) and "process-stuck" in ran.stdout


def test_a_report_of_a_run_whose_name_is_no_text(app, rundir, tmp_path):
    named = rundir.path.rename(tmp_path / os.fsdecode(b"r\xff"))
    assert run(app, named, "--report", tmp_path / "x.html", "--json").exit_code == 1
    assert "r\\udcff" in (tmp_path / "x.html").read_text("utf-8")


def test_logs_of_a_run_without_incidents_do_not_lead_back_to_it(app, tmp_path):
    rundir = RunDir.create(tmp_path / "killed")
    rundir.write(rundir.run, {"schema": "unhang/run/1"})
    rundir.events.write_text('{"s":0.1,"event":"Started","attempt":0,"pid":7,"command":["x"]}\n')
    log = rundir.log(0, rank=0, stream="err")
    log.parent.mkdir(parents=True)
    log.write_text("step 1\n")
    assert f"unhang why {log.parent}" in run(app, rundir.path).stdout
    ran = run(app, log.parent)
    assert "which has no record of an incident" in ran.stderr and "unhang why" not in ran.stderr


@pytest.mark.parametrize("how", ["pipe", "file", "nothing"])
def test_a_pipe_without_a_path_is_read(tmp_path, how):
    log = tmp_path / "train.log"
    log.write_text("RuntimeError: DataLoader timed out after 120 seconds\n")
    argv = [sys.executable, "-m", "unhang", "why", "--json"]
    with log.open() if how == "file" else open(os.devnull) as stdin:
        given = {"input": log.read_text()} if how == "pipe" else {"stdin": stdin}
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=100, **given)
    told = json.loads(done.stdout)
    if how == "nothing":
        assert (done.returncode, told["schema"]) == (2, "unhang/refusal/1")
    else:
        assert (done.returncode, told["primary"]["cause"]) == (1, "dataloader-deadlock")


@pytest.mark.parametrize(("name", "quoted"), [("train.log", "train.log"), ("my log", "'my log'"), ("-x.log", "./-x.log")])
def test_what_is_left_out_comes_with_the_command_that_shows_it(app, tmp_path, monkeypatch, name, quoted):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("RuntimeError: Gloo connectFullMesh failed ...\n")
    said = " ".join(run(app, f"./{name}" if name.startswith("-") else name, "--lang", "en", "--attempt", "1").stdout.split())
    assert f"more: unhang why --all --attempt 1 {quoted}" in said
