"""Settings on a terminal and as JSON: presets with what this machine makes of them, and what a run is started with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.text import Text as Shown

from unhang.i18n import COMMA, Words, in_language, joined, same
from unhang.knowledge.words import THEN, Text, msg
from unhang.report.console import styled
from unhang.report.language import Language
from unhang.settings.catalogue import Preset
from unhang.settings.plan import Met, Plan, in_place_of_ours
from unhang.settings.setting import Applied, Installed, Layer, Refused, Setting, Spelled, typed

PRESETS_SCHEMA = "unhang/presets/1"
_PRESET = "preset "

_WORDS = Words("settings", "settings")

_LAYERS: Mapping[Layer, Text] = {
    "communication": msg("communication"),
    "timeouts": msg("timeouts"),
    "run-time": msg("run time"),
}


def spelt(one: Spelled) -> str:
    """What a setting became: `NCCL_SHM_DISABLE=1`, `--num_processes 2`."""
    words = [f"{n}={v}" for n, v in one.env.items()] + [f"{n} {v}" for n, v in one.options]
    return " ".join([*words, *one.arguments])


def here(installed: Installed, lang: Language) -> str:
    """ "torch 2.13, no NCCL, GPUs 0, accelerate 1.15.0": what a preset is judged for."""
    words = _WORDS[lang]
    torch = words["no_torch"] if installed.torch is None else "torch {}.{}".format(*installed.torch)
    nccl = words["no_nccl"] if installed.nccl is None else f"NCCL {'.'.join(map(str, installed.nccl))}".strip()
    gpus = msg("GPUs {n}", "settings", n=installed.gpus)
    return joined([torch, nccl, gpus, *(f"{n} {v}" for n, v in installed.packages.items())], COMMA).of(lang)


def overview(presets: Iterable[tuple[Preset, Applied]], installed: Installed, width: int, lang: Language) -> Iterator[Shown]:
    words = _WORDS[lang]
    yield from styled(f"{words['here']}: {here(installed, lang)}", width, "", "dim")
    for preset, applied in presets:
        yield Shown.assemble((preset.name, "bold"), f"  {preset.title.of(lang)}")
        keys = " ".join(f"{k}={typed(v)}" for k, v in preset.settings.items() if k in applied.spelled)
        yield from styled(f"{words['sets']}: {keys}" if keys else words["no_settings"], width, "    ")
        if preset.cost:
            yield from styled(f"{words['cost']}: {preset.cost.of(lang)}", width, "    ", "dim")
        yield from _notes(preset, width, lang)
        for line in not_set(applied.refused, lang):
            yield from styled(line, width, "    ", "yellow")


def page(preset: Preset, applied: Applied, settings: Mapping[str, Setting], installed: Installed, width: int, lang: Language) -> Iterator[Shown]:
    """One preset: each key with its reason, what it costs, who reads it here or why nobody does."""
    words = _WORDS[lang]
    yield Shown.assemble((preset.name, "bold"), f"  {preset.title.of(lang)}")
    if preset.cost:
        yield from styled(f"{words['cost']}: {preset.cost.of(lang)}", width, "    ", "dim")
    yield from _notes(preset, width, lang)
    yield from styled(f"{words['here']}: {here(installed, lang)}", width, "    ", "dim")
    refused = {r.key: r for r in applied.refused}
    for key, value in preset.settings.items():
        setting, turned_down = settings[key], refused.get(key)
        yield Shown.assemble(("✗", "yellow") if turned_down else ("✓", "green"), " ", (f"{key} = {typed(value)}", "bold"))
        yield from styled((preset.why[key] if key in preset.why else _title(setting)).of(lang), width, "    ")
        yield from styled(f"{words['cost']}: {in_language(setting.cost, lang)}", width, "    ", "dim")
        if turned_down is not None:
            why = in_language(turned_down.why, lang)
            yield from styled(words["refused"].format(why=why), width, "    ", "yellow")
        else:
            one = applied.spelled[key]
            yield from styled(words["reads"].format(who=one.read_by.of(lang), what=spelt(one)), width, "    ", "dim")


def catalogue(settings: Iterable[Setting], width: int, lang: Language) -> Iterator[Shown]:
    """All settings: what each does, its values, what it costs."""
    words = _WORDS[lang]
    layer = ""
    for one in settings:
        if one.layer != layer:
            layer = one.layer
            yield Shown(_LAYERS[one.layer].of(lang), style="bold underline")
        yield Shown.assemble((one.key, "bold"), f"  {_title(one).of(lang)}")
        yield from styled(words["forms"].format(forms=in_language(one.forms, lang)), width, "    ", "dim")
        yield from styled(f"{words['cost']}: {in_language(one.cost, lang)}", width, "    ", "dim")


def of_plan(plan: Plan, lang: Language) -> Iterator[str]:
    """One line for each setting: its value, where it comes from, what it became and who reads it; then what met something."""
    words = _WORDS[lang]
    if plan.unfit:
        yield f"{plan.preset}: {words['unfit'].format(why=plan.unfit.of(lang))}"
    yield from (remark.of(lang) for remark in plan.remarks)
    refused = {r.key: r for r in plan.applied.refused}
    for one in plan.chosen:
        begin = f"{one.key} = {typed(one.value)}  [{_origin(one.origin, lang)}]  "
        if one.key in refused:
            why = in_language(refused[one.key].why, lang)
            yield begin + words["refused"].format(why=why)
            continue
        spelled = plan.applied.spelled[one.key]
        # What is left of it where the user's own is kept.
        became = spelt(spelled)
        reason = (THEN + one.why).of(lang) if one.why else ""
        yield begin + (words["reads"].format(who=spelled.read_by.of(lang), what=became) if became else words["left"]) + reason
    yield from (_met(m, lang) for m in plan.met)


def notes(plan: Plan, lang: Language) -> Iterator[str]:
    """The same in a few lines, for a run that begins."""
    words = _WORDS[lang]
    set_here = [c for c in plan.chosen if c.key in plan.applied.spelled]
    for origin in dict.fromkeys(c.origin for c in set_here):
        yield f"{_origin(origin, lang)}: " + " ".join(f"{c.key}={typed(c.value)}" for c in set_here if c.origin == origin)
    if plan.unfit:
        yield f"{plan.preset}: {words['unfit'].format(why=plan.unfit.of(lang))}"
    yield from (remark.of(lang) for remark in plan.remarks)
    yield from not_set(plan.applied.refused, lang)
    yield from (_met(m, lang) for m in plan.met)


def not_set(refused: Iterable[Refused], lang: Language) -> Iterator[str]:
    """Keys that nothing reads here, those of one reason together."""
    reasons: dict[str, list[str]] = {}
    for one in refused:
        reasons.setdefault(in_language(one.why, lang), []).append(one.key)
    for why, keys in reasons.items():
        yield _WORDS[lang]["not_set"].format(keys=", ".join(keys), why=why)


def described(plan: Plan) -> dict[str, Any]:
    """The plan as JSON, for --dry-run --json and run.json."""
    refused = {r.key: r for r in plan.applied.refused}
    return {
        "preset": plan.preset or None,
        "unfit": plan.unfit or None,
        "settings": [
            {
                "key": c.key,
                "value": c.value,
                "origin": c.origin,
                "environment": dict(plan.applied.spelled[c.key].env) if c.key not in refused else {},
                "options": [list(o) for o in plan.applied.spelled[c.key].options] if c.key not in refused else [],
                "arguments": list(plan.applied.spelled[c.key].arguments) if c.key not in refused else [],
                "read_by": plan.applied.read_by.get(c.key),
                "refused": refused[c.key].why if c.key in refused else None,
            }
            for c in plan.chosen
        ],
        "met": [{"key": m.key, "name": m.name, "theirs": m.theirs, "ours": m.ours, "kept": m.kept} for m in plan.met],
    }


def of_preset(preset: Preset, applied: Applied, settings: Mapping[str, Setting], lang: Language) -> dict[str, Any]:
    """A preset as JSON."""
    refused = {r.key: r for r in applied.refused}
    return {
        "name": preset.name,
        "title": preset.title.of(lang),
        "cost": preset.cost.of(lang),
        "origin": preset.origin or None,
        "in_place_of_ours": bool(in_place_of_ours(preset)),
        "unfit": preset.unfit.of(lang) or None,
        "settings": [
            {
                "key": key,
                "value": value,
                "why": (preset.why[key] if key in preset.why else _title(settings[key])).of(lang),
                "cost": in_language(settings[key].cost, lang),
                "sets": None if key in refused else spelt(applied.spelled[key]),
                "read_by": applied.read_by.get(key),
                "refused": (in_language(refused[key].why, lang)) if key in refused else None,
            }
            for key, value in preset.settings.items()
        ],
    }


def _origin(origin: str, lang: Language) -> str:
    """Where a value comes from: "preset debug", "--set", "unhang.toml [run]"."""
    return msg("preset {name}", name=origin.removeprefix(_PRESET)).of(lang) if origin.startswith(_PRESET) else origin


def _title(setting: Setting) -> Text:
    return same(setting.title)


def _met(met: Met, lang: Language) -> str:
    return _WORDS[lang]["kept" if met.kept else "overruled"].format(name=met.name, theirs=met.theirs, key=met.key, ours=met.ours)


def _notes(preset: Preset, width: int, lang: Language) -> Iterator[Shown]:
    words = _WORDS[lang]
    if preset.unfit:
        yield from styled(words["unfit"].format(why=preset.unfit.of(lang)), width, "    ", "yellow")
    if said := in_place_of_ours(preset):
        yield from styled(said.of(lang), width, "    ", "yellow")
    elif preset.origin:
        yield from styled(words["file"].format(path=preset.origin), width, "    ", "dim")
