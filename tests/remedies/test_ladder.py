"""The ladder on machines where one rung works and those below do not."""

import pytest
from tests.chinese import both, zh
from tests.tables import for_each

from unhang.model import Evidence, Finding, Remedy, Steps, Verdict
from unhang.remedies import ladder, ladder_steps, trial
from unhang.settings.catalogue import PRESETS


def climb(bench, **more):
    candidates = ladder_steps.rungs(
        verdict=more.pop("verdict", None),
        installed=bench.installed,
        backend=bench.backend,
        world_size=bench.world_size,
        conservative=PRESETS["conservative"].settings,
    )
    return ladder.climb(bench, candidates, **more)


def has(**wanted):
    return lambda environ, size, backend: all(environ.get(name) == value for name, value in wanted.items()) and backend == "nccl"


# What has to be so, and the smallest change that brings it about.
MACHINES = {
    "as-is": (lambda *_: True, {}),
    "cumem-host": (has(NCCL_CUMEM_HOST_ENABLE="0"), {"cumem-host": False}),
    "shm": (has(NCCL_SHM_DISABLE="1"), {"shm": False}),
    "p2p": (has(NCCL_P2P_DISABLE="1"), {"p2p": False}),
    "ib": (has(NCCL_IB_DISABLE="1"), {"ib": False}),
    "interface": (has(NCCL_SOCKET_IFNAME="=lo"), {"interface": "lo"}),
    "nvls": (has(NCCL_NVLS_ENABLE="0"), {"nvls": False}),
    "gloo": (lambda environ, size, backend: backend == "gloo", {"backend": "gloo"}),
    "half": (lambda environ, size, backend: size <= 4, {"processes": 4}),
    "two": (lambda environ, size, backend: size <= 2, {"processes": 2}),
    "one": (lambda environ, size, backend: size == 1, {"processes": 1}),
    # Two at once: neither alone is enough.
    "shm-and-ib": (has(NCCL_SHM_DISABLE="1", NCCL_IB_DISABLE="1"), {"shm": False, "ib": False}),
    "cumem-and-nvls": (has(NCCL_CUMEM_HOST_ENABLE="0", NCCL_NVLS_ENABLE="0"), {"cumem-host": False, "nvls": False}),
    "gloo-and-half": (lambda environ, size, backend: backend == "gloo" and size <= 4, {"backend": "gloo", "processes": 4}),
    "nothing": (lambda *_: False, None),
}


@for_each("name", MACHINES)
def test_it_ends_on_the_smallest_change(world, bench, name):
    world.works, smallest = MACHINES[name]
    world.started.clear()
    found = climb(bench())
    assert found.chosen == smallest
    assert len(world.started) <= 20
    if smallest:
        assert found.confirmed
        # The last that was run is what was chosen.
        environ, size, backend = world.started[-1]
        assert world.works(environ, size, backend) and found.dropping[-1].choice == smallest


def test_what_the_verdict_prescribes_comes_first(world, bench):
    world.works = has(NCCL_P2P_DISABLE="1")
    remedy = Remedy(id="no-p2p", says="", env={"NCCL_P2P_DISABLE": "1"})
    found = climb(bench(), verdict=Verdict(primary=Finding(cause="p2p-broken", standing="likely", says="", remedies=(remedy,))))
    assert [r.id for r in found.rungs] == ["as-is", "prescribed-p2p-off"]
    assert found.chosen == {"p2p": False}


def test_a_name_that_is_wrong_is_unset_before_another_is_tried(world, bench):
    world.works = lambda environ, size, backend: environ.get("NCCL_SOCKET_IFNAME", "") in ("", "=lo")
    wrong = {"PATH": "/usr/bin", "NCCL_SOCKET_IFNAME": "nosuch0"}
    found = climb(bench(environ=wrong), verdict=Verdict(primary=Finding(cause="interface-selection", standing="established", says="")))
    assert [(r.id, r.title.split(" (")[0]) for r in found.rungs[1:]] == [("prescribed-interface-auto", "unset NCCL_SOCKET_IFNAME GLOO_SOCKET_IFNAME")]
    assert found.chosen == {"interface": "auto"} and found.confirmed
    assert found.environment == {"NCCL_SOCKET_IFNAME": "", "GLOO_SOCKET_IFNAME": ""}
    assert "alone" not in found.says
    # Also where the verdict says nothing of it.
    assert climb(bench(environ=wrong)).chosen == {"interface": "auto"}


def test_the_loopback_is_chosen_with_a_warning(world, bench):
    world.works, _ = MACHINES["interface"]
    found = climb(bench())
    assert found.chosen == {"interface": "lo"}
    assert "reaches this host alone" in found.says and "只能到达本机" in zh(found.says)
    rungs = {r.id: r for r in found.rungs}
    assert "several hosts" in rungs["interface"].cost
    assert "changes nothing" in rungs["interface-auto"].skipped


def test_what_the_probes_do_not_show_acquits_no_setting(world, bench):
    remedy = Remedy(id="no-p2p", says="", env={"NCCL_P2P_DISABLE": "1"})
    found = climb(bench(), verdict=Verdict(primary=Finding(cause="p2p-broken", standing="established", says="", remedies=(remedy,))))
    assert found.chosen == {} and not found.confirmed and len(world.started) == 1
    assert "does not show" in found.says and "no setting" not in found.says
    assert [(r.id, "try it in a run" in r.skipped) for r in found.rungs[1:]] == [("prescribed-p2p-off", True)]


def test_a_prescription_that_fails_is_dropped_again(world, bench):
    world.works = has(NCCL_IB_DISABLE="1")
    remedy = Remedy(id="no-p2p", says="", env={"NCCL_P2P_DISABLE": "1"})
    found = climb(bench(), verdict=Verdict(primary=Finding(cause="p2p-broken", standing="likely", says="", remedies=(remedy,))))
    assert found.chosen == {"ib": False}


def test_loader_workers_are_prescribed_where_they_were_killed(world, bench):
    world.fails_at = "loader-workers"
    world.works = lambda environ, size, backend: environ.get("UNHANG_LOADER_WORKERS") == "0"
    finding = Finding(
        cause="shm-exhausted", standing="likely", says="", evidence=(Evidence(source="log", text="DataLoader worker (pid 7) is killed"),)
    )
    found = climb(bench(loaders=True), verdict=Verdict(primary=finding))
    assert found.chosen == {"loader-workers": 0}


def test_without_gpus_what_only_nccl_has_is_skipped_and_told(world, bench):
    world.works = lambda environ, size, backend: size == 1
    found = climb(bench(bench.no_gpu, world_size=2))
    skipped = {r.id: r.skipped for r in found.rungs if r.trial is None}
    assert {"cumem-host-off", "shm-off", "p2p-off", "ib-off", "nvls-off", "conservative", "gloo"} <= set(skipped)
    assert all(skipped.values()) and all(zh(r.skipped) for r in found.rungs if r.trial is None)
    assert found.chosen == {"processes": 1}


def test_an_nccl_that_does_not_read_it_is_never_told_to(world, bench):
    old = bench.installed(nccl=(2, 18, 1))
    world.works = has(NCCL_SHM_DISABLE="1")
    found = climb(bench(old))
    assert "does not read NCCL_CUMEM_HOST_ENABLE" in next(r.skipped for r in found.rungs if r.id == "cumem-host-off")
    assert found.chosen == {"shm": False}


def test_what_passes_once_and_not_again_is_not_chosen(world, bench):
    passed = []

    def works(environ, size, backend):
        if backend == "nccl" and environ.get("NCCL_SHM_DISABLE") == "1" and "NCCL_P2P_DISABLE" not in environ:
            passed.append(environ)
            return len(passed) == 1
        return environ.get("NCCL_P2P_DISABLE") == "1"

    world.works = works
    found = climb(bench())
    assert found.chosen == {"p2p": False}


def test_it_ends_when_its_time_is_over(world, bench, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(ladder.time, "monotonic", lambda: now[0])

    def works(environ, size, backend):
        now[0] += 30
        return False

    world.works = works
    found = climb(bench(), limit_s=100)
    # A third is kept for what comes after a rung that passes.
    assert found.chosen is None and len(world.started) == 3
    assert "100 s" in found.says and "100 s" in found.rungs[-1].skipped


def test_a_command_that_could_not_be_run_decides_only_its_own_rung(bench, world):
    def own(choice, size, left_s):
        if choice.get("shm") is False and "p2p" not in choice:
            return both("no time", "")
        return Steps(exitcode=0 if choice.get("shm") is False and choice.get("p2p") is False else 1)

    found = climb(bench(own=own))
    assert {r.id: r.trial.outcome for r in found.rungs if r.trial is not None}["shm-off"] == "inconclusive"
    # Whether shm=off alone is enough nobody knows.
    assert {"shm", "p2p"} <= set(found.chosen) and "smallest" not in found.says


def test_what_could_not_be_decided_is_not_tried_again(bench, world):
    """A name that the verdict says is wrong: the rung that unsets it comes by the verdict, and once more by the order of costs."""
    asked = []

    def own(choice, size, left_s):
        asked.append(dict(choice))
        return Steps(exitcode=1) if not choice else both("no time", "没有时间")

    wrong = {"PATH": "/usr/bin", "NCCL_SOCKET_IFNAME": "nosuch0"}
    found = climb(bench(own=own, environ=wrong), verdict=Verdict(primary=Finding(cause="interface-selection", standing="established", says="")))
    assert asked.count({"interface": "auto"}) == 1
    assert found.chosen is None and "could not be decided" in found.says


def test_a_command_that_no_setting_mends_ends_the_climb_at_once(bench, world):
    """Also behind rungs at which the probes fail, where it is not run."""
    world.works = lambda environ, size, backend: environ.get("NCCL_SHM_DISABLE") == "1"
    asked = []

    def own(choice, size, left_s):
        asked.append(dict(choice))
        return trial.Wrong(why=both("train.py does not know --max-stepz", "中文"))

    found = climb(bench(own=own))
    assert found.chosen is None and len(asked) == 1 and found.rungs[-1].trial.wrong_command
    assert "no setting mends your command" in found.says and "--max-stepz" in found.says and "中文" in zh(found.says)


def test_a_command_that_fails_whatever_is_set_is_named(bench, world):
    found = climb(bench(own=lambda *_: Steps(exitcode=1, says="no module named nosuch")))
    assert found.chosen is None and "your command" in found.says and "no module named nosuch" in found.says
    assert "no module named nosuch" in zh(found.says)
    # One that the probes fail with says something of the machine.
    world.works = lambda environ, size, backend: backend == "gloo"
    assert "your command" not in climb(bench(own=lambda *_: Steps(exitcode=1, says="no module named nosuch"))).says


def test_of_a_climb_only_the_first_logs_stay(world, bench, tmp_path, monkeypatch):
    monkeypatch.setattr(trial.tempfile, "tempdir", str(tmp_path))
    world.works = lambda *_: False
    found = climb(bench())
    (kept,) = tmp_path.iterdir()
    assert [s.logs for r in found.rungs if r.trial is not None for s in r.trial.stages if s.logs] == [str(kept)]


def test_where_there_is_a_run_they_lie_in_its_directory(world, bench, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr(trial.tempfile, "tempdir", str(elsewhere))
    world.works = lambda *_: False
    found = climb(bench(trials=tmp_path / "run" / "trials"))
    # That directory cannot be made: a trial does not end for that.
    assert [s.logs for r in found.rungs if r.trial is not None for s in r.trial.stages if s.logs] == [str(*elsewhere.iterdir())]
    trial.shutil.rmtree(*elsewhere.iterdir())
    (tmp_path / "run").mkdir()
    found = climb(bench(trials=tmp_path / "run" / "trials"))
    (kept,) = (tmp_path / "run" / "trials").iterdir()
    assert [s.logs for r in found.rungs if r.trial is not None for s in r.trial.stages if s.logs] == [str(kept)]
    assert "via SHM" in (kept / "rank0.log").read_text() and not list(elsewhere.iterdir())


def test_who_cancels_a_trial_leaves_no_logs(world, bench, tmp_path, monkeypatch):
    monkeypatch.setattr(trial.tempfile, "tempdir", str(tmp_path))
    world.works = lambda *_: False
    climb(bench(cancelled=lambda: bool(world.started)))
    assert len(world.started) == 1 and not list(tmp_path.iterdir())


def test_a_trial_in_the_middle_of_which_somebody_cancels_has_not_failed(world, bench):
    world.works = lambda *_: False
    found = climb(bench(cancelled=lambda: len(world.started) == 2))
    interrupted = found.rungs[1].trial
    assert (interrupted.outcome, interrupted.says) == ("inconclusive", "interrupted") and interrupted.verdict is None
    assert not any(s.state == "failed" for s in interrupted.stages)


def test_what_was_not_bisected_to_the_end_is_not_called_the_smallest(world, bench, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(ladder.time, "monotonic", lambda: now[0])
    needed = has(NCCL_P2P_DISABLE="1", NCCL_IB_DISABLE="1")

    def works(*asked):
        now[0] += 75
        return needed(*asked)

    world.works = works
    found = climb(bench(), limit_s=600)
    assert found.chosen is not None and {"p2p", "ib"} < set(found.chosen)
    assert "smallest" not in found.says and "could not be found out" in found.says
    world.works = needed
    assert "smallest" in climb(bench()).says


@for_each("takes_s", [3, 10, 25])
@for_each("limit_s", [30, 60, 100, 150, 200, 300])
@for_each("name", MACHINES)
def test_no_climb_takes_longer_than_it_may(clock, bench, name, limit_s, takes_s):
    clock.works, smallest = MACHINES[name]
    clock.takes_s = lambda environ: takes_s
    clock.now_s = 1000
    clock.started.clear()
    found = climb(bench(), limit_s=limit_s)
    assert clock.now_s - 1000 <= limit_s
    assert found.chosen is None or clock.works(*clock.started[-1])
    if smallest and found.chosen is None:
        assert f"{limit_s} s" in found.says or "s were left for it" in found.says


def test_what_had_too_little_time_has_not_failed(clock, bench):
    clock.works = has(NCCL_SHM_DISABLE="1")
    clock.takes_s = lambda environ: 14
    found = climb(bench(), limit_s=60)
    outcomes = [r.trial.outcome for r in found.rungs if r.trial is not None]
    # 40 s are for rungs: 14, 14, and 12 of the 14 that the third one needs.
    assert outcomes == ["failed", "failed", "inconclusive"]
    assert "only 12 s were left" in found.rungs[2].trial.says and "60 s is over" in found.says
    assert "nothing was seen to work here, and 1 of what was tried could not be decided" in found.says and "1 项未能得出结论" in zh(found.says)
    assert not any(s.state == "failed" for s in found.rungs[2].trial.stages)


def test_what_passed_once_and_had_no_time_to_pass_again_is_not_chosen(clock, bench):
    clock.works = has(NCCL_SHM_DISABLE="1")
    slow = iter([2, 2, 8, 25, 25])
    clock.takes_s = lambda environ: next(slow)
    found = climb(bench(), limit_s=30)
    assert found.chosen is None and "passed once, and the time of 30 s was over" in found.says and zh(found.says)


@pytest.mark.parametrize(("limit_s", "chosen"), [(130, {"p2p": False}), (110, None)])
def test_a_third_is_kept_to_find_out_what_is_needed(clock, bench, limit_s, chosen):
    """Four trials of 20 s up to what works, one to drop the rest, one as the last proof."""
    clock.works = has(NCCL_P2P_DISABLE="1")
    clock.takes_s = lambda environ: 20
    found = climb(bench(), limit_s=limit_s)
    assert found.chosen == chosen
    assert ("smallest change" if chosen else "110 s is over") in found.says


def test_the_time_that_was_over_is_told_with_what_works(clock, bench):
    clock.works = has(NCCL_SHM_DISABLE="1")
    clock.takes_s = lambda environ: 25
    found = climb(bench(), limit_s=115)
    assert "shm" in found.chosen and "115 s was over" in found.says and "115" in zh(found.says)


def test_who_is_to_choose_is_offered_several_but_never_fewer_processes(world, bench):
    world.works = lambda environ, size, backend: size == 1 or environ.get("NCCL_P2P_DISABLE") == "1" or environ.get("NCCL_IB_DISABLE") == "1"
    found = climb(bench(), several=True)
    assert found.chosen == {"p2p": False}
    assert {r.id: r.trial.outcome for r in found.rungs if r.trial is not None} | {"ib-off": "passed", "nvls-off": "failed"} == {
        r.id: r.trial.outcome for r in found.rungs if r.trial is not None
    }
    assert all("more processes" in r.skipped for r in found.rungs if r.id.startswith("processes-"))
    assert all(size == 8 for _, size, _ in world.started)


def test_who_cancels_gets_nothing(world, bench):
    calls = []
    world.works = lambda *_: False
    found = climb(bench(cancelled=lambda: bool(calls)), tell=lambda told: calls.append(told) if len(world.started) == 2 else None)
    assert found.chosen is None and found.says.startswith("interrupted") and len(world.started) == 2


def test_where_torch_cannot_be_imported_nothing_is_said_of_settings(world, bench):
    world.fails_at = "import"
    world.works = lambda *_: False
    found = climb(bench())
    assert found.chosen is None and len(world.started) == 1
    assert found.rungs[0].trial.outcome == "inconclusive"


def test_a_trial_tells_what_was_really_used(world, bench):
    world.works = has(NCCL_SHM_DISABLE="1")
    found = climb(bench(environ={"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/tmp/x", "NCCL_ALGO": "Ring", "HOME": "/root"}))
    last = found.dropping[-1]
    assert last.transports == ("NET/Socket/0",)
    assert last.interfaces == ("Bootstrap eth0:10.0.0.7<0>", "NET/Socket [0]eth0:10.0.0.7<0>")
    assert last.environment["NCCL_SHM_DISABLE"] == "1" and last.environment["NCCL_ALGO"] == "Ring" and "HOME" not in last.environment
    assert last.busbw_gbps == 4.5
    started = world.started[-1][0]
    assert started["NCCL_DEBUG"] == "INFO" and "NCCL_DEBUG_FILE" not in started


def test_numbers_that_are_wrong_are_no_success(world, bench):
    world.fails_at = "all_reduce-int64"
    world.works = has(NCCL_P2P_DISABLE="1")
    assert climb(bench()).chosen == {"p2p": False}


def test_a_script_that_asks_for_an_nccl_that_is_not_there_ends_on_gloo(world, bench):
    text = "RuntimeError: Distributed package doesn't have NCCL built in"
    finding = Finding(cause="backend-unavailable", standing="established", says="", evidence=(Evidence(source="log", text=text),))
    found = climb(bench(bench.no_gpu, backend="nccl", world_size=2), verdict=Verdict(primary=finding))
    assert found.chosen == {"backend": "gloo"} and found.confirmed
    assert [backend for _, _, backend in world.started] == ["gloo", "gloo"]
    # Nor is it to find out what is needed.
    world.started.clear()
    world.works = lambda environ, size, backend: not environ.get("GLOO_SOCKET_IFNAME")
    environ = {"GLOO_SOCKET_IFNAME": "nope0"}
    found = climb(bench(bench.no_gpu, backend="nccl", world_size=2, environ=environ), verdict=Verdict(primary=finding))
    assert found.chosen == {"backend": "gloo", "interface": "auto"} and "smallest change" in found.says
    assert {backend for _, _, backend in world.started} == {"gloo"}
    world.works = lambda environ, size, backend: True
    # Nor for somebody to choose among.
    world.started.clear()
    found = climb(bench(bench.no_gpu, backend="nccl", world_size=2), verdict=Verdict(primary=finding), several=True)
    assert {backend for _, _, backend in world.started} == {"gloo"}
    assert "no NCCL" in next(r.skipped for r in found.rungs if r.id == "interface")
