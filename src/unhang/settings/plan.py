"""What a run is started with: settings from several places, each with where it comes from, put into words for what is installed.

Later places win: a preset, `[run]` of unhang.toml, --set. What the user has exported, or typed as an option of the command, is kept where a preset or
unhang.toml would change it, and is told; --set and --timeout win over it, and that is told, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from unhang.errors import UnhangError, unknown_name
from unhang.i18n import NOTHING, Text, msg, same
from unhang.model import frozen
from unhang.settings import support
from unhang.settings.catalogue import OF_THE_SCRIPT, SETTINGS, Preset
from unhang.settings.choosing import NAMES, Here
from unhang.settings.choosing import preset as ours
from unhang.settings.configuration import Configuration
from unhang.settings.setting import Applied, Choice, Refused, Spelled, Value, applied, together, worded
from unhang.settings.spellings import LOADER_WORKERS, LOADER_WORKERS_MOST

# The same thing by an older name: whoever exported one of them has decided.
_ALIASES: Mapping[str, tuple[str, ...]] = {
    "TORCH_FR_BUFFER_SIZE": ("TORCH_NCCL_TRACE_BUFFER_SIZE",),
    "TORCH_NCCL_TRACE_BUFFER_SIZE": ("TORCH_FR_BUFFER_SIZE",),
    LOADER_WORKERS_MOST: (LOADER_WORKERS,),
}
# It may hold more than a timeout.
_RDZV = ("--rdzv_conf", "PET_RDZV_CONF")

SET = "--set"
_OF_FILE = msg("LLaMA-Factory's file says it, and a preset does not know the model; --set does it")
_IN_PLACE = msg("preset {name} is the one of {path}, in place of unhang's own")

_OF_ITS_OWN = msg("; and that of each setting of its own")

_INFO_ONLY = msg(
    "detail is INFO here: this torch's DETAIL crashes DDP over Gloo (SIGSEGV); a script without DDP may export TORCH_DISTRIBUTED_DEBUG=DETAIL"
)


@frozen
class Chosen:
    """A setting and where it comes from: "preset conservative", "unhang.toml [run]", "--set". `why` is the preset's reason."""

    key: str
    value: Value
    origin: str
    why: Text = NOTHING

    @property
    def is_typed(self) -> bool:
        return self.origin.startswith("--")


@frozen
class Met:
    """A variable or an option that was there already with `theirs`, where `ours` was to be put. `kept`: theirs stays, else ours won."""

    key: str
    name: str
    theirs: str
    ours: str
    kept: bool


@frozen
class Plan:
    """All that a run gets. `chosen` has every setting that was asked for, refused ones too; `unfit` is what the preset says of this machine.

    `remarks` are what else should be known before it begins.
    """

    chosen: tuple[Chosen, ...]
    applied: Applied
    met: tuple[Met, ...] = ()
    unfit: Text = NOTHING
    preset: str = ""
    remarks: tuple[Text, ...] = ()


def in_place_of_ours(preset: Preset) -> Text:
    """What is to be said of one of the user's that has the name of one of ours; NOTHING of any other."""
    return _IN_PLACE.fill(name=preset.name, path=preset.origin) if preset.origin and preset.name in NAMES else NOTHING


def preset(name: str, here: Here, configuration: Configuration, *, above: tuple[str, ...] = (), asked_in: str = "") -> Preset:
    """A preset by name, the user's before ours; _ may stand for -. Raises UnhangError that lists all.

    `above` are presets that build on it, `asked_in` is where it is named.
    """
    wanted = name.strip().lower().replace("_", "-")
    own = configuration.presets.get(wanted)
    # One of the user's may have the name of one of ours and build on it.
    if own is not None and wanted not in above:
        base = preset(own.base, here, configuration, above=(*above, wanted)) if own.base else None
        title = same(own.title) if own.title else base.title if base else NOTHING
        return Preset(
            name=wanted,
            title=title,
            cost=base.cost + _OF_ITS_OWN if base and base.cost and own.settings else base.cost if base else NOTHING,
            settings={**(base.settings if base else {}), **own.settings},
            why={k: w for k, w in (base.why if base else {}).items() if k not in own.settings},
            origin=configuration.path,
            unfit=base.unfit if base else NOTHING,
        )
    if wanted in NAMES:
        return ours(wanted, here)
    valid = names(configuration)
    if wanted in above:
        raise UnhangError(
            f"{configuration.path}: [presets.{wanted}] builds on itself: {' -> '.join((*above[above.index(wanted) :], wanted))}",
            hint=f"presets: {', '.join(valid)}",
        )
    where = f"{configuration.path}: [presets.{above[-1]}] base: " if above else asked_in
    raise unknown_name(f"{where}there is no preset {name!r}", wanted, valid, "presets")


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
    remarks: tuple[Text, ...] = ()
    if name:
        base = preset(name, here, configuration, asked_in=f"{configuration.path}: [run] preset: " if not preset_name else "")
        remarks = tuple(filter(None, (in_place_of_ours(base),)))
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
        left = [Refused(key=k, value=choice[k], why=_OF_FILE) for k in ours_only]
        choice = {k: v for k, v in choice.items() if k not in ours_only}
    whole = applied(choice, here.installed, launcher=launcher, arguments=configuration.arguments)
    met: list[Met] = []
    # Where a preset of ours says how many, nobody has asked for workers that the script does not start.
    of_ours = {key for key, c in chosen.items() if c.origin == f"preset {name}" and c.why}
    whole = replace(whole, spelled={key: _at_most(one) if key in of_ours else one for key, one in whole.spelled.items()})
    spelled = {key: _met(key, one, chosen[key].is_typed, environ, option, word, met) for key, one in whole.spelled.items()}
    if "detail" in spelled and "INFO" in spelled["detail"].env.values():
        remarks = (*remarks, _INFO_ONLY)
    return Plan(
        chosen=tuple(chosen.values()), applied=together(spelled, (*left, *whole.refused)), met=tuple(met), unfit=unfit, preset=name, remarks=remarks
    )


def of_preset(preset: Preset, here: Here, configuration: Configuration) -> Applied:
    """What a run sets that is started with it alone."""
    whole = applied(preset.settings, here.installed, arguments=configuration.arguments)
    return together({key: _at_most(one) if key in preset.why else one for key, one in whole.spelled.items()}, whole.refused)


def _at_most(one: Spelled) -> Spelled:
    workers = one.env.get(LOADER_WORKERS, "0")
    return one if workers == "0" else replace(one, env={LOADER_WORKERS_MOST: workers})


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
        kept = not is_typed or name in _RDZV
        met.append(Met(key=key, name=name, theirs=theirs, ours=ours, kept=kept))
        return not kept

    def exported(name: str) -> str | None:
        return next((environ[n] for n in (name, *_ALIASES.get(name, ())) if n in environ), None)

    def theirs_for(name: str) -> tuple[str, str | None]:
        # torchrun takes the option before the variable.
        typed = option(_RDZV[0]) if name == _RDZV[1] else None
        return (name, exported(name)) if typed is None else (_RDZV[0], typed)

    env = {n: v for n, v in one.env.items() if wins(*theirs_for(n), v)}
    options = tuple((n, v) for n, v in one.options if wins(n, option(n), v))
    # LLaMA-Factory's are a word each; a script's own flag may be several words.
    groups = [(a,) for a in one.arguments] if all("=" in a for a in one.arguments) else [one.arguments]
    arguments = tuple(a for group in groups if group and wins(*_flag_of(group, word)) for a in group)
    if one.arguments and not arguments and any(m.key == key and m.kept for m in met):
        # Theirs is kept whole: our hook would overrule it.
        return replace(one, env={}, options=(), arguments=())
    return one.without(env, options, arguments)


def _flag_of(group: tuple[str, ...], word: Callable[[str], str | None]) -> tuple[str, str | None, str]:
    """A flag, what it is in the command already, and what it is to be."""
    flag, joined, value = group[0].partition("=")
    return flag, word(flag), value if joined else " ".join(group[1:])


def refused_of_typed(found: Plan) -> tuple[Refused, ...]:
    """Settings that were typed and would have no effect: an error, where those of a preset are only told."""
    typed = {c.key for c in found.chosen if c.is_typed}
    return tuple(r for r in found.applied.refused if r.key in typed)


def instead_of(refused: Refused) -> str:
    """What does what was probably meant by a setting that is refused here."""
    known = SETTINGS.get(refused.key)
    if known is not None and known.flag:
        return (
            f"change the number in the script, or give the script its own flag (train.py {known.flag} {refused.value}); where unhang.toml knows the "
            f'flag ([arguments] {known.key} = "{known.flag}"), --set {known.key}={worded(refused.value)} puts it there'
        )
    if known is not None and known.instead:
        return known.instead
    if refused.why == support.NO_NCCL:
        return "leave it out: nothing here talks over NCCL; Gloo takes --set interface=NAME and --timeout TIME"
    return "leave it out; unhang presets --settings lists every setting"
