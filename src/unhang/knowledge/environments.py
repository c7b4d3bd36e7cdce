"""The environments that a job may run in (accelerator, launcher, program, container), as its own lines tell, and what each changes in a remedy.

A thing may be called otherwise there. A cause may name another remedy (`Cause.instead`); what still speaks of what the environment lacks is left out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import field, replace

from unhang import data
from unhang.i18n import same
from unhang.knowledge import catalogue
from unhang.logs import Signature
from unhang.model import Finding, Remedy, frozen
from unhang.patterns import lazily


@frozen
class Environment:
    """An accelerator, a launcher, a program or a container; `environments.toml` says what its fields are."""

    id: str
    marks: tuple[str, ...]
    unless: tuple[str, ...] = ()
    words: Mapping[str, str] = field(default_factory=dict)
    lacks: str = ""
    no_command: str = ""


ENVIRONMENTS = tuple(Environment(id=id, **known) for id, known in data.table("knowledge/environments").items())


# Lines that say it and nothing else.
SIGNATURES = tuple(
    Signature(needle=needle, role="context", keep=2)
    for needle in (
        *("pyxis", "enroot", "apptainer", "singularity", "mpirun", "OMPI_COMM_WORLD", "# nThread ", "kubelet", "/opt/rocm", "RCCL version"),
        *("vLLM API server", "=ServerArgs(", "GeForce RTX 50", "RTX PRO 6000", "NVIDIA B200", "NVIDIA B300", "NVIDIA GB10"),
    )
)


def seen_in(texts: Iterable[str], launchers: Collection[str] = ()) -> tuple[Environment, ...]:
    """The environments that lines tell of; `launchers` are those that tagged them."""
    every = "\n".join(texts)
    found = (e for e in ENVIRONMENTS if e.id in launchers or any(mark in every for mark in e.marks))
    return tuple(e for e in found if not any(mark in every for mark in e.unless))


def fitted(finding: Finding, environments: Collection[Environment]) -> Finding:
    """The finding with the remedies that fit: those that a cause has for an environment first, the others in its words, or left out."""
    cause = catalogue.load().get(finding.cause)
    if not environments or not finding.remedies:
        return finding
    own: dict[str, Remedy] = {}
    others: dict[str, Remedy] = {}
    for remedy in finding.remedies:
        id = next((to for e in environments if cause is not None and (to := cause.instead.get(e.id, {}).get(remedy.id))), None)
        if id is not None and cause is not None:
            own[id] = cause.remedy(id)
        elif (said := _said_there(remedy, environments)) is not None:
            others[remedy.id] = said
    return replace(finding, remedies=(*own.values(), *(r for id, r in others.items() if id not in own)))


def _said_there(remedy: Remedy, environments: Collection[Environment]) -> Remedy | None:
    for environment in environments:
        for here, there in environment.words.items():
            remedy = replace(
                remedy,
                says=same(remedy.says).edited(re.escape(here), there),
                env={name.replace(here, there): value for name, value in remedy.env.items()},
                command=remedy.command and remedy.command.replace(here, there),
                verify=remedy.verify and remedy.verify.replace(here, there),
            )
        if environment.lacks and lazily(environment.lacks).search("\n".join((remedy.says, *remedy.env))):
            return None
        without = lazily("|".join(filter(None, (environment.lacks, environment.no_command))) or r"(?!)")
        remedy = replace(
            remedy,
            command=None if remedy.command and without.search(remedy.command) else remedy.command,
            verify=None if remedy.verify and without.search(remedy.verify) else remedy.verify,
        )
    return remedy
