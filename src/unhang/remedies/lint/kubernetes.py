"""Kubernetes and Dockerfiles: the shared memory that pods get, what their containers start, and Jobs whose pods have to find one another."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from unhang.knowledge.words import msg, same
from unhang.remedies.lint import script
from unhang.remedies.lint.documents import ABSENT, Key, Problem

TRAINS = re.compile(r"torchrun|torch\.distributed|accelerate|deepspeed|llamafactory|train", re.IGNORECASE)
# Operators that tell the containers of a job where they meet.
_OPERATED = frozenset({"PyTorchJob", "TrainJob", "TrainingRuntime", "ClusterTrainingRuntime", "MPIJob", "RayJob", "RayCluster"})
# Where ranks meet: told to the container, not written into its image.
_BY_OPERATOR = ("MASTER_PORT", "PET_MASTER_ADDR", "PET_NODE_RANK")
_STARTS_OF_DOCKERFILES = re.compile(r"^[ \t]*(?:CMD|ENTRYPOINT)\b(?P<words>(?:[^\n]*\\\n)*[^\n]*)", re.MULTILINE | re.IGNORECASE)
_TRAINS_IN_IMAGE = re.compile(r"torchrun|torch\.distributed|accelerate|deepspeed|llamafactory|unhang|python", re.IGNORECASE)

_Path = tuple[str | int, ...]


def check(keys: tuple[Key, ...], text: str) -> Iterator[Problem]:
    if not TRAINS.search(text):
        return
    yield from _memory(keys)
    documents: dict[int, dict[_Path, Key]] = {}
    for key in keys:
        documents.setdefault(key.document, {})[key.path] = key
    services = [one for one in documents.values() if _value(one, "kind") == "Service"]
    for one in documents.values():
        yield from _commands(one)
        yield from _job(one, services)


def _memory(keys: tuple[Key, ...]) -> Iterator[Problem]:
    pods = [k for k in keys if k.path[-1] == "containers"]
    mounted = [k for k in keys if k.path[-1] == "mountPath" and k.value == "/dev/shm"]
    in_memory = any(k.path[-2:] == ("emptyDir", "medium") and k.value == "Memory" for k in keys)
    if pods and not mounted:
        says = msg("no volume at /dev/shm: a container's own has 64 MiB, too little for NCCL and loader workers")
        yield pods[0].problem(says, "volumes: [{name: shm, emptyDir: {medium: Memory}}], mountPath: /dev/shm")
    elif mounted and not in_memory and not any(k.path[-1] in ("hostPath", "persistentVolumeClaim") for k in keys):
        yield mounted[0].problem(msg("the volume at /dev/shm is on disk"), "emptyDir: {medium: Memory}")


def _commands(keys: Mapping[_Path, Key]) -> Iterator[Problem]:
    kind = _value(keys, "kind")
    by_operator = kind in _OPERATED
    containers: dict[_Path, list[_Path]] = {path[:-1]: [] for path in keys if path[-1] in ("command", "args")}
    for path in keys:
        for i in range(len(path)):
            if path[:i] in containers:
                containers[path[:i]].append(path)
    for container, paths in containers.items():
        env = {keys[p].value: keys.get((*p[:-1], "value")) for p in paths if p[len(container)] == "env" and p[-1] == "name"}
        given = [str(name) for name in env] + ([*_BY_OPERATOR] if by_operator else [])
        rank_is_of_host, hosts_are_alike = kind == "PyTorchJob", kind == "Job"
        for name, value in env.items():
            # A variable that is made of another one is written as in shell, with parentheses.
            if value is not None and isinstance(value.value, str) and "NODE_RANK" in str(name):
                yield from script.check(f"{name}={value.value}", first=value.line, rank_is_of_host=rank_is_of_host)
        words = [keys[p] for p in paths if p[len(container)] in ("command", "args") and isinstance(keys[p].value, str)]
        for one in words:
            if "\n" in one.value:
                yield from script.check(one.value, first=one.line + 1, given=given, rank_is_of_host=rank_is_of_host, hosts_are_alike=hosts_are_alike)
        if words and not any("\n" in one.value for one in words):
            joined = shlex.join(one.value for one in words)
            yield from script.check(joined, first=words[0].line, given=given, rank_is_of_host=rank_is_of_host, hosts_are_alike=hosts_are_alike)


def _job(keys: Mapping[_Path, Key], services: Sequence[Mapping[_Path, Key]]) -> Iterator[Problem]:
    """A Job without an operator: nothing but its own fields makes its pods ranks."""
    spec = keys.get(("spec",))
    if spec is None or _value(keys, "kind") != "Job" or not str(_value(keys, "apiVersion") or "").startswith("batch/"):
        return
    pod: _Path = ("spec", "template", "spec")
    if _value(keys, *pod, "restartPolicy") not in ("Never", "OnFailure"):
        yield spec.problem(msg("a Job's restartPolicy is Never or OnFailure: the API server refuses it"), "restartPolicy: Never")
    parallel, completions = _value(keys, "spec", "parallelism"), _value(keys, "spec", "completions")
    if not isinstance(parallel, int) or parallel < 2:
        return
    asked = keys[("spec", "parallelism")]
    if _value(keys, "spec", "completionMode") != "Indexed":
        says = msg("{parallel} pods, and no completionMode: Indexed: none knows its number", parallel=parallel)
        yield asked.problem(says, "completionMode: Indexed")
    if completions != parallel:
        says = msg(
            "completions is {completions}, and {parallel} pods have to run at once",
            completions=same(str(completions)) if completions is not None else msg("not given"),
            parallel=parallel,
        )
        yield asked.problem(says, f"completions: {parallel}")
    words = [str(k.value) for p, k in keys.items() if {"command", "args"} & set(p) and isinstance(k.value, str)]
    names = {str(k.value) for p, k in keys.items() if "env" in p and p[-1] == "name"}
    if any(re.search(r"\btorchrun\b", word) for word in words) and not re.search(r"--?nnodes", " ".join(words)) and "PET_NNODES" not in names:
        yield asked.problem(msg("{parallel} pods, and torchrun without --nnodes: each trains by itself", parallel=parallel), f"--nnodes={parallel}")
    subdomain = _value(keys, *pod, "subdomain")
    by_host = _value(keys, *pod, "hostNetwork") is True
    if subdomain is None and not by_host:
        yield asked.problem(msg("no subdomain: pods have no names by which they find one another"), msg("subdomain: the name of a headless Service"))
    for service in services:
        name, address = _value(service, "metadata", "name"), service.get(("spec", "clusterIP"))
        if name == subdomain and (address is None or address.value != "None"):
            says = msg("Service {name} has an address of its own: pods get no names by it", name=name)
            yield (address or service[("kind",)]).problem(says, "clusterIP: None")


def _value(keys: Mapping[_Path, Key], *path: str | int) -> object:
    return keys.get(path, ABSENT).value


def check_dockerfile(text: str) -> Iterator[Problem]:
    """The shared memory that a container gets, and what it starts."""
    starts = [m for m in _STARTS_OF_DOCKERFILES.finditer(text) if _TRAINS_IN_IMAGE.search(m[0])]
    line, at = 1, 0
    for one in starts:
        line, at = line + text.count("\n", at, one.start()), one.start()
        yield from script.check(_shell(one["words"]), first=line, given=_BY_OPERATOR)
    if starts and not re.search(r"--shm-size|--ipc[= ]host", text):
        says = msg("nothing says that its containers need --shm-size: their /dev/shm has 64 MiB")
        instead = msg("a comment: # docker run --gpus all --shm-size=8g IMAGE")
        yield Problem(line=text.count("\n", 0, starts[0].start()) + 1, says=says, instead=instead)


def _shell(words: str) -> str:
    """What is written as a list of JSON is started without a shell."""
    try:
        listed = json.loads(words.replace("\\\n", " "))
    except ValueError:
        return words
    return shlex.join(map(str, listed)) if isinstance(listed, list) else words
