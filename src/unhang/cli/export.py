"""unhang export: chosen settings in the form of a launcher, and what is wrong in such a file."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from unhang import fsio
from unhang.cli.json_errors import print_json
from unhang.cli.options import Lang, NoColor
from unhang.errors import UnhangError
from unhang.i18n import in_language, msg
from unhang.report import language, screen

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from unhang.remedies.exports.form_settings import Layout
    from unhang.remedies.exports.launch_command import Exported
    from unhang.report.language import Language
    from unhang.settings.configuration import Configuration
    from unhang.settings.setting import Installed, Value

SCHEMA = "unhang/export/1"

T = TypeVar("T", int, str)


def register(app: typer.Typer) -> None:
    app.command("export")(export)


def _complete(begun: str) -> list[str]:
    from unhang.remedies.exports.forms import NAMES

    return [name for name in NAMES if name.startswith(begun)]


def export(
    form: Annotated[
        str | None, typer.Argument(metavar="FORM", autocompletion=_complete, help="accelerate, torchrun, slurm, ...: see --list.")
    ] = None,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND...]", help="The script with its arguments.", show_default="train.py")
    ] = None,
    check: Annotated[
        list[str] | None, typer.Option("--check", metavar="FILE...", help="Say what is wrong in such files, whoever wrote them; - is stdin.")
    ] = None,
    of_form: Annotated[
        str | None, typer.Option("--form", metavar="FORM", help="With --check: what the file is.", show_default="by its contents")
    ] = None,
    preset: Annotated[str | None, typer.Option(metavar="NAME", help="Settings that go together; unhang presets lists them.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting, such as shm=off; may be repeated.")] = None,
    timeout: Annotated[str | None, typer.Option(metavar="TIME", help="How long collectives may take: 1800, 30m, 2h.")] = None,
    nodes: Annotated[int | None, typer.Option(metavar="N", min=1, help="Hosts.", show_default="1")] = None,
    processes: Annotated[int | None, typer.Option("--processes", "-n", metavar="N", min=1, help="Processes on each host.", show_default="2")] = None,
    master: Annotated[
        str | None, typer.Option(metavar="HOST[:PORT]", help="Where ranks meet.", show_default="asked for when it starts, :29500")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the job.", show_default="training")] = None,
    image: Annotated[str | None, typer.Option(help="Image of containers.")] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="No GPUs.")] = False,
    with_unhang: Annotated[
        bool, typer.Option("--with-unhang", help="Start through unhang run whatever is chosen.", show_default="where a setting needs its hook")
    ] = False,
    without_unhang: Annotated[bool, typer.Option("--without-unhang", help="Never start through unhang run.")] = False,
    python: Annotated[
        str | None, typer.Option(metavar="PATH", help="Spell for what this Python has installed.", show_default="for current releases")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", metavar="FILE", help="Write here.", show_default="stdout")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE.")] = False,
    show_list: Annotated[bool, typer.Option("--list", help="List the forms.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    lang: Lang = None,
    no_color: NoColor = False,
) -> None:
    """Write a complete file for a launcher: these settings, these hosts, this script. Or --check one.

    \b
        unhang export slurm --preset conservative --nodes 2 -n 8 -- train.py --lr 1e-4
        unhang export --check accelerate.yaml train.sh

    What only unhang's hook can set makes the file start through `unhang run`. A setting that a form cannot carry is said on stderr and in the file;
    one that was typed by --set is an error.

    Exit code: 0, with --check if nothing is wrong; 1 if something is; 2 for bad input, or a file that is not understood. Of several files the worst.
    """
    from unhang.remedies.exports import forms

    chosen = language.chosen(lang)
    if show_list:
        _list(chosen, as_json)
        return
    if check:
        if (swallowed := next((file for file in check if file.startswith("-") and file != "-" and not Path(file).exists()), None)) is not None:
            raise UnhangError(f"--check takes a file, and {swallowed} came after it", hint="unhang export --check FILE --json")
        if preset or settings or timeout or master or name or image or cpu or with_unhang or without_unhang or python or output or force:
            raise UnhangError("--check writes nothing: it goes with --form, --nodes, --processes and --json only")
        more = [*([form] if form is not None else []), *(command or [])]
        raise typer.Exit(_check([*check, *more], of_form, nodes, processes, as_json, chosen))
    if of_form is not None:
        raise UnhangError("--form goes with --check")
    if form is None:
        raise UnhangError("name a form", hint=f"unhang export torchrun; forms: {', '.join(forms.NAMES)}")
    if with_unhang and without_unhang:
        raise UnhangError("--with-unhang and --without-unhang contradict each other")

    from unhang.cli import settings as asked
    from unhang.remedies.exports import form_settings, launch_command
    from unhang.settings.setting import typed

    through = True if with_unhang else False if without_unhang else None
    forms.form(form)
    configured = asked.configured(Path.cwd())
    wanted = asked.typed(settings or [], timeout)
    for key, value, origin in wanted:
        if key == "processes" and processes not in (None, value):
            raise UnhangError(f"-n {processes} and {origin} {key}={value} contradict each other: {key} has one value")
    releases = form_settings.TODAY if python is None else _installed(python)
    if cpu:
        releases = replace(releases, gpus=0)
    behind = launch_command.taken_apart(command or [])
    nodes = _agreed("--nodes", nodes, behind.nodes)
    processes = _agreed("--processes", processes, behind.processes)
    address, port = form_settings.master(master) if master else (None, None)
    address, port = _agreed("--master", address, behind.address), _agreed("--master", port, behind.port)
    of_preset = _of_preset(preset, configured, python, nodes, address)
    choice = {**of_preset, **configured.settings, **{key: value for key, value, _ in wanted}}
    given = {key: value for key, value in {"name": name, "image": image, "address": address}.items() if value is not None}
    where = form_settings.Layout(
        nodes=1 if nodes is None else nodes,
        processes=processes if processes is not None else int(choice.get("processes", 2)),
        given_port=port,
        command=behind.command,
        gpus=not cpu,
        **given,
    )
    options = {"--master": () if not master else ("address", "port") if port is not None else ("address",)}
    options |= {option: (option[2:],) for option, value in {"--name": name, "--image": image}.items() if value is not None}
    _have_an_effect(form, where, options)
    # A user's own preset is what the user wants.
    own = {*configured.settings, *(key for key, _, _ in wanted), *_of_own_preset(preset, configured)}
    suggested = [key for key in of_preset if key not in own and key not in configured.arguments]
    found = launch_command.export(form, choice, where, installed=releases, arguments=configured.arguments, with_unhang=through, suggested=suggested)
    ours = {key: origin for key, _, origin in wanted}
    if wrong := [r for r in found.refused if r.key in ours]:
        first = wrong[0]
        raise UnhangError(
            msg("{ours} {key}: {why}", ours=ours[first.key], key=first.key, why=first.why),
            hint="unhang presets --settings lists every setting",
        )
    if output is not None:
        write(output, found, force)
    for one in found.refused:
        what = msg("not carried").of(chosen)
        screen.say(f"{what}: {one.key}={typed(one.value)}: {in_language(one.why, chosen)}")
    if as_json:
        refused = [{"key": r.key, "value": r.value, "why": r.why} for r in found.refused]
        print_json({"schema": SCHEMA, "form": form, "text": found.text, "companions": found.companions, "refused": refused})
    elif output is None:
        screen.echo(found.text, end="")
        for ending, text in found.companions.items():
            screen.echo(f"unhang: -o FILE writes this beside it, as FILE{ending}:\n{text}", stderr=True, end="")


def _have_an_effect(form: str, where: Layout, options: Mapping[str, Collection[str]]) -> None:
    """`options` are what was typed, with what of the layout each gives. Raises UnhangError for one of which nothing would stand in the file."""
    from unhang.remedies.exports import forms

    found = forms.form(form)
    for option, parts in options.items():
        if not parts or any(found.has_place_for(part, where) for part in parts):
            continue
        if where.nodes == 1 and any(part in found.reads for part in parts):
            raise UnhangError(f"{option} has no effect in {form} for one host", hint="--nodes N where there are several; leave it out where not")
        others = ", ".join(sorted({name for part in parts for name in forms.with_place_for(part, where)}, key=forms.NAMES.index))
        raise UnhangError(f"{option} has no effect in {form}: its file has no place for it", hint=f"leave it out; forms that have one: {others}")


def _agreed(option: str, said: T | None, behind: T | None) -> T | None:
    """What an option and the command behind -- say."""
    if said is not None and behind is not None and said != behind:
        raise UnhangError(f"{option} {said}, and the command behind -- says {behind}: which of them?")
    return behind if said is None else said


def _installed(python: str) -> Installed:
    """Raises UnhangError for what is no Python: nothing would be spelt for it."""
    from unhang.settings.installed import installed

    if shutil.which(python) is None:
        raise UnhangError(f"--python {python}: there is no such program")
    found = installed(python)
    if found.torch is None:
        raise UnhangError(f"--python {python}: it has no torch, or is no Python", hint="leave --python out to spell for current releases")
    return found


def _of_own_preset(name: str | None, configured: Configuration) -> Collection[str]:
    found = configured.presets.get(name or configured.preset)
    return found.settings if found is not None else ()


def _of_preset(name: str | None, configured: Configuration, python: str | None, nodes: int | None, address: str | None) -> dict[str, Value]:
    from unhang.cli import settings as asked
    from unhang.launch import command as commands
    from unhang.settings import plan

    wanted = name or configured.preset
    if not wanted:
        return {}
    # A preset that is chosen from facts is chosen from those of this machine, whatever its settings are spelt for: of two machines none is that.
    here = asked.here(python or commands.training_python(), looks=True, address=address, hosts=nodes)
    return dict(plan.preset(wanted, here, configured).settings)


def write(output: Path, found: Exported, force: bool) -> None:
    if not output.parent.is_dir():
        said = (
            msg("{path} is no directory", path=output.parent) if output.parent.exists() else msg("there is no directory {path}", path=output.parent)
        )
        raise UnhangError(said, hint=f"mkdir -p {fsio.as_argument(output.parent)}")
    texts = {output: found.text, **{output.with_name(output.name + behind): text for behind, text in found.companions.items()}}
    for path in texts:
        if path.is_dir():
            raise UnhangError(msg("{path} is a directory", path=path), hint=f"-o {fsio.as_argument(path / 'FILE')}")
        if not force and (path.exists() or path.is_symlink()):
            raise UnhangError(f"{path} is there already", hint="--force overwrites it")
    for path, text in texts.items():
        data = text.encode("utf-8")
        try:
            if force and (path.exists() or path.is_symlink()):
                fsio.write_named(path, data)
            else:
                _create(path, data)
            if text.startswith("#!") and path.is_file():
                mode = path.stat().st_mode
                path.chmod(mode | (mode & 0o444) >> 2)
        except OSError as e:
            raise UnhangError(f"cannot write {path}: {e.strerror}") from e


def _create(path: Path, data: bytes) -> None:
    """All of it or nothing. Raises OSError, FileExistsError among them."""
    with open(path, "xb", opener=fsio.open_private) as f:
        try:
            f.write(data)
            f.flush()
        except OSError:
            path.unlink()
            raise


def _check(names: Sequence[str], form: str | None, nodes: int | None, processes: int | None, as_json: bool, chosen: Language) -> int:
    from unhang.cli import checking

    found = checking.check(names, form=form, nodes=nodes, processes=processes)
    if as_json:
        listed = [checking.as_json(one) for one in found]
        print_json({"schema": SCHEMA, **(listed[0] if len(listed) == 1 else {"files": listed})})
    else:
        checking.show(found, chosen)
    return max(one.code for one in found)


def _list(chosen: Language, as_json: bool) -> None:
    from unhang.remedies.exports import forms

    if as_json:
        print_json({"schema": SCHEMA, "forms": [{"name": f.name, "file": f.file, "title": f.title.of(chosen)} for f in forms.FORMS]})
        return
    for one in forms.FORMS:
        screen.echo(f"{one.name:<15} {one.file:<20} {one.title.of(chosen)}")
