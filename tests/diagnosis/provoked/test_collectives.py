"""Ranks that fail, leave, are late, or do not do the same."""

from __future__ import annotations

import gzip
import shutil

import pytest

pytestmark = pytest.mark.torch

DETAIL = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}


def test_an_exception_on_one_rank_under_torchrun(provoke):
    ran = provoke.torchrun("train.py", "--fault", "exception")
    assert ran.exitcode == 1
    primary = provoke.primary(ran.log)
    assert (primary["cause"], primary["ranks"]) == ("rank-exception", [1])
    assert "sample 8841 has no label" in primary["says"]
    assert "train.py:" in primary["where"] and primary["where"].endswith("in read_batch")


def test_an_exception_on_one_rank_started_by_hand(provoke):
    """Nothing in the log says whose line it is: rank 1's traceback stands among rank 0's words of the lost connection."""
    ran = provoke.ranks("train.py", "--fault", "exception")[0]
    primary = provoke.primary(ran.log)
    assert primary["cause"] == "rank-exception" and "sample 8841" in primary["says"]
    assert primary["where"].endswith("in read_batch")


@pytest.mark.integration
def test_an_exception_in_a_log_of_its_own(provoke):
    logs = [r.log for r in provoke.ranks("train.py", "--fault", "exception", separate=True)]
    primary = provoke.primary(logs[0].parent)
    assert (primary["cause"], primary["ranks"]) == ("rank-exception", [1])
    assert primary["evidence"][0]["source"].endswith("rank1.log")


def test_logs_that_torchrun_kept_and_someone_packed(provoke):
    folder = provoke.tmp_path / "logs"
    provoke.torchrun("train.py", "--fault", "exception", options=("--nproc-per-node=2", f"--log-dir={folder}", "--redirects=3"))
    packed = 0
    for log in folder.rglob("*.log"):
        with log.open("rb") as plain, gzip.open(f"{log}.gz", "wb") as gz:
            shutil.copyfileobj(plain, gz)
        log.unlink()
        packed += 1
    assert packed == 4
    primary = provoke.primary(folder)
    assert (primary["cause"], primary["ranks"]) == ("rank-exception", [1])
    assert "sample 8841" in primary["says"]


def test_the_same_exception_on_every_rank(provoke):
    ran = provoke.torchrun("train.py", "--fault", "exceptions")
    primary = provoke.primary(ran.log)
    assert (primary["cause"], primary["ranks"]) == ("rank-exception", [0, 1])
    assert "KeyError" in primary["says"] and "input_ids" in primary["says"]


@pytest.mark.integration
def test_the_odd_one_out_of_four(provoke):
    ran = provoke.torchrun("train.py", "--fault", "odd-exception", options=("--nproc-per-node=4",))
    primary = provoke.primary(ran.log)
    assert (primary["cause"], primary["ranks"]) == ("rank-exception", [2])


@pytest.mark.integration
def test_an_exception_under_mp_spawn(provoke, port):
    ran = provoke(provoke.python, provoke.scripts / "spawn_ranks.py", "--port", str(port), "--fault", "exception")
    primary = provoke.primary(ran.log)
    assert (primary["cause"], primary["ranks"]) == ("rank-exception", [1])
    assert "crop 512" in primary["says"] and primary["where"].endswith("in augment")


def test_a_rank_that_has_no_more_batches(provoke):
    logs = [r.log for r in provoke.ranks("train.py", "--fault", "leaves", separate=True)]
    verdict = provoke.verdict(logs[0].parent)
    # Nobody says in these logs that rank 1 ended in order: the lost connection is all there is, and no cause may be called established.
    assert verdict["primary"]["cause"] in ("peer-lost", "premature-exit") and not verdict["contributing"]
    assert verdict["primary"]["standing"] in ("not-established", "possible")
    assert "premature-exit" in verdict["primary"]["cause"] + verdict["primary"]["says"]


def test_other_sizes_on_one_rank(provoke):
    ran = provoke.ranks("evaluate.py", "--fault", "sizes")[0]
    primary = provoke.primary(ran.log)
    assert primary["cause"] == "collective-mismatch" and "8 bytes arrived where 4 were expected" in primary["says"]


@pytest.mark.parametrize("fault", ["sizes", "operations"])
def test_torch_compares_the_collectives(provoke, fault):
    ran = provoke.ranks("evaluate.py", "--fault", fault, "--timeout-s", "10", env=DETAIL)[0]
    primary = provoke.primary(ran.log)
    assert (primary["cause"], primary["standing"]) == ("collective-mismatch", "established")


def test_parameters_without_a_gradient(provoke):
    ran = provoke.torchrun("train.py", "--fault", "unused")
    primary = provoke.primary(ran.log)
    assert (primary["cause"], primary["standing"]) == ("unused-parameters", "established")


def test_a_barrier_under_a_test_of_the_rank(provoke):
    """Every rank tells by its traceback where it waited: rank 0 in a barrier, the others in an all_reduce of another line."""
    ran = provoke.ranks("evaluate.py", "--fault", "guarded", "--timeout-s", "3", world=3)[0]
    primary = provoke.primary(ran.log)
    assert (primary["cause"], primary["ranks"]) == ("rank0-guarded-collective", [0])


@pytest.mark.integration
def test_torch_compares_a_barrier_of_rank_0(provoke):
    ran = provoke.ranks("evaluate.py", "--fault", "guarded", "--timeout-s", "3", world=3, env=DETAIL)[0]
    assert provoke.primary(ran.log)["cause"] in ("rank0-guarded-collective", "collective-mismatch")


def test_torchs_comparisons_and_ddp(provoke):
    """torch 2.13 on Gloo: a wrapped group ends DDP's constructor with a segmentation fault."""
    # One rank: two that crash at once write into each other's lines, letter by letter.
    ran = provoke.torchrun("train.py", options=("--nproc-per-node=1",), env={**DETAIL, "PYTHONFAULTHANDLER": "1"})
    if ran.exitcode == 0:
        pytest.skip("this torch has no such bug")
    assert "exitcode  : -11" in ran.text
    assert provoke.primary(ran.log)["cause"] == "framework-bug"


def test_rank_0_tokenises_past_the_timeout(provoke):
    ran = provoke.torchrun("tokenise.py", "--timeout-s", "6", "--shard-s", "1.6")
    assert ran.exitcode == 1
    primary = provoke.primary(ran.log)
    assert primary["cause"] == "straggler-timeout"
    assert "okeniz" in " ".join(e["text"] for e in primary["evidence"])


@pytest.mark.parametrize("script", ["train.py", "tokenise.py"])
def test_healthy(provoke, script):
    ran = provoke.torchrun(script)
    assert ran.exitcode == 0, ran.text
    assert provoke.verdict(ran.log)["primary"] is None


def test_healthy_with_torchs_comparisons(provoke):
    ran = provoke.ranks("evaluate.py", env=DETAIL)[0]
    assert ran.exitcode == 0, ran.text
    assert provoke.verdict(ran.log)["primary"] is None


@pytest.mark.integration
def test_healthy_under_mp_spawn(provoke, port):
    ran = provoke(provoke.python, provoke.scripts / "spawn_ranks.py", "--port", str(port))
    assert ran.exitcode == 0, ran.text
    assert provoke.verdict(ran.log)["primary"] is None
