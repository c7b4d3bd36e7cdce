"""Templates filled in. Whatever is filled in is quoted for the language that it stands in; a name that a template lacks is an error."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from unhang.settings.setting import typed

if TYPE_CHECKING:
    from jinja2 import Environment

_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")
_FIELDS = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "'": "\\'", "\\": "\\\\"}


def render(template: str, **values: object) -> str:
    return _environment().get_template(f"{template}.j2").render(**values).rstrip("\n") + "\n"


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("unhang.remedies.exports", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # Each form quotes for its own language; HTML is none of them.
        autoescape=False,
    )
    made.filters |= {
        "sh": shell,
        "words": words,
        "yaml": yaml,
        "py": python,
        "js": json.dumps,
        "comment": comment,
        "docker": docker,
        "literal": literal,
        "said": typed,
    }
    return made


def shell(value: Any) -> str:
    """One word of bash, on one line: a newline in quotes would end a comment that the word stands in."""
    text = str(value)
    if not _CONTROL.search(text):
        # Right behind an assignment a second = is no error, and looks like one.
        return f"'{text}'" if text.startswith("=") and shlex.quote(text) == text else shlex.quote(text)
    return "$'" + "".join(_FIELDS.get(c) or (f"\\u{ord(c):04x}" if _CONTROL.match(c) else c) for c in text) + "'"


def words(values: Iterable[object]) -> str:
    return " ".join(shell(v) for v in values)


def yaml(value: Any) -> str:
    """A scalar or a list as flow YAML on one line; JSON's strings are YAML's double-quoted ones."""
    text = json.dumps(value, ensure_ascii=True)
    # 1e-05 is a word in YAML 1.1, 1.0e-05 a number.
    return text.replace("e", ".0e") if isinstance(value, float) and "." not in text else text


def python(value: Any) -> str:
    return repr(value) if not isinstance(value, str) else json.dumps(value, ensure_ascii=True)


def comment(value: Any) -> str:
    """Something that stays on the line of its comment."""
    return _CONTROL.sub(" ", str(value))


def docker(value: Any) -> str:
    """A value of ENV, in whose quotes $ is still a variable's."""
    return '"' + "".join(f"\\{c}" if c in '\\"$' else c for c in comment(value)) + '"'


def literal(value: Any) -> str:
    """A word or value of a Kubernetes container, where $(NAME) is a variable and $$ is one $."""
    return str(value).replace("$", "$$")
