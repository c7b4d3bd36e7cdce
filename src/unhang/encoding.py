"""JSON of what a machine said. Names of files and values of variables are bytes: what of them is no UTF-8 becomes "?"."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import msgspec

from unhang.printable import escape_json
from unhang.text import PATTERNS, Text, filled, same

T = TypeVar("T")

# What the decoder raises for bytes that are not the JSON that is expected.
NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
# A foreign message may grow at each level of nesting, or ask for a huge field width.
_MOST_CHARS = 8000
_WIDE = re.compile(r"\{[^}]*\d{3}")


def encode(value: object) -> bytes:
    """As JSON, whatever texts stand in it; on a terminal none of them acts.

    `Text` is written in English. "messages" of the document maps that to its template and values, so that it can be shown in any language later.
    """
    messages: dict[str, Any] = {}

    def hook(said: object) -> str:
        if not isinstance(said, Text):
            raise NotImplementedError(type(said))
        if isinstance(message := _message(said), dict):
            messages[str(said)] = message
        return str(said)

    try:
        encoded = msgspec.json.encode(value, enc_hook=hook)
    except UnicodeEncodeError:
        encoded = msgspec.json.encode(_encodable(msgspec.to_builtins(value, enc_hook=hook)))
    if messages and encoded.endswith(b"}"):
        encoded = encoded[:-1] + b',"messages":' + msgspec.json.encode(_encodable(messages)) + b"}"
    return encoded if encoded.isascii() and b"\x7f" not in encoded else escape_json(encoded.decode()).encode()


def plain(value: Any) -> Any:
    """As dictionaries, lists and what else JSON has, each `Text` as it is."""
    if isinstance(value, str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {plain(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(one) for one in value]
    return msgspec.to_builtins(value)


def _message(said: object) -> object:
    if not isinstance(said, Text):
        return said if type(said) in (int, float, bool) or said is None else str(said)
    if said.template == "{text}" and not said.edits:
        return str(said)
    made: dict[str, Any] = {"template": said.template}
    if said.context:
        made["context"] = said.context
    if said.values:
        made["values"] = {name: _message(value) for name, value in said.values.items()}
    if said.edits:
        made["edits"] = [[pattern, _message(by)] for pattern, by in said.edits]
    return made


def decode(encoded: bytes, kind: type[T]) -> T:
    """A document that `encode` wrote. Raises as msgspec does (NOT_JSON)."""
    if b'"messages"' not in encoded:
        return msgspec.json.decode(encoded, type=kind)
    found = msgspec.json.decode(encoded)
    return msgspec.convert(with_messages(found), kind, str_keys=True)


def with_messages(document: Any) -> Any:
    """A decoded document, each text in it that is in its "messages" as the `Text` that it was."""
    messages = document.pop("messages", None) if isinstance(document, dict) else None
    if not isinstance(messages, dict):
        return document

    known = {said: _text(said, message) for said, message in messages.items()}

    def texts(value: Any) -> Any:
        if isinstance(value, str):
            return known.get(value, value)
        if isinstance(value, list):
            return [texts(one) for one in value]
        return {key: texts(one) for key, one in value.items()} if isinstance(value, dict) else value

    return texts(document)


def _text(said: str, message: Any) -> str:
    """Only what comes to the same in English: others may have written the document."""
    try:
        made = _made(message)
    except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError):
        return said
    return made if made == said else said


def _made(message: Any) -> Text:
    if not isinstance(message, dict):
        return same(str(message))
    template = message["template"]
    if len(template) > _MOST_CHARS or _WIDE.search(template):
        raise ValueError(template[:80])
    values = {name: _made(one) if isinstance(one, dict) else one for name, one in message.get("values", {}).items()}
    if sum(len(str(value)) for value in values.values()) * (template.count("{") or 1) > _MOST_CHARS**2 // 8:
        raise ValueError(template[:80])
    text = Text(filled(template, values) if values else template, template, message.get("context", ""), values)
    for pattern, by in message.get("edits", ()):
        if len(text) > _MOST_CHARS or (pattern not in PATTERNS and pattern != re.escape(re.sub(r"\\(.)", r"\1", pattern))):
            raise ValueError(pattern)
        text = text.edited(pattern, _made(by))
    if len(text) > _MOST_CHARS:
        raise ValueError(template[:80])
    return text


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, (list, tuple)):
        return [_encodable(item) for item in value]
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return value
