"""Manifests as an API server takes them: by the schemas of their kinds, in which a field that is not known is an error."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path

import jsonschema
import kubernetes_validate
import yaml
from tests.tables import for_each

from unhang.remedies.exports.form_settings import Layout
from unhang.remedies.exports.launch_command import export

CRDS = Path(__file__).with_name("crds")
EVERY_KIND = {"kubernetes": ["TrainingRuntime", "TrainJob"], "kubernetes-job": ["Service", "Job"]}


def strict(schema):
    """As a structural schema is read: only what it names is known, and a field may be a number or a word where it says so."""
    if isinstance(schema, list):
        return [strict(s) for s in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if made.get("x-kubernetes-int-or-string") is True:
        made |= {"type": ["integer", "string"]}
    if isinstance(made.get("properties"), dict) and not made.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    return made


def wrong(manifest):
    """What the API server has against a manifest."""
    path = CRDS / f"{manifest['kind']}.json.gz"
    try:
        if path.exists():
            jsonschema.Draft7Validator(strict(json.loads(gzip.decompress(path.read_bytes())))).validate(manifest)
        else:
            kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
    except (jsonschema.ValidationError, kubernetes_validate.ValidationError) as e:
        return e.message
    return ""


def written(form, *, nodes=2, through=True, **more):
    text = export(form, {"ib": False}, Layout(nodes=nodes, processes=8, **more), with_unhang=through).text
    return {m["kind"]: m for m in yaml.safe_load_all(text)}


@for_each(("form", "nodes", "through", "gpus"), itertools.product(EVERY_KIND, (1, 2), (True, False), (True, False)))
def test_a_cluster_takes_what_is_written(form, nodes, through, gpus):
    manifests = written(form, nodes=nodes, through=through, gpus=gpus)
    assert list(manifests) == EVERY_KIND[form][nodes == 1 and form == "kubernetes-job" :]
    assert {kind: wrong(m) for kind, m in manifests.items()} == dict.fromkeys(manifests, "")


JOBS = {"TrainingRuntime": "spec template spec replicatedJobs 0 template spec", "Job": "spec"}
SLIPS = [
    *((kind, f"{path} {slip}", value) for kind, path in JOBS.items() for slip, value in [
        ("unknownField", 1),
        ("template spec containers 0 volumeMount", []),
        ("template spec containers 0 image", 5),
        ("backoffLimit", "0"),
        ("podFailurePolicy rules 0 exitCodes", {}),
        ("podFailurePolicy rules 0 onExitCodes values", ["93"]),
    ]),
    ("TrainingRuntime", "spec template spec failurePolicy rules 0 action", "Ignore"),
    ("TrainingRuntime", "spec mlPolicy torch numProcPerNodes", 8),
    ("TrainJob", "spec trainer numNodes", "2"),
    ("TrainJob", "spec trainer commands", ["torchrun"]),
    ("Service", "spec ports 0 port", "29500"),
    ("Service", "spec clusterIp", "None"),
]  # fmt: skip


@for_each(("kind", "path", "value"), SLIPS)
def test_a_cluster_refuses_a_slip(kind, path, value):
    (manifest,) = [m for form in EVERY_KIND for name, m in written(form).items() if name == kind]
    at = manifest
    *way, last = (int(key) if key.isdecimal() else key for key in path.split())
    for key in way:
        at = at[key]
    at[last] = value
    assert wrong(manifest)
