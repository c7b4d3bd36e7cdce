"""The variables of this environment that touch communication, also those in NCCL's own files, and the libraries that may read them.

Values of secrets are never kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field

from unhang.facts import job, network, variable_readers, which_nccl
from unhang.facts.host import Host, Subject
from unhang.i18n import COMMA, NOTHING, Text, joined, msg
from unhang.model import frozen

# Families whose names are all of interest, and single names.
TOUCHES = re.compile(
    r"(?:NCCL|RCCL|MSCCL|MSCCLPP|OFI_NCCL|TORCH_NCCL|TORCH_FR|TORCH_GLOO|TORCH_DIST|TORCH_DISTRIBUTED|TORCHELASTIC|TORCH_ELASTIC|TORCH_SYMM_MEM|GLOO|PET|ACCELERATE"
    r"|DEEPSPEED|FSDP|UCX|UCC|FI|RDMAV|OMPI_MCA|SHARP|HCCL|CCL|I_MPI|PYTORCH_NCCL|TORCH_ENABLE_NCCL|ENABLE_NCCL)_\w+"
    r"|DS_(?:ACCELERATOR|ENV_FILE|SKIP_CUDA_CHECK|IGNORE_CUDA_DETECTION)|DDP_(?:TIMEOUT|BACKEND)|TORCH_INCLUDE_(?:STACK_TRACE|ONLY_ACTIVE)"
    r"|TORCH_CPP_LOG_LEVEL|TORCH_SHOW_CPP_STACKTRACES|TORCH_DISABLE_SHARE_RDZV_TCP_STORE|TP_SOCKET_IFNAME|USE_LIBUV|MASTER_(?:ADDR|PORT)"
    r"|(?:LOCAL_|GROUP_|ROLE_|NODE_)?RANK|(?:LOCAL_|GROUP_|ROLE_)?WORLD_SIZE|OMPI_COMM_WORLD_(?:LOCAL_)?(?:RANK|SIZE)|(?:MIN_|MAX_)?NNODES"
    r"|PYTORCH_(?:CUDA_)?ALLOC_CONF|NPROC_PER_NODE|MAX_RESTARTS|RDZV_ID|FORCE_TORCHRUN|USE_RAY|OPTIM_TORCH|OMP_NUM_THREADS|TOKENIZERS_PARALLELISM"
    r"|CUDA_(?:LAUNCH_BLOCKING|VISIBLE_DEVICES|DEVICE_ORDER|DEVICE_MAX_CONNECTIONS|MODULE_LOADING)"
)
# A build or an image says so of itself; nobody set it.
_OF_IMAGES = re.compile(
    r"NCCL_(?:VER|VERSION|HOME|ROOT|ROOT_DIR|DIR|PATH|PREFIX|(?:LIB|LIBS|LIBRARY|LIBRARIES|INCLUDE)(?:_?(?:DIR|PATH)S?)?"
    r"|(?:INSTALL|HDR|SOURCE|SRC|BIN)_?(?:DIR|PATH)|\w*PACKAGE\w*)"
)
# Whole words, also several at once: HFTOKEN, APIKEY, TOKEN2. Tokenizers and counts of tokens are none; who only looks like one stays hidden.
_SECRET = re.compile(
    r"PSK|(?<!MAX_)(?<!MIN_)(?<!NUM_)TOKEN(?!IZ)(?!S?_?(?:LENGTH|LIMIT|COUNT)(?:_|$))|SECRET|PASSW|PASSPHRASE|CREDENTIAL|(?<![A-Z])(?:KEY|PASS|PAT|PWD)S?\d*(?![A-Z])"
    r"|(?:API|ACCESS|PRIVATE|AUTH)_?KEY"
)
# Nothing else is kept of names that are not about communication; these may be misspelt ones that are.
_NEAR = re.compile(r"(?:NCCL|TORCH|TORCHELASTIC|PYTORCH|CUDA|GLOO|ACCELERATE|DEEPSPEED|OMP|TOKENIZERS|MASTER|LOCAL)_\w+|\w+_(?:RANK|SIZE|ADDR|PORT)")
_PLAIN = re.compile(r"[+-]?\d{1,6}|[A-Za-z]{1,8}")
_INDEX = re.compile(r"\+?\d+")
_LINE = re.compile(r"\s*(?P<name>[A-Za-z_]\w*)=(?P<value>.*?)\s*")


@frozen
class Setting:
    """One variable. `source` is "environment" or the file of NCCL's that it stands in; `value` is None where it is secret."""

    name: str
    value: str | None
    source: str
    line: int | None = None


@frozen
class Variables:
    """What is set here. `names` are the other variables' names, `plain` the values of those that may be a slip away from one of ours, `libraries`
    the releases of what may read them ("" where a release is not known), and `plugins` the files that NCCL may load, which read some, too.

    What values name is None where that could not be seen: `interfaces` that are up with an address, those of them that are `running`,
    `adapters` (RDMA), `gpus` that a process sees and those that are `installed`. `missing` is a file that NCCL_CONF_FILE names and that is not
    there.
    """

    settings: tuple[Setting, ...]
    names: tuple[str, ...]
    libraries: Mapping[str, str]
    interfaces: tuple[str, ...] | None
    adapters: tuple[str, ...] | None
    gpus: int | None
    running: tuple[str, ...] | None = None
    installed: int | None = None
    plain: Mapping[str, str] = field(default_factory=dict)
    plugins: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    missing: str = ""


def touches(name: str) -> bool:
    """Whether a variable of this name is about communication."""
    return TOUCHES.fullmatch(name) is not None and _OF_IMAGES.fullmatch(name) is None


def kept(name: str, value: str | None) -> str | None:
    """The value, unless the name says that it is secret."""
    return None if _SECRET.search(name) else value


def plain(name: str, value: str | None) -> str | None:
    """The value of a variable that may be one of ours misspelt, where it is a short number or word."""
    shown = value is not None and _NEAR.fullmatch(name) and _PLAIN.fullmatch(value)
    return kept(name, value) if shown else None


def visible_gpus(value: str) -> tuple[tuple[str, ...], str | None]:
    """What CUDA makes of CUDA_VISIBLE_DEVICES, as torch counts it, too: the GPUs up to the first entry that names none, and that entry.

    An entry that stands there twice hides all. Of "1x" it reads the number.
    """
    kind = value.strip()[:4] if value.strip().startswith(("GPU-", "MIG-")) else ""
    shown: list[str] = []
    for entry in (e.strip() for e in value.split(",")):
        index = None if kind else _INDEX.match(entry)
        name = str(int(index[0])) if index is not None else entry
        if index is None and not (kind and entry.startswith(kind)):
            return tuple(shown), entry
        if name in shown:
            return (), entry
        shown.append(name)
    return tuple(shown), None


def half_read(value: str) -> tuple[str, str, str] | None:
    """The first entry of CUDA_VISIBLE_DEVICES of which CUDA takes the number in front only, that number, and the rest: "0-3", "0 1 2", "0:3"."""
    if value.strip().startswith(("GPU-", "MIG-")):
        return None
    for entry in (e.strip() for e in value.split(",")):
        index = _INDEX.match(entry)
        if index is None:
            return None
        if index[0] != entry:
            return entry, str(int(index[0])), entry[index.end() :].strip()
    return None


def beyond(shown: Iterable[str], installed: int) -> int | None:
    """Where in such a list the first index stands that so many GPUs have not."""
    return next((i for i, name in enumerate(shown) if name.isdecimal() and int(name) >= installed), None)


def collect(host: Host, libraries: Mapping[str, str] | None = None) -> Variables:
    """Never raises. `libraries` stand in for those that are installed."""
    unread: list[str] = []
    if libraries is None:
        libraries = {library.id: library.version for library in variable_readers.installed(host)}
    of_environment = [Setting(name=n, value=kept(n, v), source="environment") for n, v in sorted(host.environ.items()) if touches(n)]
    settings = {s.name: s for s in of_environment}
    # NCCL sets what is not set yet: the environment first, then the user's file, then the host's.
    missing: list[str] = []
    for path in _conf_files(host, libraries, unread):
        for setting in _of_conf(host, path, unread, missing):
            settings.setdefault(setting.name, setting)
    others = sorted(n for n in host.environ if n not in settings)
    interfaces, running = _interfaces(host, unread)
    installed = _installed(host)
    return Variables(
        settings=tuple(settings.values()),
        names=tuple(others),
        plain={n: value for n in others if (value := plain(n, host.environ[n])) is not None},
        libraries=dict(libraries),
        interfaces=interfaces,
        running=running,
        adapters=_adapters(host),
        gpus=_gpus(host, installed),
        installed=installed,
        plugins=which_nccl.plugins(host),
        missing=next((path for path in missing if _is_named(host, path)), ""),
        unread=tuple(unread),
    )


def _conf_files(host: Host, libraries: Mapping[str, str], unread: list[str]) -> Iterator[str]:
    which = "rccl" if "rccl" in libraries else "nccl"
    if host.environ.get("NCCL_CONF_FILE") and variable_readers.at_least(libraries.get("nccl", ""), 2, 23):
        try:
            yield job.conf_file(host) or ""
        except OSError as e:
            unread.append(str(e))
    elif home := host.environ.get("HOME"):
        yield f"{home}/.{which}.conf"
    yield f"/etc/{which}.conf"


def _is_named(host: Host, path: str) -> bool:
    try:
        return job.conf_file(host) == path
    except OSError:
        return False


def _of_conf(host: Host, path: str, unread: list[str], missing: list[str]) -> Iterator[Setting]:
    try:
        lines = host.read(path).splitlines()
    except (FileNotFoundError, NotADirectoryError):
        missing.append(path)
        return
    except OSError as e:
        unread.append(f"{path}: {e.strerror or e}")
        return
    for number, line in enumerate(lines, 1):
        found = _LINE.fullmatch(line)
        if found is not None and not line.lstrip().startswith("#"):
            yield Setting(name=found["name"], value=kept(found["name"], found["value"]), source=path, line=number)


def _interfaces(host: Host, unread: list[str]) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
    """Those that Gloo and those that NCCL would take; all where no addresses are known."""
    try:
        found, known = network.look(host)
    except OSError:
        unread.append("network interfaces")
        return None, None
    takes = (network.addressed, network.usable)
    of_gloo, of_nccl = (tuple(i.name for i in found if not known or take(i)) for take in takes)
    return of_gloo, of_nccl


def _adapters(host: Host) -> tuple[str, ...] | None:
    try:
        if "infiniband" not in host.names("/sys/class"):
            return ()
        return tuple(n for n in host.names("/sys/class/infiniband") if host.path(f"/sys/class/infiniband/{n}").is_dir())
    except OSError:
        return None


def _installed(host: Host) -> int | None:
    try:
        return len(host.names("/proc/driver/nvidia/gpus"))
    except OSError:
        return None


def _gpus(host: Host, installed: int | None) -> int | None:
    """How many a process sees."""
    visible = host.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return installed
    shown, _ = visible_gpus(visible)
    end = beyond(shown, installed) if installed is not None else None
    return len(shown) if end is None else end


def _summary(seen: Variables) -> Text:
    unnumbered = msg("of unknown release", "variables")
    read_by = [msg("{name} {version}", name=name, version=version or unnumbered) for name, version in seen.libraries.items()]
    from_files = sum(s.source != "environment" for s in seen.settings)
    files = msg(", {n} of them in NCCL's files", n=from_files) if from_files else NOTHING
    return msg(
        "{n} set{files}; {read_by}",
        n=len(seen.settings),
        files=files,
        read_by=joined(read_by, COMMA) if read_by else msg("no library that reads them is installed"),
    )


SUBJECT = Subject(id="variables", title=msg("variables", "title"), facts=Variables, collect=collect, summary=_summary)
