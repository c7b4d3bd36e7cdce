"""Writes the documentation that is made from code: the index of causes and docs/settings. With --check, reports what is out of date and exits with 1.

`--pages DIR` writes a page for each cause in both languages, which belong to a release and are not kept in git.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from unhang.knowledge import catalogue
from unhang.report import settings_page
from unhang.report.cause_page import index, page

ROOT = Path(__file__).resolve().parent.parent


def kept() -> dict[Path, str]:
    """Every generated file that git keeps, and what it has to hold."""
    of_settings = ROOT / "docs" / "settings"
    return {
        ROOT / "docs" / "causes" / "index.md": index(catalogue.load().values()),
        of_settings / "settings.md": settings_page.settings(),
        of_settings / "presets.md": settings_page.presets(),
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--pages", type=Path, metavar="DIR")
    asked = parser.parse_args(arguments)
    wanted = kept() if asked.pages is None else {asked.pages / f"{cause.id}.md": page(cause) for cause in catalogue.load().values()}
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text("utf-8") != text]
    if asked.check:
        for path in stale:
            sys.stderr.write(f"{path} is out of date\n")
        if stale:
            sys.stderr.write("Try: python scripts/generate_docs.py\n")
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path], "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
