"""unhang doctor --hosts: are these hosts fit to train together?"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from unhang import fsio
from unhang.cli import json_errors
from unhang.diagnosis.redact import redact_data
from unhang.errors import EXIT_FOUND, EXIT_OK, UnhangError
from unhang.hosts import hostlist, preflight
from unhang.hosts.hostlist import Host
from unhang.i18n import msg
from unhang.report import screen
from unhang.report.language import Language

# What the job's libraries will be told: handed on, so that each host is judged with it, and a training has it.
_PREFIXES = ("NCCL_", "GLOO_", "TORCH_", "RCCL_", "UCX_", "CUDA_VISIBLE_DEVICES", "HF_", "OMP_", "PYTHONPATH", "UNHANG_")


def named(given: str) -> tuple[tuple[Host, ...], preflight.By]:
    """The hosts, and the program that leads to them. Raises UnhangError."""
    hosts = hostlist.read(given, os.environ)
    by: preflight.By = "srun" if given == "slurm" else "ssh"
    if shutil.which(by) is None:
        raise UnhangError(f"there is no {by} on this host", hint="install OpenSSH's client" if by == "ssh" else "log in where Slurm is")
    return hosts, by


def handed_on(by: preflight.By = "ssh") -> dict[str, str]:
    """Variables that are set here and meant for the hosts, but for credentials, and for what a scheduler sets on each host."""
    own = () if by == "ssh" else ("CUDA_VISIBLE_DEVICES",)
    found = {name: value for name, value in os.environ.items() if name.startswith(_PREFIXES) and name not in own}
    clean = redact_data(found)
    return {name: value for name, value in found.items() if clean.get(name) == value}


def examine(
    given: str,
    *,
    python: str | None,
    ssh: Sequence[str],
    places: Sequence[str],
    exclude: Path | None,
    group: bool,
    as_json: bool,
    lang: Language,
) -> int:
    """Print what was found, and return the exit code. `exclude` gets the names of bad hosts, as `srun --exclude` takes them. Raises UnhangError."""
    hosts, by = named(given)
    if len(hosts) < 2:
        raise UnhangError("one host alone has no links", hint="unhang doctor")
    port = os.environ.get("MASTER_PORT", "")
    asked = preflight.Asked(
        group=group,
        hosts=hosts,
        python=python or sys.executable,
        ssh=tuple(word for words in ssh for word in shlex.split(words)),
        by=by,
        environ=handed_on(by),
        places=tuple(dict.fromkeys(os.path.abspath(p) for p in places)),  # noqa: PTH100
        master=os.environ.get("MASTER_ADDR") or None,
        port=int(port) if port.isdecimal() and 0 < int(port) < 1 << 16 else preflight.STORE_PORT,
    )
    with screen.status("...") as status:
        result = preflight.run(asked, lambda says: status.update(says.of(lang)))
    if exclude is not None:
        try:
            fsio.write_named(exclude, "".join(f"{name}\n" for name in result.bad).encode())
        except OSError as e:
            raise UnhangError(f"cannot write {exclude}: {e.strerror}") from e
        screen.say(msg("{n} hosts to leave out: {file}", n=len(result.bad), file=str(exclude)))
    if as_json:
        json_errors.print_json(result)
    else:
        from unhang.report import hosts as report

        report.render(result, screen.console(), lang=lang)
    return EXIT_FOUND if any(f.severity in ("error", "warning") for f in result.examination.findings) else EXIT_OK
