"""Keys with their lines, and broken files: where, and what the parser said."""

from __future__ import annotations

import sys

import pytest
from tests.tables import for_each

from unhang.errors import UnhangError
from unhang.remedies.lint import check, documents


@for_each(
    ("name", "text", "says", "hint"),
    [
        ("a.json", '{\n  "train_batch_size": 4,\n}', f"a.json:{'2:24' if sys.version_info >= (3, 13) else '3:1'} is no JSON", "comma"),
        ("a.json", '{\n  // eight ranks\n  "train_batch_size": 4}', "a.json:2:3 is no JSON", "no comments"),
        ("a.json", "{'train_batch_size': 4}", "a.json:1:2 is no JSON", "double quotes"),
        ("a.json", '{"train_batch_size" 4}', "a.json:1:21 is no JSON: Expecting ':' delimiter", None),
        ("a.yaml", "num_machines: [1, 2\nnum_processes: 4\n", "a.yaml:2:14 is no YAML: while parsing a flow sequence", None),
        ("file", "num_machines: 1\n\tnum_processes: 4\n", "file:2:1 is no YAML", "a tab"),
        ("a.yaml", "num_machines:\n\tnum_processes: 4\n", "a.yaml:2:1 is no YAML", "a tab"),
        ("a.yaml", "\ufeff \n\n", "a.yaml is empty", "writes one"),
        ("job.yaml", "kind: Job\n command: [torchrun, train.py]\n", "job.yaml:2:9 is no YAML: mapping values are not allowed", None),
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
    assert problem.line == line and says in problem.says


@pytest.mark.parametrize("text", ["\ufeffdistributed_type: 'NO'\nnum_machines: 1\n", "distributed_type: 'NO'\r\nnum_machines: 1\r\n"])
def test_what_yaml_takes_of_it(text):
    assert check("a.yaml", text) == ("accelerate", ())


DOUBLING = "num_machines: 1\na0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("num_processes: 2\na: &a [*a, *a]\n", "a.yaml:2:4 is no YAML: an anchor holds itself"),
        ("num_processes: 2\na: &a {b: *a, c: *a}\n", "a.yaml:2:4 is no YAML: an anchor holds itself"),
        (DOUBLING, "more than 200000 values"),
        (DOUBLING.replace("x, x", "[], []"), "more than 200000 values"),
        (DOUBLING + "? *a39\n: 1\n", "more than 200000 values"),
        ("num_processes: 2\na: &a [*a, *a]\n? *a\n: 1\n", "an anchor holds itself"),
        ("a: &a [1, 2]\n? *a\n: 1\n", "a.yaml:1:4 is no YAML: found unhashable key"),
    ],
)
def test_anchors_do_not_grow_without_end(text, says):
    with pytest.raises(UnhangError) as e:
        check("a.yaml", text)
    assert says in str(e.value)


def test_an_anchor_that_is_named_twice_is_read_twice():
    keys = documents.keys("a.yaml", "a: &a {b: 1}\nc: *a\nd: [*a, {e: *a}]\n")
    assert [k.path for k in keys] == [("a",), ("a", "b"), ("c",), ("c", "b"), ("d",), ("d", 0, "b"), ("d", 1, "e"), ("d", 1, "e", "b")]


def test_what_is_asked_for_its_form_and_then_for_its_faults_is_parsed_once(monkeypatch):
    import yaml

    loaders = []
    real = yaml.SafeLoader
    monkeypatch.setattr(yaml, "SafeLoader", lambda text: loaders.append(text) or real(text))
    text = "compute_environment: LOCAL_MACHINE\nnum_machines: 7\n"
    assert check("once.yaml", text)[0] == "accelerate" and loaders.count(text) == 1
