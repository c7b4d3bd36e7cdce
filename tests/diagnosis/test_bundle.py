"""A bundle: no credential in it, and the same verdict from it."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import pickle
import tarfile

import pytest
from tests.flight import jobs

from unhang.diagnosis import bundle
from unhang.diagnosis.logs import judge_logs
from unhang.diagnosis.recorders import examine
from unhang.diagnosis.why import judge, judge_packed
from unhang.flight.read_all import sum_up
from unhang.logs.discovery import find
from unhang.model import Verdict
from unhang.records import packed

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


def contents(archive) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        return {m.name: tar.extractfile(m).read() for m in tar.getmembers()}


def places(verdict: Verdict, prefix: str = "") -> list[tuple[str, int | None, str]]:
    return [(e.source.removeprefix(prefix), e.line, e.text) for e in verdict.primary.evidence]


def of_logs(target, *paths):
    found = find([str(p) for p in paths])
    verdict = judge_logs([str(p) for p in paths], found=found).verdict
    return verdict, bundle.of_files(target, found.sources, found.dumps, verdict)


def test_a_log_is_whole_and_judged_alike_without_credentials(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    key = KEY.replace("\n", "\n[rank1]: ")
    secret = f"export HF_TOKEN={TOKEN}\n[rank1]: {key}\nDB_PASSWORD:\n  twowords\n\xff\n{'x' * 300_000} --token {TOKEN}\n"
    (tmp_path / "rank0.err").write_text(f"step 1\n{secret}{BROKEN}no end", "latin-1")
    os.utime(tmp_path / "rank0.err", (1_762_000_000.5, 1_762_000_000.5))
    verdict, written = of_logs(tmp_path / "why.tar.gz", "rank0.err")
    assert written.left_out == []
    log = contents(tmp_path / "why.tar.gz")["rank0.err"]
    assert not any(word in log for word in (TOKEN.encode(), b"MIIEvQ", b"twowords")) and log.endswith(BROKEN.encode() + b"no end")
    assert log.count(b"\n") == (tmp_path / "rank0.err").read_bytes().count(b"\n") and b"HF_TOKEN=" in log and b"\xff" in log
    again = judge_logs(["why.tar.gz"]).verdict
    assert (again.primary.cause, again.primary.ranks, again.primary.says) == (verdict.primary.cause, verdict.primary.ranks, verdict.primary.says)
    assert places(again, "why.tar.gz!") == places(verdict) and verdict.primary.cause == "gpu-oom"
    with tarfile.open(tmp_path / "why.tar.gz") as tar:
        assert tar.getmember("rank0.err").mtime == 1_762_000_000.5


def test_what_does_not_fit_is_left_out_and_named(tmp_path, monkeypatch):
    """Whatever it is, and however well it is packed; what comes behind it and fits is in the archive."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bundle, "LIMIT_BYTES", 4000)
    (tmp_path / "a.log").write_text("step 1\n" * 800)
    (tmp_path / "b.log.gz").write_bytes(gzip.compress(b"step 1\n" * 200_000))
    (tmp_path / "c.log").write_text(BROKEN)
    (tmp_path / "d.log").write_text("step 1\n" * 550)
    raw = jobs.dump([jobs.entry(0, ("0", "default_pg"), 1, "all_reduce", 4, 20, "started", t=1)] * 60, {"0": ("default_pg", [0, 1])})
    (tmp_path / "rank_0").write_text(json.dumps(raw))
    found = find(["a.log", "b.log.gz", "c.log", "d.log", "rank_0"])
    written = bundle.of_files(tmp_path / "b.tar.gz", found.sources, found.dumps, judge_logs(["c.log"]).verdict)
    assert {n.what for n in written.left_out} == {"a.log", "b.log.gz", "d.log", "rank_0"}
    assert all(n.unread and "does not fit" in n.why for n in written.left_out)
    kept = contents(tmp_path / "b.tar.gz")
    assert set(kept) == {"c.log", "verdict.json", "bundle.json"}
    assert {n["what"] for n in json.loads(kept["bundle.json"])["left_out"]} == {"a.log", "b.log.gz", "d.log", "rank_0"}


def test_no_credential_in_the_name_of_a_log(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = f"job HF_TOKEN={TOKEN}.log"
    (tmp_path / name).write_text(BROKEN)
    of_logs(tmp_path / "b.tar.gz", name)
    assert TOKEN not in " ".join(contents(tmp_path / "b.tar.gz"))


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
    assert written.left_out == []
    kept = contents(tmp_path / "run.tar.gz")
    assert written.names == set(kept)
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
    (rundir.path / "logs/attempt-0/rank1.err.gz").write_bytes(gzip.compress(f"HF_TOKEN={TOKEN}".encode()))
    written = bundle.of_run(tmp_path / "b.tar.gz", rundir, judge(rundir))
    assert {n.what for n in written.left_out} == {"logs/attempt-0/rank0.err", "logs/attempt-0/rank1.err.gz", "host.json", "incidents/1/flight/rank_0"}
    kept = contents(tmp_path / "b.tar.gz")
    assert not {n.what for n in written.left_out} & set(kept) and not any(TOKEN.encode() in text for text in kept.values())
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
    before = examine(find(["dumps"]).dumps).verdict
    found = find(["dumps"])
    bundle.of_files(tmp_path / "b.tar.gz", found.sources, found.dumps, before)
    kept = contents(tmp_path / "b.tar.gz")
    assert not any(TOKEN.encode() in text for text in kept.values())
    for name in kept:
        if "rank" in name:
            (tmp_path / name).write_bytes(kept[name])
    after = examine(find(["dumps"]).dumps).verdict
    assert dataclasses.replace(after, inputs=()) == dataclasses.replace(before, inputs=())


def test_a_digest_stays_as_it_is(tmp_path):
    default = ("0", "default_pg")
    for rank in range(2):
        raw = jobs.dump([jobs.entry(0, default, 1, "all_reduce", 4 + rank, 20, "started", t=1)], {"0": ("default_pg", [0, 1])})
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(raw, protocol=2))
    path = sum_up(sorted(tmp_path.glob("rank_*")), tmp_path / "digests", "h0", clean=str).path
    assert bundle._dump(path, 1 << 20) == path.read_bytes()


def test_several_dumps_in_a_file(tmp_path):
    default = ("0", "default_pg")
    raw = {str(r): jobs.dump([jobs.entry(0, default, 1, "all_reduce", 4 + r, 20, "started", t=1)], {"0": ("default_pg", [0, 1])}) for r in range(2)}
    (tmp_path / "host.json").write_text(json.dumps({"ranks": raw}))
    (tmp_path / "again").write_bytes(bundle._dump(tmp_path / "host.json", 1 << 20))
    one, two = examine([tmp_path / "host.json"]).verdict, examine([tmp_path / "again"]).verdict
    assert one.primary.cause == two.primary.cause == "collective-mismatch" and one.primary.ranks == two.primary.ranks


def test_a_bundle_that_cannot_be_written_leaves_what_was_there(tmp_path, monkeypatch):
    (tmp_path / "a.log").write_text(BROKEN)
    target = tmp_path / "b.tar.gz"
    of_logs(target, tmp_path / "a.log")
    before = target.read_bytes()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bundle.Bundle, "add", full)
    with pytest.raises(OSError, match="No space"):
        of_logs(target, tmp_path / "a.log")
    assert target.read_bytes() == before and sorted(p.name for p in tmp_path.iterdir()) == ["a.log", "b.tar.gz"]


def test_what_was_packed_is_not_called_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.log.gz").write_bytes(gzip.compress(BROKEN.encode()))
    of_logs(tmp_path / "b.tar.gz", "job.log.gz")
    assert contents(tmp_path / "b.tar.gz")["job.log"].decode() == BROKEN
