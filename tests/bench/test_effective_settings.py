"""What ranks ran with, and the proof that arms differed in it."""

from __future__ import annotations

import pytest
from tests.chinese import zh

from unhang.bench.arms import Arm
from unhang.bench.effective_settings import Difference, EqualArms, gather, prove
from unhang.bench.records import Run
from unhang.bench.step_times import RankFile, summarize
from unhang.launch import events
from unhang.launch.command import Command

COMMAND = Command(argv=("train.py",), python="python", name="train", world_size=2, port=None)
OFF = "NCCL_SHM_DISABLE"


def arm(name, *changes):
    return Arm(name=name, asked=name, command=COMMAND, changes=frozenset(changes))


def rank(number, variables, started_with=None, argv=("train.py",), **torch):
    torch = {"backend": "nccl", "world size": "2", **torch}
    return RankFile(rank=number, argv=argv, started_with=started_with or variables, variables=variables, torch=torch)


def run(name, *ranks, told=()):
    found, own = gather(ranks, told)
    steps = summarize([0.1] * 20)
    return Run(round=1, arm=name, run_dir=f"round-1-{name}", ended="", elapsed_s=1.0, steps=steps, in_force=found, set_by_script=own)


def proven(a, b, *changes):
    return prove([arm("a", *changes), arm("b", *changes)], {"a": a, "b": b})[0]


def test_arms_that_differ_as_asked():
    a, b = (run(name, *(rank(r, {OFF: value, "TORCHELASTIC_RUN_ID": name}) for r in (0, 1))) for name, value in (("a", "0"), ("b", "1")))
    assert proven(a, b, OFF).differences == (Difference(name=OFF, arm="b", values=("0", "1"), is_asked=True),)


def test_a_script_that_overrides_the_variable_is_refused_with_that_reason():
    a, b = (run(name, rank(0, {OFF: "1"}, {OFF: value})) for name, value in (("a", "0"), ("b", "1")))
    with pytest.raises(EqualArms) as refused:
        proven(a, b, OFF)
    assert str(refused.value) == f"arms a and b do not differ in anything effective: {OFF}=1 in both"
    assert refused.value.cause == f"the script sets {OFF} itself, whatever it was started with"
    # Whichever arm is the one that was overridden.
    with pytest.raises(EqualArms, match="in both") as other:
        proven(b, a, OFF)
    assert other.value.cause == refused.value.cause and zh(refused.value.message) and "setdefault" in refused.value.hint


def test_a_difference_that_nobody_asked_for_does_not_make_the_arms_differ():
    a, b = (run(name, rank(0, {OFF: "1", "TORCHINDUCTOR_CACHE_DIR": f"/tmp/{name}"}, {OFF: "1"})) for name in "ab")
    with pytest.raises(EqualArms):
        proven(a, b, OFF)
    assert len(proven(a, b).differences) == 1


def test_a_setting_of_the_hook_counts_where_it_changed_something():
    def told(now):
        return events.Overridden(what="loader num_workers", was="4", now=now, ranks=(0, 1), place=None)

    plain = rank(0, {})
    with pytest.raises(EqualArms, match="loader num_workers not applied in both"):
        proven(run("a", plain), run("b", plain), "loader num_workers")
    assert [d.values for d in proven(run("a", plain, told=[told("0")]), run("b", plain, told=[told("2")]), "loader num_workers").differences] == [
        ("0", "2")
    ]


def test_torch_compile_is_no_difference_where_nothing_was_compiled():
    off = {"TORCH_COMPILE_DISABLE": "1"}
    used, unused, without = (
        run(name, rank(0, own, **{"torch.compile": how})) for name, own, how in (("a", {}, "used"), ("a", {}, "not used"), ("b", off, "not used"))
    )
    with pytest.raises(EqualArms, match=r"torch\.compile=not used in both"):
        proven(unused, without, "torch.compile")
    assert [(d.name, d.is_asked) for d in proven(used, without, "torch.compile").differences] == [("torch.compile", True)]


def test_more_than_was_asked_for_and_less_are_reported():
    a, b = run("a", rank(0, {"NCCL_ALGO": "Ring"})), run("b", rank(0, {"NCCL_ALGO": "Tree", "OMP_NUM_THREADS": "4"}))
    found = proven(a, b, "NCCL_ALGO", "NCCL_PROTO")
    assert [(d.name, d.values, d.is_asked) for d in found.differences] == [
        ("NCCL_ALGO", ("Ring", "Tree"), True),
        ("OMP_NUM_THREADS", (None, "4"), False),
    ]
    assert found.without_effect == (("b", "NCCL_PROTO"),)


def test_one_rank_that_differs_is_a_difference():
    a = run("a", rank(0, {OFF: "0"}), rank(1, {OFF: "0"}))
    b = run("b", rank(0, {OFF: "0"}), rank(1, {OFF: "1"}))
    assert proven(a, b, OFF).differences[0].values == ("0", "rank 0: 0, rank 1: 1")


def test_of_three_arms_any_two_have_to_differ():
    runs = {name: run(name, rank(0, {OFF: value})) for name, value in (("a", "0"), ("b", "1"), ("c", "1"))}
    with pytest.raises(EqualArms, match="arms b and c do not differ"):
        prove([arm(name, OFF) for name in "abc"], runs)


def test_credentials_in_arguments_are_not_recorded():
    found = run("a", rank(0, {}, argv=("train.py", "--api-key", "sk-abcdefghijklmnop1234"))).in_force
    assert "abcdefghijklmnop" not in found["arguments"]


@pytest.mark.parametrize(
    ("torch", "is_read"),
    [
        ({}, True),
        ({"backend": "undefined"}, True),
        ({"backend": "cpu:gloo,cuda:nccl"}, True),
        ({"backend": "gloo"}, False),
        ({"backend": "nccl", "world_size": "1"}, False),
    ],
)
def test_variables_of_nccl_make_no_difference_without_it(torch, is_read):
    torch = {name.replace("_", " "): value for name, value in torch.items()}
    a, b = (run(name, rank(0, {OFF: value, "OMP_NUM_THREADS": value}, **torch)) for name, value in (("a", "0"), ("b", "1")))
    if is_read:
        assert proven(a, b, OFF)
    else:
        with pytest.raises(EqualArms, match=f"backend (gloo|nccl) with [12] ranks reads none of {OFF}"):
            proven(a, b, OFF)
    assert proven(a, b, OFF, "OMP_NUM_THREADS")


def test_what_open_mpi_gives_each_start_is_no_difference():
    own = {"OMPI_MCA_ess_base_jobid": "7", "OMPI_COMM_WORLD_RANK": "0", "OMPI_MCA_orte_hnp_uri": "1.0", "OMPI_MCA_btl": "tcp"}
    assert {name for name in run("a", rank(0, own)).in_force if name.startswith("OMPI")} == {"OMPI_MCA_btl"}


def test_the_run_directory_in_an_argument_is_no_difference():
    one = rank(0, {}, argv=("train.py", "--output", "/runs/round-1-a/out"))
    assert gather([one], (), run_dir="/runs/round-1-a")[0]["arguments"] == "train.py --output '{run_dir}/out'".replace("'", "")
