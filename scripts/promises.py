"""What programs outside rely on, written down: schemas of documents, signatures of the library. A change of them shows in the diff of these files.

scripts/promises.py     writes docs/schemas/*.json and tests/conformance/library.txt; tests/conformance/test_promises.py compares them
"""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any, get_args

ROOT = Path(__file__).resolve().parents[1]


def documents() -> dict[str, Any]:
    """The type of each document that --json prints or a run directory keeps, by the name of its file."""
    from unhang import model
    from unhang.bench import records
    from unhang.facts.snapshot import Snapshot
    from unhang.launch.events import Event
    from unhang.plan.recommend import Plan
    from unhang.records.incident import Incident, Stacks
    from unhang.records.run_snapshot import RunSnapshot
    from unhang.records.status import Now
    from unhang.variables import examine

    return {
        "verdict": model.Verdict,
        "doctor": model.Examination,
        "solution": model.Outcome,
        "host": Snapshot,
        "vars": examine.Examined,
        "top": RunSnapshot,
        "plan": Plan,
        "bench": records.Asked,
        "bench-run": records.Run,
        "incident": Incident,
        "stacks": Stacks,
        "now": Now,
        "events": Event,
    }


# By what is told in English: what it was made of (`unhang.encoding`).
_MESSAGE = {"required": ["template"], "properties": {"template": {"type": "string"}, "context": {"type": "string"}, "values": {"type": "object"}}}
MESSAGES = {"type": "object", "additionalProperties": _MESSAGE}
TOLD = ("verdict", "doctor", "solution", "vars", "plan", "events")


def _text(kind: type) -> dict[str, Any]:
    return {"type": "string"}


def schemas() -> dict[str, str]:
    """The JSON Schema of each, without what docstrings say."""
    import msgspec

    made = {}
    for name, type_ in documents().items():
        # Of events each line is one of several.
        kinds, components = msgspec.json.schema_components(get_args(type_) or [type_], schema_hook=_text, ref_template="#/$defs/{name}")
        if name in TOLD:
            for kind in kinds:
                components[kind["$ref"].rpartition("/")[2]]["properties"]["messages"] = MESSAGES
        schema = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
        made[f"{name}.json"] = json.dumps(_bare({**schema, "$defs": components}), indent=1, sort_keys=True) + "\n"
    return made


def _bare(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_bare(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    # A property may have the name of a keyword.
    return {
        k: {name: _bare(one) for name, one in v.items()} if k in ("properties", "$defs") else _bare(v)
        for k, v in schema.items()
        # Which msgspec writes from 0.23 on.
        if k not in ("title", "description") and not (k == "default" and v == {})
    }


def library() -> str:
    """Each public name of `unhang` with its signature, a class with its public methods and properties."""
    import unhang

    lines: list[str] = []
    for name in sorted(unhang.__all__):
        found = getattr(unhang, name)
        if not callable(found):
            lines.append(name)
            continue
        lines.append(f"{name}{_signature(found)}")
        for member in sorted(vars(found)) if inspect.isclass(found) else ():
            value = inspect.getattr_static(found, member)
            if not member.startswith("_"):
                lines.append(
                    f"{name}.{member}{_signature(getattr(found, member)) if callable(getattr(found, member)) else ''} {type(value).__name__}"
                )
    return "\n".join(lines) + "\n"


def _signature(found: Any) -> str:
    """An exception's is that of BaseException, which some releases of Python do not tell."""
    try:
        return str(inspect.signature(found)).replace("(*args, **kwargs)", "(...)")
    except ValueError:
        return "(...)"


def main() -> int:
    folder = ROOT / "docs" / "schemas"
    folder.mkdir(exist_ok=True)
    for name, text in schemas().items():
        (folder / name).write_text(text)
    (ROOT / "tests" / "conformance" / "library.txt").write_text(library())
    return 0


if __name__ == "__main__":
    sys.exit(main())
