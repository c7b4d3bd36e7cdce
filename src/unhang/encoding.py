"""JSON of what a machine said. Names of files and values of variables are bytes: what of them is no UTF-8 becomes "?"."""

from __future__ import annotations

from typing import Any

import msgspec

from unhang.printable import escape_json

# What the decoder raises for bytes that are not the JSON that is expected.
NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def encode(value: object) -> bytes:
    """As JSON, whatever texts stand in it; on a terminal none of them acts."""
    try:
        encoded = msgspec.json.encode(value)
    except UnicodeEncodeError:
        encoded = msgspec.json.encode(_encodable(msgspec.to_builtins(value)))
    return encoded if encoded.isascii() and b"\x7f" not in encoded else escape_json(encoded.decode()).encode()


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, (list, tuple)):
        return [_encodable(item) for item in value]
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return value
