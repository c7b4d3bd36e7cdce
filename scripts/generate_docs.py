"""Writes the documentation that is made from code (docs/causes, docs/settings); with --check, says what is out of date and ends with 1."""

from __future__ import annotations

import sys
from pathlib import Path

from unhang.knowledge import catalogue
from unhang.report import settings_page
from unhang.report.cause_page import index, page

ROOT = Path(__file__).resolve().parent.parent


def pages() -> dict[Path, str]:
    """Every generated file and what it has to hold."""
    folder, of_settings = ROOT / "docs" / "causes", ROOT / "docs" / "settings"
    causes = catalogue.load().values()
    return {
        folder / "index.md": index(causes),
        **{folder / f"{c.id}.md": page(c) for c in causes},
        of_settings / "settings.md": settings_page.settings(),
        of_settings / "presets.md": settings_page.presets(),
    }


def main(arguments: list[str]) -> int:
    wanted = pages()
    folders = {path.parent for path in wanted}
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text("utf-8") != text]
    orphans = sorted(p for folder in folders if folder.is_dir() for p in folder.glob("*.md") if p not in wanted)
    if "--check" in arguments:
        for path in (*stale, *orphans):
            sys.stderr.write(f"{path.relative_to(ROOT)} is out of date\n")
        if stale or orphans:
            sys.stderr.write("Try: python scripts/generate_docs.py\n")
        return 1 if stale or orphans else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path], "utf-8")
    for path in orphans:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
