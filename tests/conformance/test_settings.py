"""All settings and all presets: told in both languages, parsed, spelt or refused with a reason, and read by somebody who is known to read them."""

from __future__ import annotations

import itertools
import re

import pytest
from tests.chinese import zh
from tests.tables import for_each

from unhang.attach import protocol
from unhang.facts.snapshot import Snapshot
from unhang.settings import choosing, spellings
from unhang.settings.catalogue import PRESETS, SETTINGS, parse
from unhang.settings.choosing import Here
from unhang.settings.setting import Installed, Refused, Spelled, applied
from unhang.variables.examine import nothing_to_scan
from unhang.variables.known import entries
from unhang.variables.readers import table

PACKAGES = {"accelerate": "1.15.0", "deepspeed": "0.19.8", "lightning": "2.6.6", "transformers": "5.23.0", "llamafactory": "0.9.5", "ray": "2.60.0"}
TORCHES = [(2, minor) for minor in range(4, 16)]
NCCLS = [(2, 16, 5), (2, 20, 5), (2, 21, 5), (2, 23, 4), (2, 27, 5), (2, 30, 7), (2, 32, 3), (), None]
LAUNCHERS = ["torchrun", "accelerate", "deepspeed", "llamafactory", "python"]
PLACES = [Installed(torch=t, nccl=n, packages=p, gpus=8 if n is not None else 0) for t in TORCHES for n in NCCLS for p in ({}, PACKAGES)]
EMPTY = Snapshot(host="", taken="")
CHINESE = re.compile("[\u4e00-\u9fff]")
# Both sides write these names; torch's own is in no table of variables.
OF_HOOK = {*protocol.WISHES, spellings.COMPILE_DISABLE}


@for_each("setting", SETTINGS.values(), ids=lambda s: s.key)
def test_a_setting_is_told_in_both_languages(setting):
    assert re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", setting.key)
    assert setting.title and setting.cost and setting.forms
    assert CHINESE.search(zh(setting.title)) and CHINESE.search(zh(setting.cost))
    assert not CHINESE.search(setting.title + setting.cost + setting.forms)


@for_each("key", SETTINGS)
def test_it_is_spelt_or_refused_for_every_release_and_launcher(key):
    value = parse(key, SETTINGS[key].example)
    spelt = 0
    for place in PLACES:
        for launcher in LAUNCHERS:
            one = SETTINGS[key].spell(value, place, launcher)
            if isinstance(one, Refused):
                assert one.key == key and one.value == value and one.why and CHINESE.search(zh(one.why))
                continue
            spelt += 1
            assert one.read_by and (one.env or one.options or one.arguments)
            for name, text in one.env.items():
                assert text and text == text.strip()
                assert is_read(name, place, launcher), (key, name, place)
    # What only the script can do is spelt where its flag is known.
    assert spelt or applied({key: value}, PLACES[0], arguments={key: "--flag"}).arguments


def is_read(name, place, launcher):
    if name in OF_HOOK:
        return True
    if name.startswith("PET_"):
        return launcher in ("torchrun", "llamafactory")
    if entries()[name].owner == "cuda" if name in entries() else False:
        return place.nccl is not None
    releases = {
        "torch": "{}.{}.0".format(*place.torch),
        "nccl": None if place.nccl is None else ".".join(map(str, place.nccl)),
        **place.packages,
    }
    # What an unknown release reads cannot be held against the table.
    if releases["nccl"] == "" and name.startswith("NCCL_"):
        return True
    found = [table().decide(who, version, name, nothing_to_scan) for who, version in releases.items() if version]
    return any(f and f is not True and f.answer == "reads" for f in found)


@for_each("name", choosing.NAMES)
def test_a_preset_is_told_in_both_languages_and_holds_values_that_are_some(name):
    for place in (PLACES[0], PLACES[-1], Installed(torch=(2, 9), nccl=(2, 27, 5), gpus=8)):
        found = choosing.preset(name, Here(snapshot=EMPTY, installed=place, hosts=2))
        assert found.name == name and found.title and CHINESE.search(found.title.of("zh"))
        assert found.cost and CHINESE.search(found.cost.of("zh"))
        assert set(found.why) == set(found.settings)
        for key, value in found.settings.items():
            typed = ("on" if value else "off") if isinstance(value, bool) else str(value)
            assert parse(key, typed) == value
            assert CHINESE.search(found.why[key].of("zh")) and not CHINESE.search(found.why[key])


@pytest.mark.parametrize("name", PRESETS)
def test_each_of_its_settings_is_applied_or_refused_with_a_reason(name):
    for place in PLACES:
        for launcher in LAUNCHERS:
            found = applied(PRESETS[name].settings, place, launcher=launcher)
            assert set(found.read_by) | {r.key for r in found.refused} == set(PRESETS[name].settings)
            assert all(r.why and zh(r.why) for r in found.refused)


def test_presets_of_the_requirements_have_their_values():
    basic, conservative = PRESETS["basic"].settings, PRESETS["conservative"].settings
    assert (basic["batch"], basic["loader-workers"], basic["pin-memory"], basic["persistent-workers"]) == (1024, 1, False, False)
    assert (PRESETS["gpu-cache"].settings["gpu-cache"], PRESETS["prefetch"].settings["prefetch"]) == (5000, 2)
    assert (conservative["batch"], conservative["loader-workers"], conservative["p2p"], conservative["ib"]) == (512, 0, False, False)


@for_each("setting", SETTINGS.values(), ids=lambda s: s.key)
def test_who_reads_it_and_what_it_takes_is_told_in_chinese(setting):
    assert not re.search(r" or |;| to ", setting.forms) or CHINESE.search(zh(setting.forms))
    for place, launcher in itertools.product(PLACES, LAUNCHERS):
        spelled = setting.spell(setting.parse(setting.example), place, launcher)
        if isinstance(spelled, Spelled):
            assert not re.search(r"\b(of|the|hook|script|runtime)\b", spelled.read_by.of("zh"))
