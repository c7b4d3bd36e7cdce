"""What a run is started with: settings from several places, each with where it comes from, put into words for what is installed.

Later places win: a preset, `[run]` of unhang.toml, --set. What the user has exported, or typed as an option of the command, is kept where a preset or
unhang.toml would change it, and is told; --set and --timeout win over it, and that is told, too.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from unhang.errors import UnhangError
from unhang.knowledge.settings.choosing import NAMES, Here
from unhang.knowledge.settings.choosing import preset as ours
from unhang.knowledge.settings.configuration import Configuration
from unhang.knowledge.settings.presets import OF_THE_SCRIPT, Preset
from unhang.knowledge.settings.setting import Applied, Choice, Refused, Spelled, Value, applied, together
from unhang.knowledge.text import NOTHING, Text, same

# The same thing by an older name: whoever exported one of them has decided.
_ALIASES: Mapping[str, tuple[str, ...]] = {
    "TORCH_FR_BUFFER_SIZE": ("TORCH_NCCL_TRACE_BUFFER_SIZE",),
    "TORCH_NCCL_TRACE_BUFFER_SIZE": ("TORCH_FR_BUFFER_SIZE",),
}
# It may hold more than a timeout.
_NEVER_REPLACED = ("--rdzv_conf", "PET_RDZV_CONF")

SET = "--set"
_OF_FILE = Text(
    "LLaMA-Factory's file says it, and a preset does not know the model; --set does it",
    "由 LLaMA-Factory 的文件决定，预设不了解模型；可用 --set 设置",
)


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A setting and where it comes from: "preset conservative", "unhang.toml [run]", "--set". `why` is the preset's reason."""

    key: str
    value: Value
    origin: str
    why: Text = NOTHING

    @property
    def is_typed(self) -> bool:
        return self.origin.startswith("--")


@dataclass(frozen=True, kw_only=True)
class Met:
    """A variable or an option that was there already with `theirs`, where `ours` was to be put. `kept`: theirs stays, else ours won."""

    key: str
    name: str
    theirs: str
    ours: str
    kept: bool


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that a run gets. `chosen` has every setting that was asked for, refused ones too; `unfit` is what the preset says of this machine."""

    chosen: tuple[Chosen, ...]
    applied: Applied
    met: tuple[Met, ...] = ()
    unfit: Text = NOTHING
    preset: str = ""


def preset(name: str, here: Here, configuration: Configuration) -> Preset:
    """A preset by name, the user's before ours; _ may stand for -. Raises UnhangError that lists all."""
    return _preset(name, here, configuration, ())


def _preset(name: str, here: Here, configuration: Configuration, above: tuple[str, ...]) -> Preset:
    wanted = name.strip().lower().replace("_", "-")
    own = configuration.presets.get(wanted)
    # One of the user's may have the name of one of ours and build on it.
    if own is not None and wanted not in above:
        base = _preset(own.base, here, configuration, (*above, wanted)) if own.base else None
        title = same(own.title) if own.title else base.title if base else NOTHING
        return Preset(
            name=wanted,
            title=title,
            cost=base.cost if base else NOTHING,
            settings={**(base.settings if base else {}), **own.settings},
            why={k: w for k, w in (base.why if base else {}).items() if k not in own.settings},
            origin=configuration.path,
            unfit=base.unfit if base else NOTHING,
        )
    if wanted in NAMES:
        return ours(wanted, here)
    valid = names(configuration)
    if wanted in above:
        raise UnhangError(f"{configuration.path}: [presets.{wanted}] builds on itself", hint=f"presets: {', '.join(valid)}")
    near = difflib.get_close_matches(wanted, valid, 1)
    where = f"{configuration.path}: [presets.{above[-1]}] base: " if above else ""
    raise UnhangError(f"{where}there is no preset {name!r}", cause=f"did you mean {near[0]}?" if near else None, hint=f"presets: {', '.join(valid)}")


def names(configuration: Configuration) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*NAMES, *configuration.presets)))


def plan(
    here: Here,
    configuration: Configuration,
    *,
    preset_name: str = "",
    typed: Sequence[tuple[str, Value, str]] = (),
    launcher: str = "torchrun",
    environ: Mapping[str, str],
    option: Callable[[str], str | None] = lambda name: None,
    word: Callable[[str], str | None] = lambda flag: None,
) -> Plan:
    """`typed` are key, value and origin (--set, --timeout), a later one of a key wins. `option` answers what the launcher's option of that name is
    already, `word` what the script's flag is; both None where it is not there. Raises UnhangError for a preset that does not exist.
    """
    chosen: dict[str, Chosen] = {}
    unfit = NOTHING
    name = preset_name or configuration.preset
    if name:
        base = preset(name, here, configuration)
        unfit = base.unfit
        for key, value in base.settings.items():
            chosen[key] = Chosen(key=key, value=value, origin=f"preset {base.name}", why=base.why.get(key, NOTHING))
        name = base.name
    for key, value in configuration.settings.items():
        chosen[key] = Chosen(key=key, value=value, origin=f"{configuration.path} [run]")
    for key, value, origin in typed:
        chosen[key] = Chosen(key=key, value=value, origin=origin)
    choice: Choice = {c.key: c.value for c in chosen.values()}
    left: list[Refused] = []
    if name and launcher == "llamafactory":
        own = configuration.presets[name].settings if name in configuration.presets else {}
        ours_only = [
            k for k in OF_THE_SCRIPT if k in chosen and chosen[k].origin == f"preset {name}" and k not in own and k not in configuration.arguments
        ]
        left = [Refused(key=k, value=choice[k], why=_OF_FILE.en, why_zh=_OF_FILE.zh) for k in ours_only]
        choice = {k: v for k, v in choice.items() if k not in ours_only}
    whole = applied(choice, here.installed, launcher=launcher, arguments=configuration.arguments)
    met: list[Met] = []
    spelled = {key: _met(key, one, chosen[key].is_typed, environ, option, word, met) for key, one in whole.spelled.items()}
    return Plan(chosen=tuple(chosen.values()), applied=together(spelled, (*left, *whole.refused)), met=tuple(met), unfit=unfit, preset=name)


def _met(
    key: str,
    one: Spelled,
    is_typed: bool,
    environ: Mapping[str, str],
    option: Callable[[str], str | None],
    word: Callable[[str], str | None],
    met: list[Met],
) -> Spelled:
    """What is left of a setting beside what is there already."""

    def wins(name: str, theirs: str | None, ours: str) -> bool:
        if theirs is None or theirs == ours:
            return True
        kept = not is_typed or name in _NEVER_REPLACED
        met.append(Met(key=key, name=name, theirs=theirs, ours=ours, kept=kept))
        return not kept

    def exported(name: str) -> str | None:
        return next((environ[n] for n in (name, *_ALIASES.get(name, ())) if n in environ), None)

    env = {n: v for n, v in one.env.items() if wins(n, exported(n), v)}
    options = tuple((n, v) for n, v in one.options if wins(n, option(n), v))
    # LLaMA-Factory's are a word each; a script's own flag may be several words.
    groups = [(a,) for a in one.arguments] if all("=" in a for a in one.arguments) else [one.arguments]
    arguments = tuple(a for group in groups if group and wins(*_flag_of(group, word)) for a in group)
    if one.arguments and not arguments and any(m.key == key and m.kept for m in met):
        # Theirs is kept whole: our hook would overrule it.
        return replace(one, env={}, options=(), arguments=())
    return replace(one, env=env, options=options, arguments=arguments)


def _flag_of(group: tuple[str, ...], word: Callable[[str], str | None]) -> tuple[str, str | None, str]:
    """A flag, what it is in the command already, and what it is to be."""
    flag, joined, value = group[0].partition("=")
    return flag, word(flag), value if joined else " ".join(group[1:])


def refused_of_typed(found: Plan) -> tuple[Refused, ...]:
    """Settings that were typed and would have no effect: an error, where those of a preset are only told."""
    typed = {c.key for c in found.chosen if c.is_typed}
    return tuple(r for r in found.applied.refused if r.key in typed)
