"""A model's shape from files: config.json, or the headers of safetensors. No weight is read and nothing is downloaded."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from unhang.errors import UnhangError
from unhang.i18n import msg
from unhang.plan.model_shape import Shape, from_config, from_numbers

_MOST_CONFIG_BYTES = 16 * 1024**2
# The format's own limit (safetensors, README: 100 MB).
_MOST_HEADER_BYTES = 100_000_000
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|layer)\.(\d+)\.")
# Of which field the given dimension of a tensor is the size: (field, dimension), first match wins.
_TENSORS = (
    (re.compile(r"(?:embed_tokens|wte|embed_in|word_embeddings)\.weight$"), (("vocab", 0), ("hidden", 1))),
    (re.compile(r"(?:up_proj|fc1|dense_h_to_4h|w3)\.weight$"), (("intermediate", 0),)),
    (re.compile(r"c_fc\.weight$"), (("intermediate", 1),)),
)
_KEY = re.compile(r"k_proj\.weight$")
_HEAD = re.compile(r"(?:lm_head|embed_out)\.weight$")


def read(path: Path) -> Shape:
    """The shape of a config.json, a *.safetensors file, its index, or a directory that holds them. Raises UnhangError."""
    if path.is_dir():
        weights, config = _weights(path), path / "config.json"
        if config.is_file():
            fields = _json(config)
            shape = from_config(str(path), fields)
            # Packed weights have other shapes; they train as adapters on what the config describes.
            return replace(shape, counted=_count(_headers(weights))) if weights and "quantization_config" not in fields else shape
        if weights:
            return _from_tensors(str(path), _headers(weights))
        raise UnhangError(
            msg("{path} holds neither config.json nor *.safetensors", path=path),
            hint="unhang plan DIRECTORY/config.json",
        )
    if path.suffix == ".safetensors":
        return _from_tensors(str(path), _headers([path]))
    found = _json(path)
    if "weight_map" in found:
        return _from_tensors(str(path), _headers(_indexed(path)))
    return from_config(str(path), found)


def _indexed(path: Path) -> list[Path]:
    files = _json(path).get("weight_map")
    if not isinstance(files, dict):
        raise UnhangError(msg("{path} is no index of safetensors", path=path))
    return sorted({path.parent / Path(str(name)).name for name in files.values()})


def _weights(directory: Path) -> list[Path]:
    """Those of the index, since some models lie in a directory twice (consolidated.safetensors)."""
    index = directory / "model.safetensors.index.json"
    return _indexed(index) if index.is_file() else sorted(directory.glob("*.safetensors"))


def config(path: Path) -> Mapping[str, Any] | None:
    """The fields of the config.json that `read` would use; None if it uses none."""
    path = path / "config.json" if path.is_dir() else path
    found = _json(path) if path.suffix == ".json" and path.is_file() else {}
    return found if "model_type" in found else None


def _json(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as f:
            data = f.read(_MOST_CONFIG_BYTES + 1)
        found = json.loads(data) if len(data) <= _MOST_CONFIG_BYTES else None
    except OSError as e:
        raise UnhangError(f"cannot read {path}: {e.strerror}") from e
    except (ValueError, RecursionError) as e:
        raise UnhangError(f"{path} is no JSON: {e}") from e
    if not isinstance(found, dict):
        raise UnhangError(msg("{path} is no config.json of a model", path=path))
    return found


def _headers(paths: list[Path]) -> Mapping[str, tuple[int, ...]]:
    """Shapes of all tensors by name."""
    return {name: shape for path in paths for name, shape in _header(path)}


def _header(path: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Eight bytes with the length of a JSON object, then that (safetensors, README, Format)."""
    try:
        with path.open("rb") as f:
            (length,) = struct.unpack("<Q", f.read(8))
            found = json.loads(f.read(length)) if length <= _MOST_HEADER_BYTES else None
        for name, tensor in found.items() if found is not None else ():
            if name != "__metadata__":
                # A hostile header stays countable.
                yield name, tuple(min(max(int(size), 0), 2**40) for size in tensor["shape"][:8])
    except OSError as e:
        raise UnhangError(f"cannot read {path}: {e.strerror}") from e
    except (struct.error, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        found = None
    if found is None:
        raise UnhangError(msg("{path} has no header of safetensors", path=path))


def _from_tensors(name: str, tensors: Mapping[str, tuple[int, ...]]) -> Shape:
    found: dict[str, int] = {}
    for tensor, shape in tensors.items():
        for pattern, fields in _TENSORS:
            if len(shape) == 2 and pattern.search(tensor):
                for field, dimension in fields:
                    found.setdefault(field, shape[dimension])
        if (layer := _LAYER.search(tensor)) is not None:
            found["layers"] = max(found.get("layers", 0), int(layer[1]) + 1)
    if not {"layers", "hidden", "vocab"} <= found.keys():
        raise UnhangError(
            msg(
                "{name}: its tensors tell no decoder: {keys} missing", name=name, keys=", ".join(sorted({"layers", "hidden", "vocab"} - found.keys()))
            ),
            hint="unhang plan config.json",
        )
    heads = max(1, found["hidden"] // 128)
    key = next((shape[0] for tensor, shape in tensors.items() if _KEY.search(tensor)), None)
    if key is not None:
        found["kv_heads"] = max(1, key * heads // found["hidden"])
    tied = not any(_HEAD.search(tensor) for tensor in tensors)
    return replace(from_numbers(name, found, tied=tied), counted=_count(tensors))


def _count(tensors: Mapping[str, tuple[int, ...]]) -> int:
    return sum(math.prod(shape) for shape in tensors.values())
