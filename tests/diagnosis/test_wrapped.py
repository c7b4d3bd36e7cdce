"""One traceback behind everything that may stand around each of its lines: the verdict is the same."""

from __future__ import annotations

import pytest

from unhang.diagnosis.logs import judge_logs

HEAD = "Traceback (most recent call last):"
FRAMES = """\
  File "/srv/job/train.py", line 88, in <module>
    main()
  File "/srv/job/train.py", line 61, in main
    loss = step(batch)
           ^^^^^^^^^^^
  File "/opt/py/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1751, in _wrapped_call_impl
    return self._call_impl(*args, **kwargs)"""
LAST = "ValueError: shard 12 has no label"
CHAINED = f"""\
{HEAD}
  File "/srv/job/data.py", line 12, in load
    return table[key]
KeyError: 'label'

The above exception was the direct cause of the following exception:

"""
BOX = """\
╭───────────────────── Traceback (most recent call last) ──────────────────────╮
│ /srv/job/train.py:61 in main                                                 │
│                                                                              │
│   59 │   for batch in data:                                                  │
│ ❱ 61 │   │   loss = step(batch)                                              │
╰──────────────────────────────────────────────────────────────────────────────╯"""
KINDS = {
    "whole": (HEAD, FRAMES, LAST),
    "without its head": (FRAMES, LAST),
    "with more of its message": (HEAD, FRAMES, LAST, "  the labels are: a, b"),
    "chained": (CHAINED + HEAD, FRAMES, LAST),
    "its exception first": (LAST, HEAD, FRAMES),
    "its exception first, without its head": (LAST, FRAMES),
    "in a box": (BOX, LAST),
}
INDENTED = ("", " ", "    ", "\t")
AROUND = {
    "nothing": "{}",
    "a tag": "[rank3]: {}",
    "the launcher's tag": "[default3]:{}",
    "a column": "│ {:<99}│",
    "a column of bars": "| {:<99}|",
    "an open column": "│ {}",
    "a quote": "> {}",
    "a narrow quote": ">{}",
    "a quote of a quote": "> > {}",
    "an indented quote": "  > {}",
    "a quoted column": "> │ {:<99} │",
    "a tagged column": "[rank3]: │ {:<99} │",
    "a column of tags": "│ [rank3]: {:<99} │",
    "a quoted tag": "> [rank3]: {}",
    "a tagged quote": "[rank3]: > {}",
    "an indented tag": "\t[rank3]: {}",
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_verdict_behind_all_that_stands_around(kind, tmp_path):
    lines = "\n".join(KINDS[kind]).splitlines()
    wrong = {}
    for indent in INDENTED:
        for around, form in AROUND.items():
            path = tmp_path / "train.log"
            path.write_text("".join(f"{form.format(indent + line).rstrip()}\n" for line in lines))
            found = judge_logs([str(path)]).verdict.primary
            told = found and (found.cause, found.standing, found.ranks, found.where, found.says.partition(":")[2][:22])
            ranks = (3,) if "[rank3]" in form else ()
            # Frames behind an exception may be those of another one.
            standing = "established" if ranks and kind != "its exception first" else "likely"
            if told != ("rank-exception", standing, ranks, "/srv/job/train.py:61 in main", " shard 12 has no label"):
                wrong[around, indent] = told
    assert not wrong
