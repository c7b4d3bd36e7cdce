"""Keys with their lines, and broken files: where, and what the parser said."""

from __future__ import annotations

import pytest

from unhang.errors import UnhangError
from unhang.remedies.exports.checking import check, documents


@pytest.mark.parametrize(
    ("name", "text", "says", "hint"),
    [
        ("a.json", '{\n  "train_batch_size": 4,\n}', "a.json:3:1 is no JSON", "comma"),
        ("a.json", '{\n  // eight ranks\n  "train_batch_size": 4}', "a.json:2:3 is no JSON", "no comments"),
        ("a.json", "{'train_batch_size': 4}", "a.json:1:2 is no JSON", "double quotes"),
        ("a.json", '{"train_batch_size" 4}', "a.json:1:21 is no JSON: Expecting ':' delimiter", None),
        ("a.yaml", "num_machines: [1, 2\nnum_processes: 4\n", "a.yaml:2:14 is no YAML: while parsing a flow sequence", None),
        ("file", "num_machines: 1\n\tnum_processes: 4\n", "file:2:1 is no YAML", "a tab"),
        ("a.yaml", "num_machines:\n\tnum_processes: 4\n", "a.yaml:2:1 is no YAML", "a tab"),
        ("a.yaml", "\ufeff \n\n", "a.yaml is empty", "writes one"),
        ("job.yaml", "kind: Job\n command: [torchrun, train.py]\n", "job.yaml:2:9 is no YAML: mapping values are not allowed", None),
        ("a.py", "import ray\ndef train(:\n", "a.py:2:", None),
    ],
)
def test_where_it_is_broken(name, text, says, hint):
    with pytest.raises(UnhangError) as e:
        check(name, text)
    assert says in str(e.value) and ((e.value.hint is None) if hint is None else hint in e.value.hint)


def test_a_repeated_mapping_is_told_once_and_documents_are_apart():
    keys = documents.keys("a.yaml", "a:\n  b: 1\na:\n  b: 2\n---\na: 1\n")
    assert [p.line for p in documents.twice(keys)] == [3]
    assert [k.document for k in keys] == [0, 0, 0, 0, 1]


SHELL = "#!/bin/bash\ntorchrun train.py\n"


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("\ufeff" + SHELL, 1, "hides its first line"),
        ('\ufeff{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}}', 1, "is no JSON"),
        (SHELL.replace("\n", "\r\n"), 1, "lines end as on Windows"),
    ],
)
def test_what_editors_of_windows_write(text, line, says):
    (problem,) = check("file", text)[1]
    assert problem.line == line and says in problem.says.en


@pytest.mark.parametrize("text", ["\ufeffdistributed_type: 'NO'\nnum_machines: 1\n", "distributed_type: 'NO'\r\nnum_machines: 1\r\n"])
def test_what_yaml_takes_of_it(text):
    assert check("a.yaml", text) == ("accelerate", ())
