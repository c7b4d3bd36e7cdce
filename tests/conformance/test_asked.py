"""docs/asked.md has a row for each item of each report."""

import re
from pathlib import Path

ASKED = Path(__file__).resolve().parents[2] / "docs" / "asked.md"


def test_no_item_is_left_out():
    firsts = re.findall(r"^\| (S\d-\d[^|]*)\|", ASKED.read_text("utf-8"), re.MULTILINE)
    for report, last in {0: 14, 1: 14, 2: 19, 3: 21, 4: 12}.items():
        found = set()
        for first in firsts:
            for low, high in re.findall(rf"S{report}-(\d+)(?: to S{report}-(\d+))?", first):
                found |= set(range(int(low), int(high or low) + 1))
        assert found == set(range(1, last + 1)), report
