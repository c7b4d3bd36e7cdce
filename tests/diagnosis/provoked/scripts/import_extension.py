"""Imports a compiled extension, as trainings with fused kernels do."""

from __future__ import annotations

import sys

sys.path.insert(0, sys.argv[1])
import fused_adam  # type: ignore[import-not-found]

print(f"fused_adam {fused_adam.version()}", flush=True)
