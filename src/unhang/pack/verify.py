"""Whether an environment works at its place: by its own Python, by the sums of its files, and by what is known of environments that moved."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from unhang.errors import UnhangError
from unhang.facts import python_env, snapshot
from unhang.facts.host import Host
from unhang.i18n import Text, msg, same
from unhang.knowledge import catalogue
from unhang.knowledge.cause import cause
from unhang.knowledge.commands import command
from unhang.model import Area, Evidence, HostFinding, NotExamined, Remedy, frozen
from unhang.pack import import_checks, relocate
from unhang.pack import manifest as manifests
from unhang.pack.manifest import Manifest
from unhang.probes.live import verdict_of

SCHEMA = "unhang/pack-verify/1"
TITLES = {
    "place": msg("Place"),
    "files": msg("Files"),
    "python": msg("Python"),
    "imports": msg("Imports"),
    "pip": msg("pip check"),
    "scripts": msg("Console scripts"),
    "gloo": msg("torchrun, Gloo"),
    "nccl": msg("NCCL"),
}
# Of failures that are alike so many are examined one by one.
_MOST = 8
_REPAIR = Remedy(id="repair-in-place", says=msg("Rewrite what names the old place."))
_AGAIN = Remedy(id="load-again", says=msg("Put it in its place again, from its archive."))
_QUOTED = 5
_NOT_GPU = NotExamined(what=msg("GPUs, and collectives of NCCL"), why=msg("unhang doctor --live does that"))


@frozen
class Verification:
    """`digest` is the SHA-256 of the manifest: the same on all hosts that hold the same environment."""

    schema: str = SCHEMA
    dest: str
    digest: str
    areas: tuple[Area, ...]
    findings: tuple[HostFinding, ...]
    not_examined: tuple[NotExamined, ...] = (_NOT_GPU,)

    @property
    def is_good(self) -> bool:
        return not any(f.severity == "error" for f in self.findings) and all(a.state != "unknown" for a in self.areas)


def verify(given: Path, *, limit_s: float) -> Verification:
    """Check an environment that was loaded; each import and each script may take `limit_s` seconds. Raises UnhangError if it was not loaded."""
    dest = given.resolve()
    known, encoded, placed = manifests.read_placed(dest)
    digest = manifests.digest(encoded)
    areas, findings = [], []
    wrong = relocate.differences(dest, msgspec.to_builtins(known.entries), placed["changed"])
    told = _ask(dest, limit_s)
    again = replace(_AGAIN, command=command("unhang pack load --replace FILE {dest:path}", dest=dest))
    own = (_place(dest, placed, digest), files(str(dest), known, wrong, told, again))
    # One command puts all of it right.
    is_answered = any(found for _, found in own)
    for area, found in (*own, _python(dest), *interpret(told, known)):
        areas.append(area)
        findings += [replace(f, remedies=()) for f in found] if is_answered and area.id not in ("place", "files") else found
    return Verification(dest=str(dest), digest=digest, areas=tuple(areas), findings=tuple(findings))


def repair(given: Path) -> bool:
    """Rewrite what names an earlier place of an environment that was moved since. Returns whether it was. Raises UnhangError."""
    dest = given.resolve()
    _, encoded, placed = manifests.read_placed(dest)
    if not _is_moved(dest, placed):
        return False
    try:
        relocate.move(dest, str(dest), encoded)
    except (OSError, ValueError) as e:
        raise UnhangError(f"cannot repair {dest}: {e}", hint="unhang pack load --replace FILE DEST") from e
    return True


def _is_moved(dest: Path, placed: Mapping[str, Any]) -> bool:
    # send keeps the path as it was given: directories above it may be links.
    return str(dest) != os.path.realpath(str(placed["dest"]))


def _ask(dest: Path, limit_s: float) -> Mapping[str, Any] | str:
    """What its own Python finds out, or why it does not."""
    with tempfile.TemporaryFile() as out:
        try:
            asked = subprocess.Popen(
                [str(dest / "bin" / "python"), "-I", import_checks.__file__, str(limit_s)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=import_checks.environ(),
                start_new_session=True,
            )
        except OSError as e:
            return str(e)
        try:
            asked.wait()
        finally:
            # Interrupted: it ends what it has started.
            import_checks.end(asked)
        out.seek(0)
        said = out.read().decode(errors="replace")
    try:
        found: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return said.strip()[-1000:] or f"exit code {asked.returncode}"
    return found


def _place(dest: Path, placed: Mapping[str, Any], digest: str) -> tuple[Area, list[HostFinding]]:
    findings = []
    if _is_moved(dest, placed):
        findings.append(
            _finding(
                "place",
                msg("it was placed at {placed} and is at {dest} now", placed=placed["dest"], dest=dest),
                msg("paths inside it lead to the old place"),
                remedies=(replace(_REPAIR, command=command("unhang pack verify --repair {dest:path}", dest=dest)),),
            )
        )
    if placed["manifest"] != digest:
        findings.append(
            _finding(
                "place",
                msg("its manifest is not the one that it was loaded with"),
                msg("nothing is known of it"),
            )
        )
    return _area("place", findings, msg("{dest}, digest {digest}", dest=dest, digest=digest[:16])), findings


def files(
    dest: str, known: Manifest, wrong: Sequence[tuple[str, str]], told: Mapping[str, Any] | str, *remedies: Remedy
) -> tuple[Area, list[HostFinding]]:
    """`wrong` are the paths that are not as they were placed, each with what is wrong; `told` is what `checks` found out."""
    n = len(known.entries)
    added = set() if isinstance(told, str) else set(told["hooks"]) - {e.path for e in known.entries}
    wrong = [*wrong, *((path, "was added, and runs whenever Python starts") for path in sorted(added))]
    if wrong:
        quoted = ", ".join([f"{path} {why}" for path, why in wrong[:_QUOTED]] + ["…"] * (len(wrong) > _QUOTED))
        says = msg("not as packed ({wrong}): {quoted}", wrong=len(wrong), quoted=quoted)
        leads_to = msg("what was proven elsewhere does not hold here")
        evidence = [Evidence(source=f"{dest}/{path}", text=why) for path, why in wrong[:_QUOTED]]
        findings = [_finding("files", says, leads_to, evidence=evidence, remedies=remedies)]
        return _area("files", findings, msg("{n} entries, {wrong} not as packed", n=n, wrong=len(wrong))), findings
    return _area("files", [], msg("{n} entries as packed, {places} of them rewritten for this place", n=n, places=len(known.places))), []


def _python(dest: Path) -> tuple[Area, list[HostFinding]]:
    """What is known of environments that were moved, of this one."""
    host = Host(environ={"PATH": f"{dest}/bin", "VIRTUAL_ENV": str(dest)})
    taken = snapshot.take(host, only=(python_env.SUBJECT.id,))
    seen = taken.get(python_env.SUBJECT)
    if seen is None:
        return Area(id="python", state="unknown", summary=msg("it could not be looked at")), []
    findings = [replace(f, area="python") for f in catalogue.answer("env-relocation", "on_host", taken)]
    return _area("python", findings, python_env.SUBJECT.summary(replace(seen, chosen_by=f"{dest}/bin", own=None))), findings


def interpret(told: Mapping[str, Any] | str, known: Manifest) -> Iterator[tuple[Area, list[HostFinding]]]:
    """What `checks` found out, by area. A reason that an area gave is not given again."""
    given: set[str] = set()
    for area, findings in _interpreted(told, known):
        for n, f in enumerate(findings):
            reason = _last(f.evidence[0].text) if f.evidence and f.evidence[0].text else ""
            if reason in given:
                findings[n] = replace(f, says=same(f.says).edited(re.escape(reason), msg("as above")), remedies=())
            given |= {reason} if reason else set()
        yield area, findings


def _interpreted(told: Mapping[str, Any] | str, known: Manifest) -> Iterator[tuple[Area, list[HostFinding]]]:
    if isinstance(told, str):
        silent = msg("its Python does not start")
        found = [_judged("imports", silent, told)]
        yield _area("imports", found, silent), found
        unseen = msg("not looked at: {why}", why=silent)
        yield from ((Area(id=id, state="unknown", summary=unseen), []) for id in ("pip", "scripts", "gloo", "nccl"))
        return
    modules = told["modules"]
    names = {f["module"]: f"{f['module']} ({modules[f['module']]})" for f in told["imports"]["failed"]}
    works = msg("{good} of {n} top-level modules")
    yield _each("imports", told["imports"], "module", names, msg("cannot import {names}"), works, modules)
    yield _pip(told["pip"])
    works = msg("{good} of {n} start")
    yield _each("scripts", told["scripts"], "script", {}, msg("cannot start {names}"), works, modules)
    if known.torch is None:
        absent = msg("no torch in this environment")
        yield from ((Area(id=id, state="absent", summary=absent), []) for id in ("gloo", "nccl"))
        return
    yield _gloo(told["gloo"])
    yield _nccl(told["nccl"], known)


def _each(
    area: str, told: Mapping[str, Any], key: str, names: Mapping[str, str], fails: Text, works: Text, modules: Mapping[str, str]
) -> tuple[Area, list[HostFinding]]:
    lacking = {f[key]: missing for f in told["failed"] if (missing := _lacks(f["output"], modules))}
    failed = [f for f in told["failed"] if f[key] not in lacking]
    alike: dict[str, list[tuple[str, str]]] = {}
    for f in failed:
        alike.setdefault(_last(f["output"]), []).append((names.get(f[key], f[key]), f["output"]))
    findings = [
        _judged(area, fails.fill(names=", ".join([name for name, _ in of[:_MOST]] + ["…"] * (len(of) > _MOST))), of[0][1])
        for of in list(alike.values())[:_MOST]
    ]
    says = works.fill(n=told["tried"], good=told["tried"] - len(told["failed"]))
    if lacking:
        names_of = ", ".join(sorted(f"{Path(name).name} ({missing})" for name, missing in lacking.items())[:_MOST])
        says += msg("; need packages that were not installed: {names_of}", names_of=names_of)
    return _area(area, findings, says), findings


def _lacks(output: str, modules: Mapping[str, str]) -> str | None:
    """The module that an output ends in asking for, if no distribution of the environment brings it: that is no fault of the move."""
    last = output.rstrip().rpartition("\n")[2]
    asked = re.findall(r"^ModuleNotFoundError: No module named '([\w.]+)'", output, re.MULTILINE)
    if not asked or asked[-1] not in last or not last.startswith(("ImportError", "ModuleNotFoundError")):
        return None
    top = asked[-1].partition(".")[0]
    # What Python itself lacks is no package that was never installed; tkinter's library does not travel.
    return None if top in modules or top in sys.stdlib_module_names - {"tkinter", "_tkinter"} else asked[-1]


def _pip(told: Any) -> tuple[Area, list[HostFinding]]:
    if told is None:
        return Area(id="pip", state="absent", summary=msg("pip is not installed in it")), []
    code, output = told
    if code == 0:
        return Area(id="pip", state="ok", summary=msg("no broken requirements")), []
    # So it was where it was packed, too: nothing of it comes from the move.
    found = HostFinding(
        cause="version-mismatch",
        area="pip",
        severity="warning",
        says=f"pip check: {' '.join(output.split())[-300:]}",
        leads_to=msg("packages may not work together; if nothing was changed since, it was so before the move"),
    )
    return _area("pip", [found], msg("exit code {code}", code=code)), [found]


def _gloo(told: Any) -> tuple[Area, list[HostFinding]]:
    if told is None:
        return Area(id="gloo", state="absent", summary=msg("there is no bin/torchrun")), []
    code, output = told
    findings = [] if code == 0 else [_judged("gloo", msg("2 ranks of torchrun fail at an all_reduce"), output)]
    return _area("gloo", findings, msg("2 ranks, all_reduce")), findings


def _nccl(told: Any, known: Manifest) -> tuple[Area, list[HostFinding]]:
    code, output = told
    if known.torch is not None and known.torch.cuda is None:
        return Area(id="nccl", state="absent", summary=msg("torch without CUDA")), []
    if code == 0 and (version := output.strip().rpartition("\n")[2].strip('"')) != "null":
        return Area(id="nccl", state="ok", summary=msg("NCCL {version} loads", version=version)), []
    found = [_judged("nccl", msg("NCCL does not load"), output)]
    return _area("nccl", found, msg("exit code {code}", code=code)), found


def _judged(area: str, says: Text, output: str) -> HostFinding:
    """By the same code as `unhang why`; what it does not know is not established."""
    with tempfile.NamedTemporaryFile("w", prefix="unhang-pack-", suffix=".log") as log:
        log.write(output + "\n")
        log.flush()
        verdict = verdict_of([Path(log.name)])
    primary = verdict.primary if verdict is not None else None
    cause = primary.cause if primary is not None and primary.cause in catalogue.load() else "rank-exception"
    return HostFinding(
        cause=cause,
        area=area,
        severity="error",
        says=msg("{says}: {output}", says=says, output=_last(output)),
        leads_to=msg("what uses it fails in the same way"),
        evidence=(Evidence(source=area, text=output.strip()[-2000:]),),
        remedies=primary.remedies if primary is not None else (),
    )


def _last(output: str) -> str:
    return output.strip().rpartition("\n")[2][-300:] or "no output"


def _finding(area: str, says: Text, leads_to: Text, *, evidence: Iterable[Evidence] = (), remedies: tuple[Remedy, ...] = ()) -> HostFinding:
    found = cause("env-relocation").host_finding(area=area, severity="error", says=says, leads_to=leads_to, remedies=(), evidence=tuple(evidence))
    return replace(found, remedies=remedies)


def _area(id: str, findings: list[HostFinding], says: Text) -> Area:
    bad = any(f.severity != "note" for f in findings)
    return Area(id=id, state="found" if bad else "noted" if findings else "ok", summary=says)
