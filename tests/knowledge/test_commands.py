"""What a stranger writes into a log, a name or a recorded verdict never becomes more than one word of a command that people paste."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from itertools import chain
from pathlib import Path

import pytest
from tests.conftest import Machine
from tests.hosts import pci
from tests.hosts.gpus import pcie_gpus, torch
from tests.hosts.machines import server
from tests.hosts.network import roce
from tests.hosts.part import GIB, MIB, Part, all_of, lay_out
from tests.shell import HOSTILE, shape
from tests.tables import for_each

from unhang import data
from unhang.facts import snapshot, snapshot_file
from unhang.facts.host import Space
from unhang.knowledge import catalogue
from unhang.knowledge.cause import Cause, LogView
from unhang.knowledge.commands import command
from unhang.knowledge.words import same
from unhang.logs import Hit, clean, match
from unhang.model import Finding, HostFinding

CAUSES = catalogue.load()
# The address of a store that nobody reached is told by one cause and enters commands of others.
TOLD_BY = "store-disconnect"


def hits_of(cause: Cause) -> Iterator[tuple[Hit, ...]]:
    """Of each of its own lines."""
    for told in cause.hits:
        lines = [clean(line)[0] for line in told.splitlines()]
        found = [h for n, line in enumerate(lines, 1) for h in match(line, cause.signatures, source="t.log", line=n, around="\n".join(lines))]
        if found:
            yield tuple(found)


def poisoned(hits: tuple[Hit, ...], value: str, *, every: bool) -> Iterator[tuple[Hit, ...]]:
    """With the value for what was captured: all of it, or one group after the other."""
    names = dict.fromkeys(name for h in hits for name in h.groups)
    for chosen in [list(names)] if every else [[name] for name in names]:
        yield tuple(replace(h, groups={n: value if n in chosen else v for n, v in h.groups.items()}) for h in hits)


def judged(cause: Cause, hits: tuple[Hit, ...], beside: tuple[Hit, ...]) -> Iterator[Finding]:
    for view in (LogView(hits={cause.id: hits}), LogView(hits={cause.id: hits, TOLD_BY: beside if cause.id != TOLD_BY else hits})):
        # Numbers that are none, which no pattern lets through.
        with suppress(ValueError, KeyError, AssertionError, ZeroDivisionError):
            if (found := cause.in_logs(view) if cause.in_logs is not None else cause.of_hits(hits, view)) is not None:
                yield found


def commands(found: Finding | HostFinding) -> Iterator[tuple[str, str]]:
    for remedy in found.remedies:
        yield from ((f"{remedy.id}:{n}", text) for n, text in enumerate((remedy.command, remedy.verify)) if text)


def usual(findings: Iterator[Finding | HostFinding]) -> dict[str, set[object]]:
    found: dict[str, set[object]] = {}
    for f in findings:
        for id, text in commands(f):
            found.setdefault(f"{f.cause}/{id}", set()).add(shape(text))
    return found


def makes_commands(cause):
    is_judged = any((cause.in_run, cause.in_logs, cause.on_host))
    found = data.load()["causes"][cause.id]["finding"].values()
    return any("command" in f for f in found) or (
        is_judged and hasattr(import_module(f"unhang.knowledge.causes.{cause.id.replace('-', '_')}"), "command")
    )


@pytest.fixture(scope="module")
def lines() -> dict[str, list[tuple[Hit, ...]]]:
    """The hits of each of a cause's own lines, of those causes that make commands."""
    makers = (c for c in CAUSES.values() if c.id == TOLD_BY or makes_commands(c))
    return {c.id: list(hits_of(c)) for c in makers}


@pytest.fixture(scope="module")
def plain(lines) -> dict[str, set[object]]:
    """What a shell reads in the commands of every cause: as they are written, and with the values of its own lines."""
    written = [c.finding(standing="likely", says=same(c.title)) for c in CAUSES.values()]
    return usual(chain(written, (f for id, hits in lines.items() for h in hits for f in judged(CAUSES[id], h, beside(lines)))))


def beside(lines) -> tuple[Hit, ...]:
    return next(hits for hits in lines[TOLD_BY] if {"peer", "port"} <= set(hits[0].groups))


@for_each("value", [*HOSTILE[:8], "x\u200b", "\x1b[2Jx"], ids=ascii)
def test_nothing_that_a_signature_captures_becomes_more_than_a_word(lines, plain, value):
    bad, wrong, checked = next(poisoned(beside(lines), value, every=True)), set(), 0
    for id, of_lines in lines.items():
        for changed in (c for hits in of_lines for every in (True, False) for c in poisoned(hits, value, every=every)):
            for found in judged(CAUSES[id], changed, bad):
                made = list(commands(found))
                checked += len(made)
                wrong |= {(name, text) for name, text in made if shape(text) not in plain[f"{id}/{name}"]}
    assert checked > 1000 and wrong == set()


@pytest.fixture(scope="module")
def of_a_host(tmp_path_factory):
    """A host on which much is wrong, and whose names enter many commands."""
    files = {
        "/dev/shm/nccl-a1b2c3": "",
        "/etc/nccl.conf": "NCCL_SOCKET_IFNAME=ib9\n",
        "/opt/moved/bin/activate": "VIRTUAL_ENV=/opt/first\n",
        "/opt/moved/pyvenv.cfg": "home = /usr/bin\nversion = 3.11.4\n",
        "/opt/moved/bin/python": "-> /no/such/python",
    }
    environ = {
        "MASTER_ADDR": "node6", "MASTER_PORT": "29500", "NNODES": "2", "NODE_RANK": "1", "CUDA_VISIBLE_DEVICES": "0,0", "NCCL_TIMEOUT": "60",
        "NCCL_DEBUGS": "INFO", "PYTHONHOME": "/no/such", "VIRTUAL_ENV": "/opt/moved", "PATH": "/opt/moved/bin:/usr/bin",
    }  # fmt: skip
    way, port = pci.slot(0xE0, node=1)
    full = Space(total_bytes=GIB, free_bytes=MIB, inodes=1000, free_inodes=900)
    more = Part(
        files=files, environ=environ, spaces={"/": full, "/dev/shm": full, "/root": full, "/tmp": full}, names_known={"node7": ("127.0.1.1",)}
    )
    whole = all_of(server(in_hosts="127.0.1.1"), way, roce(0, port, node=1, address=None), torch(), pcie_gpus(4, acs=True), more)
    return json.loads(
        snapshot_file.encode(snapshot.take(lay_out(lambda files, environ: Machine(tmp_path_factory.mktemp("host"), files, environ=environ), whole)))
    )


def found_on(host) -> list[HostFinding]:
    seen = snapshot_file.decode(json.dumps(host).encode(), name="itself")
    # What a check cannot do with a value that nobody has is another matter.
    found: list[HostFinding] = []
    for cause in CAUSES.values():
        with suppress(ValueError, KeyError, LookupError):
            found += cause.on_host(seen) if cause.on_host is not None else ()
    return found


def strings(node, path=()):
    if isinstance(node, str):
        yield path, node
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from strings(value, (*path, key))


def changed(node, path, value):
    if not path:
        return value
    copy = dict(node) if isinstance(node, dict) else list(node)
    copy[path[0]] = changed(node[path[0]], path[1:], value)
    return copy


def test_no_name_on_a_host_becomes_more_than_a_word(of_a_host):
    found = found_on(of_a_host)
    plain, texts = usual(found), [text for f in found for _, text in commands(f)]
    named = [(path, text) for path, text in strings(of_a_host["parts"]) if len(text) > 2 and any(text in command for command in texts)]
    known = {word for text in texts for word in re.split(r"[\s;]+", text)}
    wrong, checked = set(), 0
    for path, text in named:
        for value in HOSTILE[:8]:
            for f in found_on({**of_a_host, "parts": changed(of_a_host["parts"], path, text + value)}):
                # One of several may be left out.
                told = [(id, t) for id, t in commands(f) if not set(re.split(r"[\s;]+", t)) <= known]
                checked += len(told)
                wrong |= {(id, t) for id, t in told if shape(t) not in plain.get(f"{f.cause}/{id}", ())}
    assert len(named) > 20 and checked > 50 and wrong == set()


def test_a_program_where_anybody_may_write_must_be_ours():
    home = Path(tempfile.mkdtemp(prefix="unhang-programs-", dir="/tmp"))
    try:
        (home / "bin").mkdir()
        python = home / "bin" / "python"
        assert command("{it:program} x", it=python) is None, "it is not there: whoever puts it there has it run"
        python.write_text("")
        assert command("{it:program} x", it=python) == f"{python} x"
        (home / "bin").chmod(0o777)
        assert command("{it:program} x", it=python) is None
    finally:
        shutil.rmtree(home)
