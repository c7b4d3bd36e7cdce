"""Puts the compiled form of causes and translations into a wheel. Hatch calls it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Compiled(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        # What is installed from a checkout follows its files.
        if version == "editable":
            return
        sys.path.insert(0, str(Path(self.root, "src")))
        from unhang import data

        made = Path(self.directory, data.COMPILED)
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_bytes(data.dumped(data.compiled()))
        build_data["force_include"][str(made)] = f"unhang/{data.COMPILED}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        Path(self.directory, "compiled.bin").unlink(missing_ok=True)
