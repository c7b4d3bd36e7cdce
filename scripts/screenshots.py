"""Pictures of the report for the documentation, taken in the browser in which it is tested: docs/report-8.png and docs/report-1024.png.

The jobs in them were never run; `tests/report/html/jobs.py` makes them, the same every time.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.report.html import chromium, jobs  # noqa: E402

from unhang.report.html import render  # noqa: E402

MAX_BYTES = 300_000
_PAINTED = (
    "(async () => { const t = unhang.timeline; do await new Promise((r) => requestAnimationFrame(r));"
    " while (t.left > 0 || t.overviewDone < t.lanes.rows.length); })()"
)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, chromium.browser() as browser:
        for name, made, top, height in (("report-8", jobs.small(), "header", 1500), ("report-1024", jobs.large(), "#timeline", 1180)):
            path = Path(folder) / f"{name}.html"
            path.write_text(render(*made), "utf-8")
            page = browser.page()
            page.size(1280, height)
            page.open(path)
            page.evaluate(f"document.querySelector('{top}').scrollIntoView()")
            page.evaluate(_PAINTED)
            data = page.screenshot()
            page.close()
            if len(data) > MAX_BYTES:
                sys.stderr.write(f"{name}.png is {len(data)} bytes, more than {MAX_BYTES}\n")
                return 1
            (ROOT / "docs" / f"{name}.png").write_bytes(data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
