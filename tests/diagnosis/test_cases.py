"""Short logs of kinds that were once misread, with the verdict that each must get: `cases/*.txt`.

A line `=== name | key=value | ...` begins a case, and what follows up to the next one is its log. Keys: cause ("none" where nothing is found),
standing, ranks and hosts ("-" for nobody), where, says and lacks (words of the sentence), first (the id of the first remedy), file (the log's name).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.chinese import zh
from tests.tables import for_each

from unhang.diagnosis.logs import judge_logs

ROOM = Path(__file__).parent / "cases"


def _cases():
    for path in sorted(ROOM.glob("*.txt")):
        for part in re.split(r"(?m)^=== ", path.read_text())[1:]:
            head, _, log = part.partition("\n")
            name, *wanted = head.split(" | ")
            yield pytest.param(dict(w.split("=", 1) for w in wanted), log, id=f"{path.stem}-{name}")


@for_each(("wanted", "log"), list(_cases()))
def test_the_verdict_on(wanted, log, tmp_path):
    path = tmp_path / wanted.pop("file", "train.log")
    path.write_text(log)
    verdict = judge_logs([str(path)]).verdict
    assert not [n for n in verdict.not_examined if "its check is broken" in n.why]
    found = verdict.primary
    cause = wanted.pop("cause")
    if found is None:
        assert cause == "none"
        return
    says, lacks = wanted.pop("says", ""), wanted.pop("lacks", "")
    told = {
        "standing": found.standing,
        "ranks": ",".join(map(str, found.ranks)) or "-",
        "hosts": ",".join(found.hosts) or "-",
        "where": found.where,
        "first": found.remedies[0].id if found.remedies else "-",
    }
    assert (found.cause, {k: told[k] for k in wanted}) == (cause, wanted)
    assert says in found.says and not (lacks and lacks in found.says), found.says
    assert not zh(found.says) or re.search(r"[一-鿿]", zh(found.says))


def test_how_much_longer_a_bar_says(tmp_path):
    log = (ROOM / "lone_watchdog.txt").read_text()
    path = tmp_path / "train.log"
    path.write_text(log[log.index("Map (num_proc=8)") :].partition("===")[0])
    found = judge_logs([str(path)]).verdict.primary
    # 29:40 and 22:23, a quarter more, in whole ten minutes.
    assert next(r.command for r in found.remedies if r.id == "raise-the-timeout").startswith("--ddp_timeout 4200 ")
