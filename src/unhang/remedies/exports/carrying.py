"""What a form does with each setting: its own key, a variable, an option of the launcher, `unhang run --set`, or a refusal with its reason.

Settings that only unhang's hook can apply (the backend, timeouts of all groups, loaders) are not exported as if a bare launcher read them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from unhang.knowledge.settings.catalogue import SETTINGS
from unhang.knowledge.settings.presets import OF_THE_SCRIPT
from unhang.knowledge.settings.setting import Applied, Choice, Installed, Refused, Value, applied, worded

_OF_HOOK = "UNHANG_"
# DataLoader raises ValueError for these where it has no workers, which is its default.
_OF_WORKERS = ("persistent-workers", "prefetch")
# A file is mostly for another machine: releases of today, as the form's own header says.
TODAY = Installed(
    torch=(2, 13),
    nccl=(2, 27, 5),
    packages={
        "accelerate": "1.15.0",
        "deepspeed": "0.19.8",
        "lightning": "2.6.6",
        "transformers": "5.23.0",
        "llamafactory": "0.9.5",
        "ray": "2.60.0",
    },
    gpus=8,
)


@dataclass(frozen=True, kw_only=True)
class Carried:
    """`native` are settings that the form has keys for, `sets` those that `unhang run --set` is given."""

    env: Mapping[str, str] = field(default_factory=dict)
    native: Choice = field(default_factory=dict)
    sets: tuple[str, ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    arguments: tuple[str, ...] = ()
    refused: tuple[Refused, ...] = ()
    why: Mapping[str, str] = field(default_factory=dict)


def carried(
    choice: Choice,
    installed: Installed,
    *,
    launcher: str,
    native: Collection[str] = (),
    arguments: Mapping[str, str] | None = None,
    with_unhang: bool | None = None,
    runs_unhang: bool = True,
    suggested: Collection[str] = (),
) -> Carried:
    """`with_unhang`: None where it starts through unhang only for what nothing else can apply, False never. `why` has the key of each variable.

    `runs_unhang`: whether the form has a place for `unhang run`. `suggested`: keys that nobody but a preset of ours has chosen.
    """
    left = [_of_the_script(key, choice[key]) for key in OF_THE_SCRIPT if key in choice and key in suggested]
    choice = {key: value for key, value in choice.items() if key not in {r.key for r in left}}
    whole: Applied = applied(choice, installed, launcher=launcher, arguments=arguments or {})
    idle = [_without_workers(key, choice[key]) for key in _OF_WORKERS if key in native and choice.get(key) and not choice.get("loader-workers")]
    own = {key: value for key, value in choice.items() if key in native and key not in {r.key for r in idle}}
    refused = [*left, *(r for r in whole.refused if r.key not in native), *idle]
    env: dict[str, str] = {}
    why: dict[str, str] = {}
    sets: list[str] = []
    options: list[tuple[str, str]] = []
    words: list[str] = []
    for key, one in whole.spelled.items():
        by_hook = any(name.startswith(_OF_HOOK) for name in one.env)
        plain = {name: value for name, value in one.env.items() if not name.startswith(_OF_HOOK)}
        if by_hook and key not in native:
            if with_unhang is False or not runs_unhang:
                refused.append(_only_by_hook(key, choice[key], runs_unhang))
            else:
                sets.append(f"{key}={said(choice[key])}")
            # unhang run adds what goes with it.
            continue
        if key in native and key not in own:
            continue
        env |= plain
        why |= dict.fromkeys(plain, key)
        if key not in own:
            options += one.options
            words += one.arguments
    return Carried(env=env, native=own, sets=tuple(sets), options=tuple(options), arguments=tuple(words), refused=tuple(refused), why=why)


def said(value: Value) -> str:
    """As --set takes it."""
    return ("on" if value else "off") if isinstance(value, bool) else worded(value)


def title(key: str) -> str:
    return SETTINGS[key].title


def _only_by_hook(key: str, value: Value, runs_unhang: bool) -> Refused:
    but, but_zh = ("--without-unhang leaves that out", " --without-unhang 不使用钩子")
    if not runs_unhang:
        but, but_zh = ("this form does not start through unhang run", "这种文件不通过 unhang run 启动")
    return Refused(
        key=key,
        value=value,
        why=f"nothing but unhang's hook applies it from outside a script, and {but}",
        why_zh=f"除 unhang 的钩子外，没有别的程序能在脚本之外设置它，而{but_zh}",
    )


def _of_the_script(key: str, value: Value) -> Refused:
    return Refused(
        key=key,
        value=value,
        why=f"what fits is a matter of the model; the preset's is a starting point, which --set {key}={worded(value)} writes",
        why_zh=f"合适的值取决于模型；预设值只是起点，用 --set {key}={worded(value)} 才会写入",
    )


def _without_workers(key: str, value: Value) -> Refused:
    return Refused(
        key=key,
        value=value,
        why=f"{key} needs workers, and loader-workers is 0 or not chosen",
        why_zh=f"{key} 需要工作进程，而 loader-workers 为 0 或未指定",
    )
