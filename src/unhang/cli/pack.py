"""unhang pack: environments that travel."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from unhang.cli import json_errors
from unhang.cli.options import Lang, NoColor, duration
from unhang.errors import EXIT_FOUND, EXITS_INTERRUPTED, UnhangError
from unhang.i18n import Text, msg, same
from unhang.report import screen

_Json = Annotated[bool, typer.Option("--json", help="The result as JSON on stdout.")]
_Projects = Annotated[list[Path] | None, typer.Option("--project", metavar="DIR", help="Take this directory along; may be given several times.")]
_Wheels = Annotated[
    Path | None, typer.Option("--with-wheels", metavar="REQUIREMENTS", help="Download what this file lists, for an installation without internet.")
]
_Include = Annotated[
    list[str] | None,
    typer.Option("--include", metavar="PATTERN", help="Take files of projects along that git ignores: data/*.json; may be given several times."),
]
_All = Annotated[bool, typer.Option("--all-files", help="Take all of them along, apart from other environments and __pycache__.")]
_Limit = Annotated[
    float, typer.Option("--limit", parser=duration(1), metavar="TIME", help="How long one import or one script may take.", show_default="2m")
]

_NOTHING_LEFT = msg("interrupted: nothing unfinished is left; the same command starts again")


def register(app: typer.Typer) -> None:
    app.callback()(_pack)
    for verb in (save, load, verify, diff, send):
        app.command(verb.__name__)(verb)


def _pack() -> None:
    """Move an environment to other hosts, and prove that it works there."""


def save(
    env: Annotated[Path, typer.Argument(metavar="ENV", help="A virtual environment (venv, virtualenv, uv) or a conda prefix.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The archive to write, for example env.tar.zst.")],
    project: _Projects = None,
    with_wheels: _Wheels = None,
    include: _Include = None,
    all_files: _All = False,
    level: Annotated[int, typer.Option(min=1, max=19, help="Of zstd: higher is smaller and slower.")] = 3,
    replace: Annotated[bool, typer.Option("--replace", help="Put it in the place of FILE, if that exists.")] = False,
    as_json: _Json = False,
    lang: Lang = None,
    no_color: NoColor = False,
) -> None:
    """Pack an environment with its interpreter, its editable sources, and what proves that it arrived.

    \b
        unhang pack save .venv env.tar.zst
        unhang pack save .venv env.tar.zst --project . --with-wheels requirements.txt

    Sources of editable installs are taken as git has them, or would take them; what git ignores is listed, and --include or --all-files takes it
    along. What can be made again (__pycache__) stays behind. The same environment gives the same bytes, and sha256sum FILE the sum that is printed.

    Exit code: 0 if it was packed, 2 for bad input, 3 for our own failure, 130 if interrupted (143 by SIGTERM); then there is no new FILE.
    """
    from unhang.pack import packer
    from unhang.report import language, pack

    chosen = language.chosen(lang)
    extras = packer.Extras(projects=project or (), requirements=with_wheels, include=(*(include or ()), *["."] * all_files))
    with _interruptible(_NOTHING_LEFT), screen.reading(quiet=as_json) as on_progress:
        taken, digest, total = packer.save(env, file, extras, level=level, replace=replace, on_progress=on_progress)
    written = file.stat().st_size
    if as_json:
        head = {"schema": "unhang/pack-save/1", "file": str(file), "bytes": written, "sha256": total, "digest": digest}
        json_errors.print_json(head | {"ignored": taken.ignored, "manifest": _without_entries(taken.manifest)})
        return
    for says in (*pack.packed(taken.manifest), *pack.ignored(taken.ignored)):
        screen.echo(says.of(chosen))
    screen.echo(f"{file}: {written / 1e6:.0f} MB, sha256:{total}")


def load(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What unhang pack save has written.")],
    dest: Annotated[Path, typer.Argument(metavar="DEST", help="Where the environment shall be.")],
    replace: Annotated[bool, typer.Option("--replace", help="Put it in the place of what is at DEST.")] = False,
    as_json: _Json = False,
    lang: Lang = None,
    no_color: NoColor = False,
) -> None:
    """Put an environment in its place: all of it, working there, or nothing.

    Space, glibc, processor and driver are checked before a byte is written. An archive that is damaged, or would write outside of DEST, is refused.
    Loading the same archive again changes nothing.

    Exit code: 0 if it is in its place, 1 if this host cannot run it (nothing was written), 2 for bad input, 3 for our own failure, 130 if
    interrupted (143 by SIGTERM).
    """
    from unhang.pack import load as loader
    from unhang.report import language, pack

    chosen = language.chosen(lang)
    with _interruptible(_NOTHING_LEFT), screen.reading(quiet=as_json) as on_progress:
        loaded = loader.load(file, dest, replace=replace, on_progress=on_progress)
    if as_json:
        head = {"schema": "unhang/pack-load/1", "state": loaded.state, "dest": loaded.dest, "digest": loaded.digest}
        json_errors.print_json(head | {"findings": loaded.findings, "manifest": _without_entries(loaded.manifest)})
    else:
        pack.findings(loaded.findings, screen.console(), chosen)
        again = f"unhang pack verify {shlex.quote(str(dest))}"
        said = {
            "loaded": msg("{dest} is in its place; {again} proves it", dest=dest, again=again),
            "replaced": msg("{dest} was replaced; {again} proves it", dest=dest, again=again),
            "unchanged": msg("{dest} is what {file} holds already: nothing was done", dest=dest, file=file),
            "refused": msg("nothing was written", "pack"),
        }
        screen.echo(said[loaded.state].of(chosen))
    if loaded.state == "refused":
        raise typer.Exit(EXIT_FOUND)


def verify(
    dest: Annotated[Path, typer.Argument(metavar="DEST", help="An environment that was loaded.")],
    repair: Annotated[bool, typer.Option("--repair", help="First rewrite what names an earlier place, if DEST was moved since.")] = False,
    limit: _Limit = 120.0,
    as_json: _Json = False,
    lang: Lang = None,
    no_color: NoColor = False,
) -> None:
    """Prove that an environment works where it is.

    Every file against the manifest, every top-level module imported, pip check, every console script started with --help without activating
    anything, an all_reduce of two ranks over Gloo by torchrun, and NCCL loaded, if torch is there.

    Exit code: 0 if it works, 1 if something was found, 2 for bad input, 3 for our own failure, 130 if interrupted (143 by SIGTERM).
    """
    from unhang.pack import verify as verification
    from unhang.report import language, pack

    chosen = language.chosen(lang)
    if repair and not verification.repair(dest):
        screen.say(msg("{dest} was not moved: --repair has nothing to rewrite", dest=dest))
    found = verification.verify(dest, limit_s=limit)
    if as_json:
        json_errors.print_json(found)
    else:
        pack.verified(found, screen.console(), chosen)
    if not found.is_good:
        raise typer.Exit(EXIT_FOUND)


def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="An archive, a loaded environment, or any other.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="What it is compared with.")],
    as_json: _Json = False,
    lang: Lang = None,
    no_color: NoColor = False,
) -> None:
    """Show what differs between two environments: packages, Python, sources, files.

    Each is compared as it is now: of one that was loaded, what was installed, changed or removed since counts, and that it lies elsewhere does not.

    Exit code: 0 if nothing differs, 1 if something does, 2 for bad input, 3 for our own failure, 130 if interrupted (143 by SIGTERM).
    """
    from unhang.pack import diff as comparison
    from unhang.report import language, pack

    chosen = language.chosen(lang)
    found = comparison.compare(a, b)
    if as_json:
        json_errors.print_json(found)
    else:
        screen.echo("\n".join(pack.compared(found, chosen)))
    if not found.is_same:
        raise typer.Exit(EXIT_FOUND)


def send(
    env: Annotated[Path, typer.Argument(metavar="ENV", help="A virtual environment or a conda prefix.")],
    hosts: Annotated[list[str], typer.Argument(metavar="HOST...", help="Hosts, as ssh takes them.")],
    to: Annotated[str | None, typer.Option("--to", metavar="DIR", help="Where it shall be there.", show_default="the same path as here")] = None,
    option: Annotated[
        list[str] | None, typer.Option("--ssh", metavar="WORDS", help="Options of ssh, for example '-p 2222'; may be given several times.")
    ] = None,
    at_once: Annotated[int, typer.Option("--at-once", min=1, help="So many hosts at a time.")] = 8,
    project: _Projects = None,
    with_wheels: _Wheels = None,
    include: _Include = None,
    all_files: _All = False,
    limit: _Limit = 120.0,
    as_json: _Json = False,
    lang: Lang = None,
    no_color: NoColor = False,
) -> None:
    """Bring an environment to hosts over ssh, and prove on each that it works there.

    \b
        unhang pack send .venv node1 node2 node3
        unhang pack send .venv ann@node1 --to /scratch/ann/env --ssh '-p 2222 -i key'

    A host needs sshd, sh, tar and glibc; no Python. Only files that it does not have are sent. After an interruption, the same command goes on.

    Exit code: 0 if it works on all hosts, 1 if not, 2 for bad input, 3 for our own failure, 130 if interrupted (143 by SIGTERM).
    """
    from unhang.pack import packer, transfer
    from unhang.report import language, pack

    chosen = language.chosen(lang)
    dest = os.path.normpath(to if to is not None else env.absolute())
    if not dest.startswith("/") or dest == "/":
        raise UnhangError(f"--to {to}: the path must be absolute", hint="leave it out for the same path as here")
    if wrong := next((h for h in hosts if h.startswith("-")), None):
        raise UnhangError(f"{wrong} is no host", hint=f"--ssh '{wrong} ...' passes options to ssh")
    words = [word for given in option or () for word in shlex.split(given)]
    extras = packer.Extras(projects=project or (), requirements=with_wheels, include=(*(include or ()), *["."] * all_files))
    with _interruptible(msg("interrupted: hosts keep what they have; the same command goes on")), packer.stock(env, extras) as taken:
        for says in pack.ignored(taken.ignored):
            screen.say(says)
        results = transfer.send(
            taken,
            tuple(dict.fromkeys(hosts)),
            dest,
            options=words,
            limit_s=limit,
            at_once=at_once,
            tell=lambda host, says: screen.say(same(f"{host}: ") + says),
        )
    if as_json:
        json_errors.print_json({"schema": transfer.SCHEMA, "dest": dest, "total_bytes": taken.manifest.size_bytes, "hosts": results})
    else:
        pack.sent(results, screen.console(), chosen)
    if not all(r.is_good for r in results):
        raise typer.Exit(EXIT_FOUND)


@contextlib.contextmanager
def _interruptible(says: Text) -> Iterator[None]:
    """Say what an interrupt has left."""
    try:
        yield
    except SystemExit as e:
        if e.code in EXITS_INTERRUPTED:
            screen.say(says)
            json_errors.tell(says, exitcode=int(e.code or 0))
        raise


def _without_entries(manifest: object) -> dict[str, object]:
    import msgspec

    found: dict[str, object] = msgspec.to_builtins(manifest)
    return {k: v for k, v in found.items() if k != "entries"}
