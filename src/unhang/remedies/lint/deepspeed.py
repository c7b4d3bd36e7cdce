"""DeepSpeed's JSON: keys that it does not read, values that it refuses or that do nothing, the arithmetic of batches, and `auto`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import prod

from unhang.knowledge.words import Text, joined, msg, same
from unhang.remedies.lint.documents import ABSENT, Key, Layout, Problem, dotted, known, nearest, table

_TRAIN, _MICRO, _STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
_ZERO = "zero_optimization"
_DEVICES = ("none", "cpu", "nvme")
_BATCHES = (_TRAIN, _MICRO, _STEPS)
# Not one of them is DeepSpeed's, and all mean the same.
_BACKENDS = frozenset(
    f"{of}backend{end}" for of in ("", "comm_", "communication_", "dist_", "distributed_", "ddp_", "process_group_") for end in ("", "_name", "_type")
)


def check(keys: tuple[Key, ...], layout: Layout) -> Iterator[Problem]:
    by_path = {tuple(map(str, k.path)): k for k in keys}
    filled = [key for key in keys if key.value == "auto" and dotted(key.path) in table("deepspeed", "words")["auto"].split()]
    for key in keys:
        if key.value == "auto" and key not in filled:
            name = dotted(key.path)
            says = msg("{name} is auto, and nothing fills that in: neither DeepSpeed, the Hugging Face Trainer nor accelerate", name=name)
            yield key.problem(says, msg("a number or true/false"))
    if filled:
        first, more = dotted(filled[0].path), len(filled) - 1
        also = msg(" and {more} more are", more=more, all=more + 1) if more else msg(" is")
        says = msg(
            "{first}{also} auto: the Hugging Face Trainer and accelerate fill that in, deepspeed.initialize alone does not",
            first=first,
            also=also,
        )
        yield filled[0].problem(says, note=True)
    yield from _names(keys)
    yield from _kinds(by_path)
    yield from _precision(by_path)
    yield from _zero(by_path)
    top = {path[0]: key for path, key in by_path.items() if len(path) == 1}
    # What fills in `auto` brings the batches, too.
    if _TRAIN not in top and _MICRO not in top and not any(k.value == "auto" for k in keys):
        says = msg("neither {whole} nor {micro}: DeepSpeed refuses the file", whole=_TRAIN, micro=_MICRO)
        yield Problem(line=1, says=says, instead=same(f'"{_MICRO}": 1'))
    yield from _batches(top, layout)


def _names(keys: tuple[Key, ...]) -> Iterator[Problem]:
    names = known("deepspeed")
    for key in keys:
        *above, name = map(str, key.path)
        section = dotted(above)
        # People write their remarks as keys, since JSON has no comments.
        if name.startswith(("_", "#", "//")) or "comment" in name or isinstance(key.path[-1], int):
            continue
        if section == _ZERO and name in table("deepspeed", "instead"):
            yield key.problem(msg("{path} is deprecated", path=dotted(key.path)), table("deepspeed", "instead")[name])
        elif not section and name in names["removed"]:
            yield key.problem(msg("`{name}` is refused by DeepSpeed 0.19.8: the feature was removed", name=name))
        elif name in _BACKENDS and name not in names.get(section or "top", ()) and section in names.keys() | {""}:
            yield key.problem(msg("DeepSpeed's JSON has no key for the backend"), 'deepspeed.init_distributed(dist_backend="gloo")')
        elif (section or "top") in names and name not in names[section or "top"]:
            does = msg("refuses the file") if section in names["strict"] else msg("ignores it")
            says = (
                msg("DeepSpeed has no key `{name}` in {section}, and {does}", name=name, section=section, does=does)
                if section
                else msg("DeepSpeed has no key `{name}`, and {does}", name=name, does=does)
            )
            yield key.problem(says, _elsewhere(name, section) or nearest(name, names[section or "top"]))


def _elsewhere(name: str, section: str) -> Text | None:
    """Where such a key does stand, if it is only in the wrong place."""
    names = known("deepspeed")
    if section and name in names["top"]:
        return msg("{name} at the top level", name=name)
    home = next((home for home in (_ZERO, "fp16") if home != section and name in names[home] and name != "enabled"), None)
    return msg("{name} in {home}", name=name, home=home) if home else None


def _precision(by_path: Mapping[tuple[str, ...], Key]) -> Iterator[Problem]:
    def enabled(name: str) -> Key | None:
        key = by_path.get((name, "enabled"), ABSENT)
        return key if key.value is True else None

    bf16, fp16 = enabled("bf16") or enabled("bfloat16"), enabled("fp16")
    if bf16 is not None and fp16 is not None:
        yield Problem(line=max(bf16.line, fp16.line), says=msg("bf16 and fp16 are both enabled: DeepSpeed refuses that"), instead=msg("one of them"))


def _kinds(by_path: Mapping[tuple[str, ...], Key]) -> Iterator[Problem]:
    """Sections that are none, and lists and sections in the place of a number, a word or a switch."""
    names = known("deepspeed")
    for path, key in by_path.items():
        section = dotted(path)
        if path == (_ZERO,) and isinstance(key.value, bool):
            yield key.problem(msg("zero_optimization is a section; true alone is deprecated, and means stage 1"), '"zero_optimization": {"stage": 2}')
        elif section in names and section not in ("top", "removed", "strict"):
            if key.is_list or (key.is_leaf and key.value is not None):
                shown = _shown(key)
                says = msg("{section} is a section, not {shown}", section=section, shown=shown)
                yield key.problem(says, f'"{path[-1]}": {table("deepspeed", "examples").get(path[-1], "{...}")}')
        elif not key.is_leaf and (path[-1] in table("deepspeed", "words")["plain"].split() if len(path) == 1 else _is_plain_within(path)):
            yield key.problem(msg("{section} is {shown}: one value belongs there", section=section, shown=_shown(key)), f'"{path[-1]}": ...')


def _is_plain_within(path: tuple[str, ...]) -> bool:
    """Of a name that DeepSpeed does not have nothing is known but that."""
    section, name, words = dotted(path[:-1]), path[-1], table("deepspeed", "words")
    return section in words["plain_within"].split() and name not in words["hold"].split() and name in known("deepspeed").get(section, ())


def _zero(by_path: Mapping[tuple[str, ...], Key]) -> Iterator[Problem]:
    section, given = by_path.get((_ZERO,), ABSENT), by_path.get((_ZERO, "stage"), ABSENT)
    if section.is_leaf or section.is_list or not given.is_leaf:
        return
    stage = given.value if given is not ABSENT else 0
    if stage == "auto":
        return
    if isinstance(stage, bool) or stage not in (0, 1, 2, 3):
        # DeepSpeed takes "2" for 2.
        if str(stage) not in ("0", "1", "2", "3"):
            says = msg("zero_optimization.stage is {shown}: there are 0 to 3", shown=_shown(given))
            # Which was meant nobody can tell.
            yield given.problem(says, "0, 1, 2, 3")
            return
        stage = int(stage)
    if given is ABSENT:
        yield section.problem(msg("zero_optimization without stage is stage 0: ZeRO is off"), '"stage": 2')
    for name, lowest in (("offload_optimizer", 1), ("offload_param", 3)):
        device = by_path.get((_ZERO, name, "device"), ABSENT)
        if device.value in (None, "none", "auto"):
            continue
        if device.value not in _DEVICES:
            yield device.problem(msg("{name}.device is {shown}: DeepSpeed refuses it", name=name, shown=_shown(device)), "cpu, nvme, none")
        elif stage < lowest:
            yield device.problem(msg("{name} has no effect with stage {stage}", name=name, stage=stage), f'"stage": {max(lowest, 2)}')
        if device.value == "nvme" and (_ZERO, name, "nvme_path") not in by_path:
            yield device.problem(msg("{name} goes to nvme, and nvme_path is missing", name=name), '"nvme_path": "/local_nvme"')
    ratio = by_path.get((_ZERO, "offload_optimizer", "ratio"), ABSENT)
    if stage != 3 and isinstance(ratio.value, int | float) and ratio.value < 1:
        yield ratio.problem(msg("offload_optimizer.ratio below 1 is refused with any stage but 3"), '"stage": 3')


def _shown(key: Key) -> Text:
    if not key.is_leaf:
        return msg("a list") if key.is_list else msg("a section")
    return same(json.dumps(key.value, ensure_ascii=False))


def _batches(top: Mapping[str, Key], layout: Layout) -> Iterator[Problem]:
    numbers: dict[str, int] = {}
    for name in _BATCHES:
        key = top.get(name)
        if key is None or key.value == "auto" or not key.is_leaf:
            continue
        if type(key.value) is not int:
            yield key.problem(msg("{name} is a whole number, not {key}", name=name, key=_shown(key)))
            return
        if key.value < 1:
            yield key.problem(msg("{name} is {value}: it is at least 1", name=name, value=key.value))
            return
        numbers[name] = key.value
    if _TRAIN not in numbers:
        return
    train, micro, steps, world = numbers[_TRAIN], numbers.get(_MICRO), numbers.get(_STEPS), layout.world
    line, product = top[_TRAIN].line, (micro or 1) * (steps or 1) * (world or 1)
    if micro is not None and steps is not None and world is not None and train != product:
        says = msg(
            "train_batch_size is {train}, but {micro} per GPU x {steps} accumulation steps x {world} ranks is {product}",
            train=train,
            micro=micro,
            steps=steps,
            world=world,
            product=product,
        )
        yield Problem(line=line, says=says, instead=_either(numbers, world))
    elif train % product:
        # Whatever is not given is a whole number.
        says = msg(
            "train_batch_size is {train}, which no whole number times {product} (the other factors that are known) makes",
            train=train,
            product=product,
        )
        yield Problem(line=line, says=says, instead=_either(numbers, world))


def _either(numbers: Mapping[str, int], world: int | None) -> Text:
    """Each of the numbers that alone could be changed, and to what. What is not known may be any whole number."""
    train, factors = numbers[_TRAIN], {name: numbers[name] for name in (_MICRO, _STEPS) if name in numbers}
    product = prod(factors.values()) * (world or 1)
    is_whole = len(factors) == 2 and world is not None
    found = [f'"{_TRAIN}": {product if is_whole else max(1, round(train / product)) * product}']
    for name, value in factors.items():
        share, left = divmod(train, product // value)
        if not left:
            fits = share if is_whole else next(n for n in range(min(value, share), 0, -1) if share % n == 0)
            found.append(f'"{name}": {fits}')
    return joined(found, msg(" or "))
