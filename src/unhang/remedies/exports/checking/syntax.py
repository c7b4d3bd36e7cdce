"""Whether bash takes a script at all: `bash -n` reads it, and runs nothing of it. Where there is no bash, nothing is said."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from unhang.facts.host import Host
from unhang.knowledge.text import Text
from unhang.remedies.exports.checking.problem import Problem

_TIMEOUT_S = 5.0
# One word of a command line has no room for more than 128 KiB.
_MOST_BYTES = 100_000
_BY_BASH = re.compile(r"#!.*\b(?:ba|da)?sh\b")
# Without a first line that names a shell it is bash that is given them, as a rule.
_NAMES = re.compile(r"-|(?:.*/)?(?:[^./]+|.+\.(?:sh|bash|sbatch|slurm|job))", re.DOTALL)
# What shopt turns on is not on for who only reads.
_ELSEWHERE = re.compile(r"extglob|\r")
_SAID = re.compile(r"line (?P<line>\d{1,9}): (?P<what>.*)")


def check(name: str, text: str) -> Iterator[Problem]:
    is_bash = _BY_BASH.match(text) if text.startswith("#!") else _NAMES.fullmatch(name)
    if not is_bash or _ELSEWHERE.search(text) or len(os.fsencode(text)) > _MOST_BYTES:
        return
    try:
        # -p: no file that the environment names is read before.
        ran = Host().run(("env", "LC_ALL=C", "bash", "-p", "-n", "-c", text), timeout_s=_TIMEOUT_S)
    except OSError:
        return
    said = _SAID.search(ran.err)
    if ran.exitcode and said is not None:
        line = min(int(said["line"]), text.rstrip("\n").count("\n") + 1)
        yield Problem(line=line, says=Text(f"bash cannot read it: {said['what']}", f"bash 无法读取：{said['what']}"))
