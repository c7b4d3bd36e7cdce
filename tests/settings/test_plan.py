"""Which of several places wins, and what is told where something was there already."""

from __future__ import annotations

import pytest

from unhang.errors import UnhangError
from unhang.facts.snapshot import Snapshot
from unhang.settings import plan as planning
from unhang.settings.choosing import NAMES, Here
from unhang.settings.configuration import Configuration, Own
from unhang.settings.setting import Installed

HERE = Here(snapshot=Snapshot(host="", taken=""), installed=Installed(torch=(2, 9), nccl=(2, 27, 5), gpus=8))
CPU = Here(snapshot=Snapshot(host="", taken=""), installed=Installed(torch=(2, 13), nccl=None))
OWN = Configuration(
    path="/project/unhang.toml",
    settings={"loader-workers": 2},
    presets={"small": Own(name="small", title="", base="conservative", settings={"batch": 64})},
    arguments={"batch": "--batch-size"},
)


def plan(place=HERE, configuration=OWN, environ=None, **more):
    return planning.plan(place, configuration, environ=environ or {}, **more)


def origins(found):
    return {c.key: (c.value, c.origin) for c in found.chosen}


def test_later_places_win():
    found = plan(preset_name="small", typed=[("timeout", 60, "--timeout"), ("p2p", True, "--set")])
    said = origins(found)
    assert said["cumem-host"] == (False, "preset small")
    assert said["batch"] == (64, "preset small")
    assert said["loader-workers"] == (2, "/project/unhang.toml [run]")
    assert said["timeout"] == (60, "--timeout")
    assert said["p2p"] == (True, "--set")
    assert found.applied.env["NCCL_P2P_DISABLE"] == "0" and found.applied.env["UNHANG_LOADER_WORKERS"] == "2"
    assert found.applied.arguments == ("--batch-size", "64")


def test_the_presets_of_run_hold_where_none_is_named():
    configured = Configuration(path="/f", preset="debug")
    assert plan(configuration=configured).preset == "debug"
    assert plan(configuration=configured, preset_name="basic").preset == "basic"


def test_a_preset_keeps_what_was_exported():
    found = plan(preset_name="conservative", environ={"NCCL_P2P_DISABLE": "0", "NCCL_IB_DISABLE": "1"})
    assert "NCCL_P2P_DISABLE" not in found.applied.env
    (met,) = found.met
    assert met == planning.Met(key="p2p", name="NCCL_P2P_DISABLE", theirs="0", ours="1", kept=True)


def test_what_is_typed_wins_over_what_was_exported_and_says_so():
    found = plan(typed=[("p2p", False, "--set")], environ={"NCCL_P2P_DISABLE": "0"})
    assert found.applied.env["NCCL_P2P_DISABLE"] == "1"
    assert [m.kept for m in found.met] == [False]


def test_an_older_name_of_the_same_thing_is_kept_too():
    found = plan(preset_name="debug", environ={"TORCH_NCCL_TRACE_BUFFER_SIZE": "10"})
    assert "TORCH_FR_BUFFER_SIZE" not in found.applied.env
    assert [(m.theirs, m.ours) for m in found.met] == [("10", "16384")]


def test_options_and_arguments_that_are_typed_are_kept_by_a_preset():
    configured = Configuration(path="/f", settings={"processes": 2, "batch": 64}, arguments={"batch": "--batch-size"})
    there = {"option": {"--nproc-per-node": "8"}.get, "word": {"--batch-size": "7"}.get}
    found = plan(configuration=configured, **there)
    assert found.applied.options == () and found.applied.arguments == ()
    assert [(m.name, m.theirs, m.kept) for m in found.met] == [("--nproc-per-node", "8", True), ("--batch-size", "7", True)]
    found = plan(configuration=configured, typed=[("processes", 2, "--set"), ("batch", 64, "--set")], **there)
    assert found.applied.options == (("--nproc-per-node", "2"),) and found.applied.arguments == ("--batch-size", "64")
    assert not any(m.kept for m in found.met)


def test_a_rendezvous_configuration_of_the_users_is_never_replaced():
    found = plan(typed=[("timeout", 1800, "--timeout")], environ={"PET_RDZV_CONF": "is_host=1"})
    assert "PET_RDZV_CONF" not in found.applied.env and found.applied.env["UNHANG_TIMEOUT_S"] == "1800"


def test_what_is_refused_is_an_error_only_where_it_was_typed():
    found = plan(CPU, preset_name="conservative", typed=[("shm", False, "--set")])
    assert {"p2p", "shm"} <= {r.key for r in found.applied.refused}
    assert [r.key for r in planning.refused_of_typed(found)] == ["shm"]


def test_names_of_presets():
    assert planning.preset("gpu_cache", HERE, OWN).name == "gpu-cache"
    assert planning.names(OWN) == (*NAMES, "small")
    with pytest.raises(UnhangError, match="no preset 'consrvative'") as e:
        planning.preset("consrvative", HERE, OWN)
    assert e.value.cause == "did you mean conservative?" and all(n in str(e.value.hint) for n in (*NAMES, "small"))


def test_presets_of_the_users_build_on_others():
    over = Configuration(path="/f", presets={"basic": Own(name="basic", title="mine", base="basic", settings={"batch": 8})})
    found = planning.preset("basic", HERE, over)
    assert found.settings["batch"] == 8 and found.settings["loader-workers"] == 1 and found.title == "mine" and "batch" not in found.why
    circle = {n: Own(name=n, title="", base=b, settings={}) for n, b in (("a", "b"), ("b", "a"))}
    with pytest.raises(UnhangError, match="builds on itself"):
        planning.preset("a", HERE, Configuration(path="/f", presets=circle))
    lost = Configuration(path="/f", presets={"a": Own(name="a", title="", base="nothing", settings={})})
    with pytest.raises(UnhangError, match=r"/f: \[presets.a\] base: there is no preset 'nothing'"):
        planning.preset("a", HERE, lost)


LLAMA = Here(snapshot=HERE.snapshot, installed=Installed(torch=(2, 9), nccl=(2, 27, 5), gpus=8, packages={"llamafactory": "0.9.5"}))
BATCH = "per_device_train_batch_size=8"


def test_no_preset_brings_a_batch_to_llama_factory():
    found = plan(LLAMA, Configuration(), preset_name="basic", launcher="llamafactory")
    assert not any(a.startswith("per_device") for a in found.applied.arguments) and "ddp_timeout=1800" in found.applied.arguments
    assert "--set" in next(r.why for r in found.applied.refused if r.key == "batch")
    typed = plan(LLAMA, Configuration(), preset_name="basic", launcher="llamafactory", typed=[("batch", 8, "--set")])
    assert BATCH in typed.applied.arguments
    own = Configuration(path="/f", presets={"small": Own(name="small", title="", base="basic", settings={"batch": 8})})
    assert BATCH in plan(LLAMA, own, preset_name="small", launcher="llamafactory").applied.arguments


def test_what_the_file_of_llama_factory_says_is_kept_whole():
    found = plan(LLAMA, Configuration(), preset_name="basic", launcher="llamafactory", word={"ddp_timeout": "180000000"}.get)
    assert not any(a.startswith("ddp_timeout") for a in found.applied.arguments) and "UNHANG_TIMEOUT_S" not in found.applied.env
    assert [(m.name, m.theirs, m.kept) for m in found.met] == [("ddp_timeout", "180000000", True)]
    typed = plan(LLAMA, Configuration(), typed=[("timeout", 60, "--timeout")], launcher="llamafactory", word={"ddp_timeout": "9"}.get)
    assert "ddp_timeout=60" in typed.applied.arguments and typed.applied.env["UNHANG_TIMEOUT_S"] == "60"


@pytest.mark.parametrize("of_option", [True, False])
def test_who_does_not_read_it_is_not_named(of_option):
    """torchrun takes --rdzv_conf before PET_RDZV_CONF, and neither is replaced."""
    given = {"option": lambda name: "x=1" if name == "--rdzv_conf" else None} if of_option else {"environ": {"PET_RDZV_CONF": "x=1"}}
    found = plan(CPU, Configuration(), typed=[("timeout", 1800, "--timeout")], **given)
    assert found.applied.env == {"UNHANG_TIMEOUT_S": "1800"} and found.applied.read_by["timeout"] == "unhang's hook"
    assert [(m.name, m.theirs, m.kept) for m in found.met] == [("--rdzv_conf" if of_option else "PET_RDZV_CONF", "x=1", True)]
    assert "torchrun" in plan(CPU, Configuration(), typed=[("timeout", 1800, "--timeout")]).applied.read_by["timeout"]


@pytest.mark.parametrize(
    ("key", "value", "helps"),
    [
        ("batch", 8, "--batch-size 8"),
        ("shm", False, "--set loader-workers=0"),
        ("p2p", False, "--set interface=NAME"),
        ("backend", "nccl", "leave it out"),
    ],
)
def test_what_is_refused_names_what_helps(key, value, helps):
    (refused,) = plan(CPU, Configuration(), typed=[(key, value, "--set")]).applied.refused
    assert helps in planning.instead_of(refused)


def test_a_preset_of_ours_starts_no_loader_workers():
    own = Configuration(path="/f", presets={"mine": Own(name="mine", title="", base="basic", settings={"loader-workers": 2})})
    assert plan(configuration=Configuration(), preset_name="prefetch").applied.env["UNHANG_LOADER_WORKERS_MOST"] == "1"
    assert "UNHANG_LOADER_WORKERS" not in plan(configuration=Configuration(), preset_name="basic").applied.env
    for explicit in (
        plan(configuration=own, preset_name="mine"),
        plan(configuration=Configuration(), preset_name="basic", typed=[("loader-workers", 2, "--set")]),
        plan(configuration=Configuration(path="/f", settings={"loader-workers": 2}), preset_name="basic"),
    ):
        assert explicit.applied.env["UNHANG_LOADER_WORKERS"] == "2" and "UNHANG_LOADER_WORKERS_MOST" not in explicit.applied.env
    assert plan(configuration=Configuration(), preset_name="conservative").applied.env["UNHANG_LOADER_WORKERS"] == "0"
    kept = plan(configuration=Configuration(), preset_name="basic", environ={"UNHANG_LOADER_WORKERS": "4"})
    assert "UNHANG_LOADER_WORKERS_MOST" not in kept.applied.env and [m.theirs for m in kept.met] == ["4"]
