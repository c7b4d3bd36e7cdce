"""Settings of every torch.utils.data.DataLoader, as the user of unhang asked for them. Subclasses come by here as long as they call its __init__.

torchdata's StatefulDataLoader does not: it repeats the code, and is patched by its own name.
"""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any

from . import overrides
from .protocol import ENV_LOADER_WORKERS, ENV_LOADER_WORKERS_MOST, ENV_PERSISTENT_WORKERS, ENV_PIN_MEMORY, ENV_PREFETCH

# What only worker processes have, and what a loader without them must be told instead.
_OF_WORKERS = {"prefetch_factor": None, "persistent_workers": False, "timeout": 0, "multiprocessing_context": None}


def patch(module: ModuleType) -> None:
    """torch.utils.data.dataloader."""
    _patch_class(module, "DataLoader")


def patch_stateful(module: ModuleType) -> None:
    """torchdata.stateful_dataloader.stateful_dataloader."""
    _patch_class(module, "StatefulDataLoader")


def _patch_class(module: Any, name: str) -> None:
    wanted = {
        "num_workers": overrides.count(ENV_LOADER_WORKERS, least=0),
        "pin_memory": overrides.switch(ENV_PIN_MEMORY),
        "persistent_workers": overrides.switch(ENV_PERSISTENT_WORKERS),
        "prefetch_factor": overrides.count(ENV_PREFETCH, least=1),
    }
    wanted = {setting: value for setting, value in wanted.items() if value is not None}
    most = overrides.count(ENV_LOADER_WORKERS_MOST, least=0)
    loader = getattr(module, name)

    def change(arguments: dict[str, Any], signature: inspect.Signature) -> None:
        defaults = {s: p.default for s, p in signature.parameters.items()}
        asked = arguments.get("num_workers", defaults["num_workers"])
        # A preset lets no loader have more, and gives none to a loader that has none.
        fewer = {"num_workers": most} if most is not None and isinstance(asked, int) and asked > most else {}
        _apply(arguments, defaults, {**fewer, **wanted})

    loader.__init__ = overrides.rebound(loader.__init__, change)


def _apply(arguments: dict[str, Any], defaults: dict[str, Any], wanted: dict[str, Any]) -> None:
    given = {**defaults, **arguments}
    applied = dict(wanted)
    if not given["num_workers"] and applied.get("num_workers") and _is_iterable(given["dataset"]):
        # Each worker would give out the whole dataset: it says nowhere that it divides itself among them.
        overrides.ignored("loader num_workers", applied.pop("num_workers"), "iterable")
    workers = applied.get("num_workers", given["num_workers"])
    if workers == 0:
        for setting in applied.keys() & {"prefetch_factor", "persistent_workers"}:
            if applied[setting]:
                overrides.ignored(f"loader {setting}", applied[setting], "workers")
        applied = {setting: value for setting, value in applied.items() if setting not in _OF_WORKERS}
        # Only where it was we who took the workers away: what the script got wrong by itself, torch tells it.
        if given["num_workers"] != 0:
            applied |= {setting: value for setting, value in _OF_WORKERS.items() if setting in arguments}
    for setting, value in applied.items():
        if setting in defaults and given[setting] != value:
            if setting in wanted and wanted[setting] == value:
                overrides.changed(f"loader {setting}", was=given[setting], now=value)
            arguments[setting] = value


def _is_iterable(dataset: Any) -> bool:
    torch_data: Any = sys.modules["torch.utils.data.dataset"]
    return isinstance(dataset, torch_data.IterableDataset)
