"""What is said of dumps that somebody collected: no guess is called established, and what was left out is told."""

from __future__ import annotations

import pickle
import re

from tests.chinese import zh
from tests.flight import jobs
from tests.flight.test_outcome import ALL4, all_behind, behind_a_lost_call, gloo, history, last, message, rounds

from unhang.diagnosis.recorders import examine


def judge_dumps(paths):
    return examine(paths).verdict


def write(folder, dumps):
    folder.mkdir()
    for name, dump in dumps.items():
        (folder / (name if isinstance(name, str) else f"nccl_trace_rank_{name}")).write_bytes(pickle.dumps(dump, protocol=2))
    return sorted(folder.iterdir())


def fourth(elements, line=20):
    return jobs.entry(9, ("0", "default_pg"), 4, "all_reduce", elements, line, "started", t=9_000_000)


def test_of_names_that_tell_no_rank_nobody_is_more_than_possible(tmp_path):
    names = ("zeta.pkl", "alpha.pkl", "gamma.pkl", "beta.pkl")
    v = judge_dumps(write(tmp_path / "d", {name: jobs.dump([*history(3), fourth(5 if name == "zeta.pkl" else 4)], ALL4) for name in names}))
    assert (v.primary.cause, v.primary.standing, v.primary.ranks) == ("collective-mismatch", "possible", (3,))
    assert "rank 3 is zeta.pkl" in v.primary.says
    # Two hosts that number their own.
    (tmp_path / "hosts").mkdir()
    paths = []
    for n in range(2):
        here = {f"local_rank_{r}": jobs.dump([*history(3), fourth(5 if (n, r) == (1, 0) else 4)], ALL4) for r in range(2)}
        paths += write(tmp_path / "hosts" / f"node{n}", here)
    p = examine(paths).verdict.primary
    assert (p.standing, p.ranks) == ("possible", (2,)) and "rank 2 is node1/local_rank_0" in p.says
    v = judge_dumps(write(tmp_path / "e", {r: jobs.dump([*history(3), fourth(5 if r == 3 else 4)], ALL4) for r in range(4)}))
    assert (v.primary.standing, v.primary.ranks) == ("established", (3,)) and "zeta" not in v.primary.says


def test_what_a_line_issued_before_is_likely_at_most(tmp_path):
    pair = {"0": ("default_pg", [0, 1])}
    p = judge_dumps(write(tmp_path / "d", {r: jobs.dump([*history(3), fourth(5 if r else 4)], pair) for r in range(2)})).primary
    assert (p.standing, p.ranks) == ("likely", (1,)) and "the same line issued something else before" in p.says
    # Of four ranks two are not here: they may all have issued the new one.
    p = judge_dumps(write(tmp_path / "e", {r: jobs.dump([*history(3), fourth(5 if r == 2 else 4)], ALL4) for r in (1, 2)})).primary
    assert (p.standing, p.ranks) == ("likely", (1, 2)) and "which of them went astray cannot be told" in p.says
    assert {e.text.split(":")[0] for e in p.evidence} == {"rank 1", "rank 2"}


def test_a_dump_that_is_older_or_of_another_run_is_told(tmp_path):
    dumps = {r: jobs.dump([*history(15), last(16, "started", t=16_000)], ALL4) for r in range(3)} | {3: jobs.dump(history(10), ALL4)}
    v = examine(write(tmp_path / "d", dumps)).verdict
    assert (v.primary.cause, v.primary.ranks) == ("unknown", (0, 1, 2)) and "the dump of rank 3 is older than the others'" in v.primary.says
    assert any(n.what == "what rank 3 did after its dump was taken" for n in v.not_examined)
    for r in range(3):
        dumps[r]["entries"] = [e | {"time_created_ns": e["time_created_ns"] + 86_400 * 10**9} for e in dumps[r]["entries"]]
    v = examine(write(tmp_path / "e", dumps)).verdict
    assert v.primary.ranks == (0, 1, 2) and "the dump of rank 3 is of another world size or time" in v.primary.says
    assert any(n.what.startswith("the dump of rank 3 (") and "another run than the dump of rank 0" in n.why for n in v.not_examined)


def test_where_an_older_dump_waits_is_told(tmp_path):
    dumps = {r: jobs.dump(history(15), ALL4) for r in range(3)} | {3: jobs.dump([*history(9), last(10, "started", t=9000)], ALL4)}
    p = examine(write(tmp_path / "d", dumps)).verdict.primary
    assert p.cause == "unknown" and p.says.endswith("premature-exit, network-blocked, network-mtu)") and "the dump of rank 3 is older" in p.says


def test_every_rank_that_holds_up_others_is_named(tmp_path):
    names = {"0": ("default_pg", list(range(6)))} | {f"dp{i}": ("dp", [i, i + 3]) for i in range(3)}
    dumps = {r: jobs.dump(history(3), {g: v for g, v in names.items() if r in v[1]}) for r in range(6)}
    for r in range(3):
        dumps[r]["entries"].append(jobs.entry(5, (f"dp{r}", "dp"), 1, "all_reduce", 4, 30, "started", t=10_000 + r))
    v = examine(write(tmp_path / "d", dumps)).verdict
    assert (v.primary.cause, v.primary.ranks, v.contributing) == ("collective-timeout", (3, 4, 5), ())
    assert "likewise rank 4 never came to all_reduce #1 of group dp1 (dp), in which rank 1 waits" in v.primary.says


def test_a_reason_of_another_kind_contributes(tmp_path):
    """Ranks 0 and 1 parted in a group of theirs; rank 3 has not come to that of the two others."""
    names = {"0": ("default_pg", [0, 1, 2, 3]), "a": ("tp", [0, 1]), "b": ("dp", [2, 3])}
    dumps = {r: jobs.dump(history(3), {g: v for g, v in names.items() if r in v[1]}) for r in range(4)}
    for r in range(2):
        dumps[r]["entries"].append(jobs.entry(5, ("a", "tp"), 1, ("all_reduce", "broadcast")[r], 4, 30 + r, "started", t=10_000))
    dumps[2]["entries"].append(jobs.entry(5, ("b", "dp"), 1, "all_reduce", 4, 40, "started", t=10_000))
    v = examine(write(tmp_path / "d", dumps)).verdict
    assert (v.primary.cause, v.primary.ranks) == ("collective-mismatch", (0, 1))
    assert [(f.cause, f.standing, f.ranks) for f in v.contributing] == [("collective-timeout", "not-established", (3,))]


def test_beside_a_mismatch_who_has_issued_nothing_since(tmp_path):
    dumps = {r: jobs.dump(history(3), ALL4) for r in range(4)}
    for r in (0, 1, 3):
        dumps[r]["entries"].append(last(4, "started", op="broadcast" if r == 3 else "all_reduce"))
    p = examine(write(tmp_path / "d", dumps)).verdict.primary
    # The line of rank 3 issued something else before.
    assert (p.cause, p.standing, p.ranks) == ("collective-mismatch", "likely", (3,)) and "; rank 2 has issued nothing after #3" in p.says
    assert any(e.text.startswith("rank 2: last call #3") for e in p.evidence)


def test_who_has_not_started_what_others_have_is_likely_in_earlier_work(tmp_path):
    dumps = {r: jobs.dump([*history(3), last(4, "scheduled" if r == 1 else "started")], ALL4) for r in range(4)}
    p = examine(write(tmp_path / "d", dumps)).verdict.primary
    assert (p.cause, p.standing, p.ranks) == ("unknown", "not-established", (1,))
    assert "not started it, as ranks 0, 2 and 3 have: likely its GPU is still in earlier work" in p.says


def test_the_last_call_of_each_that_never_came(tmp_path):
    dumps = {r: jobs.dump([*history(3), last(4, "started", t=3000)], {"0": ("default_pg", [0, 1, 2, 3, 4])}) for r in (0, 1, 2)}
    groups = {"0": ("default_pg", [0, 1, 2, 3, 4]), "1": ("dp", [3])}
    dumps[3] = jobs.dump([*history(3), jobs.entry(3, ("1", "dp"), 1, "broadcast", 8, 41, "completed", t=4000)], groups)
    dumps[4] = jobs.dump(history(3), {"0": ("default_pg", [0, 1, 2, 3, 4])})
    p = examine(write(tmp_path / "d", dumps)).verdict.primary
    assert p.cause == "collective-timeout" and p.ranks == (3, 4)
    assert (
        "; the last call of rank 3 was broadcast #1 of group 1 at /home/user/train.py:41 in step; the last call of rank 4 was all_reduce #3" in p.says
    )
    assert "rank 4 的最后一次调用是组 0 的 all_reduce #3" in zh(p.says)


def test_a_dump_without_calls_beside_others_is_told(tmp_path):
    dumps = {r: gloo([1, 2, 3, 4] if r == 0 else [1, 2, 3], done=[1, 2, 3]) for r in (0, 1)} | {2: gloo([])}
    v = examine(write(tmp_path / "d", dumps)).verdict
    assert v.primary.ranks == (1,)
    assert ("the calls of rank 2", False) in [(n.what, n.unread) for n in v.not_examined]


def test_who_came_to_two_groups_in_another_order_and_where(tmp_path):
    groups = {g: (g, [0, 1, 2]) for g in "xy"}
    v = examine(write(tmp_path / "d", {r: rounds("xy", 5, groups=groups, last_order="yx" if r == 2 else "xy") for r in range(3)})).verdict.primary
    assert (v.cause, v.standing, v.ranks, v.where) == ("collective-mismatch", "likely", (2,), "/home/user/train.py:35 in step")
    assert v.says.endswith("; rank 2 came to group y first, where more than half of the ranks of both came to group x first")
    assert "rank 2 先到了组 y" in zh(v.says) and v.evidence[0].text.startswith("rank 2: #6 ")
    pair = {g: (g, [0, 1]) for g in "xy"}
    v = examine(write(tmp_path / "e", {r: rounds("xy", 5, groups=pair, last_order="yx" if r == 1 else "xy") for r in range(2)})).verdict.primary
    assert v.ranks == (1,) and v.says.endswith("; rank 1 came to group y first, where in earlier rounds it had been group x")
    v = examine(write(tmp_path / "f", {r: rounds("xy", 0, groups=pair, last_order="yx" if r == 1 else "xy") for r in range(2)})).verdict.primary
    assert (v.ranks, v.where) == ((0, 1), None)


def test_of_a_dump_that_may_be_of_another_run_nobody_is_accused(tmp_path):
    dumps = {r: jobs.dump([*history(13), last(14, "started", op="broadcast" if r == 2 else "all_reduce", t=14_000)], ALL4) for r in range(4)}
    v = examine(write(tmp_path / "d", dumps)).verdict
    assert v.primary.standing == "established" and not any("another run" in n.why for n in v.not_examined)
    dumps[2]["entries"] = [e | {"time_created_ns": e["time_created_ns"] + 22 * 10**9} for e in dumps[2]["entries"]]
    v = examine(write(tmp_path / "e", dumps)).verdict
    assert (v.primary.cause, v.primary.ranks) == ("unknown", (0, 1, 3)) and "the dump of rank 2 is of another world size or time" in v.primary.says
    (n,) = [n for n in v.not_examined if n.what.startswith("the dump of rank 2 (")]
    assert "another run than the dump of rank 0" in n.why and "unless the clock of its host is wrong" in n.why


def test_of_one_dump_whose_name_tells_no_rank_none_is_named(tmp_path):
    v = judge_dumps(write(tmp_path / "d", {"dump": jobs.dump([*history(3), last(4, "started")], ALL4)}))
    p = v.primary
    assert (p.cause, p.ranks) == ("unknown", ()) and p.says.startswith("the rank of this dump waits in all_reduce #4 of group 0")
    assert "of the other ranks there is no dump" in p.says and zh(p.says).startswith("该转储所属的 rank 正在等待组 0")
    told = " ".join([p.says, zh(p.says), *(e.text for e in p.evidence), *(f"{n.what} {n.why} {zh(n.what)} {zh(n.why)}" for n in v.not_examined)])
    assert not re.search(r"ranks? \d", told) and ("which rank the dump is of", "its name does not tell") in [(n.what, n.why) for n in v.not_examined]
    p = judge_dumps(write(tmp_path / "e", {"dump": jobs.dump(history(3), ALL4)})).primary
    assert (p.cause, p.ranks) == ("unknown", ()) and p.says.startswith("the rank of this dump does not wait in a recorded call")
    p = judge_dumps(write(tmp_path / "f", {"trace_rank_2": jobs.dump([*history(3), last(4, "started")], ALL4)})).primary
    assert p.ranks == (2,) and p.says.startswith("rank 2 waits")


def test_a_message_tells_whose_dump_it_is(tmp_path):
    p = judge_dumps(write(tmp_path / "d", {"dump": jobs.dump([*history(3), message(9, "recv 2<-0")], ALL4)})).primary
    assert (
        (p.cause, p.ranks) == ("unknown", (2,))
        and p.says.startswith("rank 2 waits in a receive from rank 0")
        and "of rank 0 there is no dump" in p.says
    )


def test_dumps_without_calls_do_not_tell_why(tmp_path):
    v = examine(write(tmp_path / "d", {r: gloo([]) for r in range(2)})).verdict
    (n,) = [n for n in v.not_examined if n.what == "the calls of all ranks"]
    assert v.primary is None and n.unread
    assert n.why == "the dumps hold none: none was made, or the flight recorder was off, or kept only what was pending"
    assert zh(n.why).startswith("转储中没有调用：没有发出过调用，或者")


def test_what_only_counters_tell_is_said(tmp_path):
    v = examine(write(tmp_path / "d", behind_a_lost_call())).verdict
    assert (v.primary.cause, v.primary.standing, v.primary.ranks) == ("unknown", "not-established", (3,))
    assert "#2 of group 1 (ckpt) is not over by the counters of ranks 0 to 2 (#1 is), and it has been overwritten there" in v.primary.says
    assert "rank 3 has issued nothing after #1 of it" in v.primary.says and [r.id for r in v.primary.remedies] == ["larger-ring"]
    v = examine(write(tmp_path / "e", behind_a_lost_call(apart_ns=1000))).verdict
    assert v.primary is None and any("the counters may lag" in n.why for n in v.not_examined)


def test_what_a_ring_has_overwritten_may_hang(tmp_path):
    p = examine(write(tmp_path / "d", all_behind(27, completed=5))).verdict.primary
    assert "the code agrees" not in p.says and "by the counters no more than #5 is over" in p.says
    assert (p.cause, p.ranks, [r.id for r in p.remedies]) == ("unknown", (0, 1, 2, 3), ["larger-ring"])


def test_of_messages_that_are_left_out_the_recorder_is_not_called_off(tmp_path):
    pair = {"0": ("default_pg", [0, 1])}
    sent = [
        jobs.entry(0, ("0", "default_pg"), 0, what, 4, 20, "scheduled", t=0, backend="xccl") | {"is_p2p": True} for what in ("send 0->1", "recv 1<-0")
    ]
    v = examine(write(tmp_path / "d", {r: jobs.dump([sent[r]], pair) for r in range(2)})).verdict
    assert v.primary is None and [n.unread for n in v.not_examined] == [True, True]
    assert all("XCCL does not tell" in n.why for n in v.not_examined)
    v = examine(write(tmp_path / "e", {r: jobs.dump([], pair) for r in range(2)})).verdict
    assert [n.what for n in v.not_examined] == ["the calls of all ranks"]
