"""What of a change is needed: the smallest part of it that still works, found by dropping halves (QuickXplain, Junker 2004)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from unhang.settings.setting import Choice


def smallest(choice: Choice, *, added: Sequence[str], passes: Callable[[Choice], bool]) -> Choice:
    """Nothing can be taken from it without `passes` becoming false, as far as `passes` is monotone. Keys are in the order of their cost.

    `added` are the keys whose addition made it pass: as a rule they alone are needed, and that is asked first. `choice` as a whole has passed.
    """
    last = [key for key in choice if key in added]
    before = [key for key in choice if key not in added]

    def works(keys: Sequence[str]) -> bool:
        return passes({key: value for key, value in choice.items() if key in keys})

    needed = last if not before or works(last) else _needed(last, before, works, ask=False) + last
    if len(last) > 1:
        rest = [key for key in needed if key not in last]
        # Without what was added it did not work.
        needed = rest + _needed(rest, last, works, ask=False)
    return {key: value for key, value in choice.items() if key in needed}


def _needed(background: Sequence[str], candidates: Sequence[str], works: Callable[[Sequence[str]], bool], *, ask: bool) -> list[str]:
    """Those of `candidates` that `background` needs. Without `ask` it is known that the background alone does not work."""
    if ask and works(background):
        return []
    if len(candidates) == 1:
        return list(candidates)
    half = (len(candidates) + 1) // 2
    first, second = list(candidates[:half]), list(candidates[half:])
    of_second = _needed([*background, *first], second, works, ask=True)
    of_first = _needed([*background, *of_second], first, works, ask=bool(of_second))
    return of_first + of_second
