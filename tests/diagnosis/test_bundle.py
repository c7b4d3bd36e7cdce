"""A bundle: no credential in it, and the same verdict from it."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import os
import pickle
import random
import tarfile
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.records.match import jobs

from unhang.diagnosis import bundle
from unhang.diagnosis.logs import judge_logs
from unhang.diagnosis.recorders import judge_dumps
from unhang.diagnosis.redact import HIDDEN
from unhang.diagnosis.why import judge, judge_packed
from unhang.model import Verdict
from unhang.records import packed
from unhang.records.flight.recordings import sum_up
from unhang.records.logs.finding import find

TOKEN = "hf_" + "aBcDeFgHiJ" * 4
KEY = "\n".join(
    ["-----BEGIN PRIVATE KEY-----", *["MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7" for _ in range(4)], "-----END PRIVATE KEY-----"]
)
BROKEN = """Traceback (most recent call last):
  File "train.py", line 12, in <module>
    step()
  File "train.py", line 7, in step
    torch.empty(1 << 40, device="cuda")
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.21 GiB is free.
"""


def long_log(before: int = 40_000, after: int = 40_000) -> str:
    steps = [f"[rank0]: step {n} loss 0.1{n}" for n in range(before + after)]
    steps[1] = f"export HF_TOKEN={TOKEN}"
    steps[2] = KEY
    steps[before - 3] = f"logging in with --token {TOKEN}"
    return "\n".join([*steps[:before], BROKEN.strip(), *(["torchrun: shutting down"] * after)]) + "\n"


def contents(archive) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        return {m.name: tar.extractfile(m).read() for m in tar.getmembers()}


def places(verdict: Verdict, prefix: str = "") -> list[tuple[str, int | None, str]]:
    return [(e.source.removeprefix(prefix), e.line, e.text) for e in verdict.primary.evidence]


def of_logs(target, *paths):
    found = find([str(p) for p in paths])
    judged = judge_logs([str(p) for p in paths], found=found)
    written = bundle.of_files(target, found.sources, found.dumps, judged.verdict, [(m.source, m.line) for m in judged.timeline], judged.places)
    return judged.verdict, written


def test_a_long_log_is_judged_alike_without_most_of_it_and_without_credentials(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rank0.err").write_text(long_log())
    verdict, written = of_logs(tmp_path / "why.tar.gz", "rank0.err")
    assert written.left_out == ()
    kept = contents(tmp_path / "why.tar.gz")
    text = kept["rank0.err"].decode()
    assert TOKEN not in text and "MIIEvQ" not in text and "HF_TOKEN=" in text
    assert len(text) < 0.6 * len(long_log())
    # Each line at its own number.
    assert text.count("\n") == long_log().count("\n")
    again = judge_logs(["why.tar.gz"]).verdict
    assert (again.primary.cause, again.primary.ranks, again.primary.says) == (verdict.primary.cause, verdict.primary.ranks, verdict.primary.says)
    assert places(again, "why.tar.gz!") == places(verdict)
    assert verdict.primary.cause == "gpu-oom"
    (said,) = (n for n in again.not_examined if n.what == "why.tar.gz!rank0.err")
    assert "left out when it was bundled" in said.why and not said.unread


def test_a_short_log_is_whole(tmp_path):
    (tmp_path / "a.log").write_text(BROKEN)
    of_logs(tmp_path / "b.tgz", tmp_path / "a.log")
    (log,) = (text for name, text in contents(tmp_path / "b.tgz").items() if name.endswith("a.log"))
    assert log.decode() == BROKEN


def test_lines_far_apart_stay_where_they_were():
    log = b"".join(b"line %d\n" % n for n in range(1, 100_001)) + b"no end"
    text = bundle._excerpt(io.BytesIO(log), [50_000, 50_010, 70_000], 40).split(b"\n")
    kept = [n for n, line in enumerate(text, 1) if line.startswith(b"line")]
    assert all(text[n - 1] == b"line %d" % n for n in kept)
    around = bundle.AROUND_LINES if 3 * bundle.AROUND_LINES < 80 else 2
    assert kept == [*range(1, 11), *range(50_000 - around, 50_000 + around + 1), *range(50_010 - around, 50_010 + around + 1),
                    *range(70_000 - around, 70_000 + around + 1), *range(100_001 - 29, 100_001)]  # fmt: skip
    assert text[-1] == b"no end" and text[10] == b"[unhang: lines left out: 49,987]"


def test_the_end_stays_whole_whatever_is_found_in_it():
    log = b"".join(b"line %d\n" % n for n in range(1, 1001))
    text = bundle._excerpt(io.BytesIO(log), [995], 40, [980]).split(b"\n")
    assert text[970:1000] == [b"line %d" % n for n in range(971, 1001)]
    assert sum(t.startswith(b"[unhang") for t in text) == 1


def test_what_tells_attempts_apart_and_the_times_of_files_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [f"step {n} loss 0.{n}" for n in range(60_000)]
    for at, said in ((20_000, BROKEN), (25_000, "Setting OMP_NUM_THREADS environment variable for each process to be 1"), (40_000, BROKEN)):
        lines.insert(at, said)
    (tmp_path / "a.log").write_text("\n".join(lines))
    os.utime(tmp_path / "a.log", (1_762_000_000.5, 1_762_000_000.5))
    found = find(["a.log"])
    judged = judge_logs(["a.log"], found=found)
    assert judged.attempts == 2
    bundle.of_files(tmp_path / "b.tar.gz", found.sources, (), judged.verdict, (), judged.places)
    again = judge_logs(["b.tar.gz"])
    assert (again.attempts, again.verdict.primary.cause, again.verdict.primary.says) == (2, judged.verdict.primary.cause, judged.verdict.primary.says)
    with tarfile.open(tmp_path / "b.tar.gz") as tar:
        assert tar.getmember("a.log").mtime == 1_762_000_000.5


def test_no_credential_in_the_name_of_a_log(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = f"job HF_TOKEN={TOKEN}.log"
    (tmp_path / name).write_text(BROKEN)
    of_logs(tmp_path / "b.tar.gz", name)
    assert TOKEN not in " ".join(contents(tmp_path / "b.tar.gz"))


@pytest.mark.parametrize("ends", [b"", b"\n"])
def test_lines_without_end_and_without_number(ends):
    log = b"x" * 3_000_000 + b"\n\n" + b"\xff\xfe not utf-8 \x00" + ends
    assert bundle._excerpt(io.BytesIO(log), [-1, 0, 99], 40) == b"x" * bundle.LINE_BYTES + b"\n\n\xff\xfe not utf-8 \x00" + ends


SECRETS = [
    ("", TOKEN, ""),
    ("AWS_SECRET_ACCESS_KEY=", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", " x"),
    ("https://bob:", "p4ssw0rdp4ssw0rd", "@git.example.org/x.git"),
    ("-e 'PASSWORD=", "twowords andmore", "' image"),
    ('{"name": "DB_PASSWORD", "value": "', "twowords andmore", '"}'),
    ("", "eyJ" + "hbGciOiJIUzI1NiJ9" * 3 + "." + "eyJzdWIiOiIxMjM0In0" * 9 + ".sigsigsigsig", ""),
    ("wandb login ", "0123456789abcdef0123456789abcdef01234567", ""),
    ("curl -u me:", "abcdefabcdef", " x"),
    ("Cookie: session=", "abcdefabcdef; b=ghijklmn", ""),
    ("", "-----BEGIN PRIVATE KEY-----\\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSj\\n-----END PRIVATE KEY-----", " x"),
]


def leaked(text: str, secret: str, least: int = 5) -> set[str]:
    """The pieces of a secret that stand in a text."""
    return {secret[n : n + least] for n in range(len(secret) - least + 1) if secret[n : n + least] in text} - {"-----", "BEGIN", "PRIVATE KEY"}


@pytest.fixture
def short_lines(monkeypatch):
    """Redacting takes long."""
    monkeypatch.setattr(bundle, "LINE_BYTES", 400)
    monkeypatch.setattr(bundle, "_AHEAD_BYTES", 400)


@pytest.mark.usefixtures("short_lines")
@pytest.mark.parametrize(("before", "secret", "behind"), SECRETS)
def test_a_line_is_cut_without_the_beginning_of_a_credential(before, secret, behind):
    whole = f"{before}{secret}{behind}"
    for offset in range(bundle.LINE_BYTES - len(whole) - 3, bundle.LINE_BYTES + 2):
        line = "\n".join(["step 1", "=" * (offset - 1) + f" {whole} " + "rest of the line " * 40, "step 2", ""])
        kept = bundle._excerpt(io.BytesIO(line.encode()), [], 40).decode()
        assert kept.startswith("step 1\n" + "=" * min(offset - 1, bundle.LINE_BYTES)) and kept.endswith("\nstep 2\n") and kept.count("\n") == 3
        assert not leaked(kept, secret), offset
        assert max(map(len, kept.split("\n"))) <= bundle.LINE_BYTES + 2 * len(HIDDEN)


WORDS = [*(f"{a}{b}{c}" for a, b, c in SECRETS), "'", '"', " ", ",", "token=", "password: ", "\\", "://", "x" * 20, "…", "@"]


@pytest.mark.usefixtures("short_lines")
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=8).map("".join), st.integers(0, 400))
def test_what_a_cut_line_shows_stands_in_the_whole_line_without_credentials(text, before):
    whole = ("-" * before + text + " end" * 100).encode()
    assert bundle._clean(whole).startswith(bundle._cut(whole))


class Endless:
    """A line of a gigabyte, with a credential across every place at which it may be cut."""

    def __init__(self, size: int) -> None:
        self.left = size

    def read(self, size: int) -> bytes:
        size = min(size, self.left)
        self.left -= size
        return (b"x" * 50 + b" " + TOKEN.encode() + b" ").ljust(100) * (size // 100) + b"." * (size % 100)


def test_a_line_of_a_gigabyte_takes_no_memory():
    tracemalloc.start()
    try:
        kept = bundle._excerpt(Endless(1 << 30), [], 40)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * 1024**2 and len(kept) <= bundle.LINE_BYTES and not leaked(kept.decode(), TOKEN)


@pytest.mark.parametrize("prefix", ["", "[rank0]: ", "    | ", "2026-11-02 10:00:00,123 "])
@pytest.mark.parametrize("told", [[], [60], [52, 70]])
def test_of_a_private_key_nothing_stays_wherever_lines_are_left_out(prefix, told):
    key = ["-----BEGIN RSA PRIVATE KEY-----", *(random.Random(n).randbytes(48).hex() for n in range(60)), "c2hvcnQ=", "-----END RSA PRIVATE KEY-----"]
    lines = [*(f"step {n}" for n in range(20)), *(prefix + k for k in key), *(f"step {n}" for n in range(20, 200))]
    lines.insert(50, "[rank1]: step 11 loss 0.25")
    kept = bundle._excerpt(io.BytesIO("\n".join(lines).encode()), told, 40).decode().split("\n")
    assert len(kept) == len(lines) and not any(leaked("\n".join(kept), k, 8) for k in key[1:-2])
    # Each of the other lines stands where it stood.
    assert all(k == line for k, line in zip(kept, lines, strict=True) if "step" in k and "[unhang" not in k)
    assert kept[0] == "step 0" and kept[-1] == "step 199"


@pytest.mark.parametrize("named", [["password: |", "  one", "  two"], ['"password":', '  "three"'], ["- name: DB_PASSWORD", "  value: four"]])
def test_what_stands_below_a_name_that_is_left_out_does_not_stay(named):
    filler = [f"step {n}" for n in range(200)]
    for at in range(60, 70):
        lines = [*filler[:at], *named, *filler]
        kept = bundle._excerpt(io.BytesIO("\n".join(lines).encode()), [64 + bundle.AROUND_LINES], 40).decode().split("\n")
        assert len(kept) == len(lines) and not any(word in line for line in kept for word in ("one", "two", "three", "four"))


def test_code_that_looks_for_a_key_begins_none():
    log = b'  if "-----BEGIN PRIVATE KEY-----" in text:\n' + b"".join(b"line %d\n" % n for n in range(30)) + b"aGVsbG8gd29ybGQgaGVsbG8gd29ybGQ=\n"
    kept = bundle._excerpt(io.BytesIO(log), [], 400)
    assert kept.endswith(b"aGVsbG8gd29ybGQgaGVsbG8gd29ybGQ=\n") and b"line 0\n" in kept and b"line 29\n" in kept


def test_names_lead_nowhere_and_none_is_lost(tmp_path, monkeypatch):
    (tmp_path / "x").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in ("../x/a.log", "a.log", "x/a.log"):
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        with open(name, "w") as f:
            f.write(f"{name}\n{BROKEN}")
    of_logs(tmp_path / "b.tar.gz", "../x/a.log", "a.log", "x/a.log")
    logs = {name: text for name, text in contents(tmp_path / "b.tar.gz").items() if name.endswith("a.log")}
    assert set(logs) == {"x/a.log", "a.log", "2-x/a.log"}
    assert len({text.splitlines()[0] for text in logs.values()}) == 3


def test_packed_logs_are_unpacked_in_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for rank in range(3):
        (tmp_path / f"rank{rank}.err").write_text(f"token={TOKEN}\n{BROKEN if rank == 1 else 'fine'}\n")
    with tarfile.open(tmp_path / "logs.tar.xz", "w:xz") as tar:
        for rank in range(3):
            tar.add(f"rank{rank}.err", f"job/rank{rank}.err")
    verdict, _ = of_logs(tmp_path / "b.tar.gz", "logs.tar.xz")
    kept = contents(tmp_path / "b.tar.gz")
    assert [n for n in kept if "rank" in n] == [f"logs.tar.xz/job/rank{r}.err" for r in range(3)]
    assert not any(TOKEN.encode() in text for text in kept.values())
    again = judge_logs(["b.tar.gz"]).verdict
    assert (again.primary.cause, again.primary.ranks) == (verdict.primary.cause, verdict.primary.ranks) == ("gpu-oom", (1,))


def test_a_run_directory_stays_one(tmp_path, build, lab):
    builder = build()
    for rank in range(3):
        frames = lab.in_collective("all_reduce", lab.user(20, "step")) if rank != 1 else (lab.user(30, "evaluate"),)
        entries = [*lab.steps(5), lab.Entry(seq=6, done=False, frames=lab.in_collective("all_reduce", lab.user(20, f"key={TOKEN}")))]
        builder.rank(rank, frames=frames, entries=entries if rank != 1 else lab.steps(5), world=3)
    builder.log(0, f"wandb login {'a1' * 20}\nHF_TOKEN={TOKEN}\n").dmesg("[1.0] fine\n").fatal(2, "Fatal Python error\n")
    rundir = builder.write()
    rundir.write(
        rundir.run, {"schema": "unhang/run/1", "environ": {"HF_TOKEN": TOKEN, "NCCL_DEBUG": "INFO"}, "command": ["train.py", "--api-key", TOKEN]}
    )
    rundir.write_bytes(rundir.events, f'{{"event":"x","token":"{TOKEN}"}}\n{{"event": "cut o'.encode())
    verdict = judge(rundir)
    written = bundle.of_run(tmp_path / "run.tar.gz", rundir, verdict)
    assert written.left_out == ()
    kept = contents(tmp_path / "run.tar.gz")
    assert written.files == len(kept)
    assert not any(TOKEN.encode() in text for text in kept.values())
    assert json.loads(kept["run.json"])["environ"]["NCCL_DEBUG"] == "INFO"
    with packed.folder() as into:
        again = judge_packed(packed.unpack(find([str(tmp_path / "run.tar.gz")]).sources[0], "runs", into), "run.tar.gz")
    assert again.primary == verdict.primary


def test_what_leads_out_of_a_run_directory_or_cannot_be_cleaned_is_left_out(tmp_path, build):
    rundir = build().rank(0).rank(1).write()
    (tmp_path / "elsewhere").write_text("secret of somebody else")
    rundir.log(0, rank=0, stream="err").parent.mkdir(parents=True)
    rundir.log(0, rank=0, stream="err").symlink_to(tmp_path / "elsewhere")
    rundir.write_bytes(rundir.host, b'{"token": "' + TOKEN.encode())
    rundir.write_bytes(rundir.flight(1, 0), b"\x80\x02}q\x00(X\x09\x00\x00\x00pg_config")
    written = bundle.of_run(tmp_path / "b.tar.gz", rundir, judge(rundir))
    assert {n.what for n in written.left_out} == {"logs/attempt-0/rank0.err", "host.json", "incidents/1/flight/rank_0"}
    kept = contents(tmp_path / "b.tar.gz")
    assert "host.json" not in kept and "logs/attempt-0/rank0.err" not in kept
    assert {n["what"] for n in json.loads(kept["bundle.json"])["left_out"]} == {n.what for n in written.left_out}


def test_dumps_are_written_anew(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "dumps"
    folder.mkdir()
    default = ("0", "default_pg")
    for rank in range(4):
        last = jobs.entry(3, default, 4, "broadcast" if rank == 2 else "all_reduce", 4, 30, "started", t=9)
        last["frames"] = [{"name": f"login({TOKEN!r})", "filename": "/home/user/train.py", "line": 30}]
        raw = jobs.dump(
            [*(jobs.entry(i, default, i + 1, "all_reduce", 4, 20, "completed", t=i) for i in range(3)), last], {"0": ("default_pg", [0, 1, 2, 3])}
        )
        data = pickle.dumps(raw, protocol=2)
        (folder / f"nccl_trace_rank_{rank}").write_bytes(data if rank != 3 else data[:-200])
    before = judge_dumps(find(["dumps"]).dumps)
    found = find(["dumps"])
    bundle.of_files(tmp_path / "b.tar.gz", found.sources, found.dumps, before)
    kept = contents(tmp_path / "b.tar.gz")
    assert not any(TOKEN.encode() in text for text in kept.values())
    for name in kept:
        if "rank" in name:
            (tmp_path / name).write_bytes(kept[name])
    after = judge_dumps(find(["dumps"]).dumps)
    assert dataclasses.replace(after, inputs=()) == dataclasses.replace(before, inputs=())


def test_a_digest_stays_as_it_is(tmp_path):
    default = ("0", "default_pg")
    for rank in range(2):
        raw = jobs.dump([jobs.entry(0, default, 1, "all_reduce", 4 + rank, 20, "started", t=1)], {"0": ("default_pg", [0, 1])})
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(raw, protocol=2))
    path = sum_up(sorted(tmp_path.glob("rank_*")), tmp_path / "digests", "h0", clean=str).path
    assert bundle._dump(path) == path.read_bytes()


def test_several_dumps_in_a_file(tmp_path):
    default = ("0", "default_pg")
    raw = {str(r): jobs.dump([jobs.entry(0, default, 1, "all_reduce", 4 + r, 20, "started", t=1)], {"0": ("default_pg", [0, 1])}) for r in range(2)}
    (tmp_path / "host.json").write_text(json.dumps({"ranks": raw}))
    (tmp_path / "again").write_bytes(bundle._dump(tmp_path / "host.json"))
    one, two = judge_dumps([tmp_path / "host.json"]), judge_dumps([tmp_path / "again"])
    assert one.primary.cause == two.primary.cause == "collective-mismatch" and one.primary.ranks == two.primary.ranks


def test_a_bundle_that_cannot_be_written_leaves_what_was_there(tmp_path, monkeypatch):
    (tmp_path / "a.log").write_text(BROKEN)
    target = tmp_path / "b.tar.gz"
    of_logs(target, tmp_path / "a.log")
    before = target.read_bytes()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bundle._Bundle, "add", full)
    monkeypatch.setattr(bundle._Bundle, "leave_out", full)
    with pytest.raises(OSError, match="No space"):
        of_logs(target, tmp_path / "a.log")
    assert target.read_bytes() == before and sorted(p.name for p in tmp_path.iterdir()) == ["a.log", "b.tar.gz"]


def test_what_was_packed_is_not_called_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.log.gz").write_bytes(gzip.compress(BROKEN.encode()))
    of_logs(tmp_path / "b.tar.gz", "job.log.gz")
    assert contents(tmp_path / "b.tar.gz")["job.log"].decode() == BROKEN


GAVE_UP = (
    "[rank0]:[E1120 09:45:10.100000000 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=101, "
    "OpType=ALLREDUCE, NumelIn=1000, NumelOut=1000, Timeout(ms)=600000) ran for 600010 milliseconds before timing out."
)


@pytest.mark.parametrize(
    ("behind", "cause"),
    [
        ([], "process-stuck"),
        (["tokens per second"] * 60 + ["step=1 loss=2.0", *["tokens per second"] * 90], "collective-timeout"),
        (["tokens per second"] * 60 + ["2026-11-20 09:10:01,000 INFO up", *["tokens per second"] * 90], "collective-timeout"),
        (["tokens per second"] * 3_000, "collective-timeout"),
    ],
)
def test_stacks_are_judged_alike_however_old_they_are(tmp_path, monkeypatch, behind, cause):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bundle, "MOST_LINES", 80)
    # Deeper than the lines that stay around anything that is found.
    stack = [f'  File "/w/data.py", line {n}, in f{n}'.replace(", in", " in") for n in range(60)]
    log = ["loading"] * 500 + ["Thread 0x00007f0000000700 (most recent call first):", *stack, *behind]
    (tmp_path / "rank1.log").write_text("\n".join(log) + "\n")
    (tmp_path / "rank0.log").write_text(GAVE_UP + "\n")
    verdict, written = of_logs(tmp_path / "why.tar.gz", "rank0.log", "rank1.log")
    assert (verdict.primary.cause, verdict.primary.ranks, written.left_out) == (cause, (1,), ())
    again = judge_logs(["why.tar.gz"]).verdict
    assert (again.primary.cause, again.primary.standing, again.primary.says) == (cause, verdict.primary.standing, verdict.primary.says)
    assert places(again, "why.tar.gz!") == places(verdict)
    assert [(n.why, n.what.partition(" (")[0]) for n in again.not_examined if "the stack" in n.what] == [
        (n.why, n.what.partition(" (")[0]) for n in verdict.not_examined if "the stack" in n.what
    ]
