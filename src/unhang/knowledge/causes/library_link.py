"""library-link: the dynamic linker does not find a library, or finds another one than was meant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.caught_exceptions import stepped_over, that_ended_something
from unhang.knowledge.cause import LogView, cause
from unhang.knowledge.text import COMMA, NOTHING, Text, joined, same
from unhang.model import Evidence, Finding, HostFinding
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.facts.libraries import Copy, Libraries
    from unhang.facts.snapshot import Snapshot
    from unhang.logs import Hit


# What loaders and linkers end with, and an exception whose traceback is not in the log.
_FATAL = lazily(
    r"symbol lookup error|error while loading shared libraries|undefined reference to|cannot find -l|_LIBRARY using the| fatal error: |"
    r"^(?:\([^()]{1,60}\) )?[\w.]{0,60}(?:Error|Exception): "
)
# Lines that the text of an exception may have.
_TEXT_LINES = 8


def _in_logs(view: LogView) -> Finding | None:
    """Packages try to import what they can do without, and print it: that ends nothing."""
    hits = [h for h in view.hits_of(CAUSE.id) if (back := view.traceback_of(h)) is None or that_ended_something([back], view)]
    fatal = [h for h in hits if _is_fatal(h, view)]
    return CAUSE.of_hits(fatal, view) or CAUSE.of_hits([h for h in hits if not stepped_over(view, h)], view, standing="possible")


def _is_fatal(hit: Hit, view: LogView) -> bool:
    if _FATAL.search(hit.text):
        return True
    own = [t for t in view.tracebacks if t.source == hit.source and t.line <= (hit.line or 0) <= t.end + _TEXT_LINES]
    return bool(that_ended_something(own, view))


def _on_host(host: Snapshot) -> Iterable[HostFinding]:
    from unhang.facts import gpu, libraries

    seen = host.get(libraries.SUBJECT)
    if seen is None:
        return
    torch = seen.torch
    if torch.lacking:
        yield CAUSE.host_finding(
            area="libraries",
            severity="error",
            says=Text(
                "torch {version} needs {names}, found neither beside it nor on the search path",
                "torch {version} 需要 {names}，在它旁边和搜索路径上都没有找到",
            ).fill(version=torch.version, names=_some(torch.lacking)),
            leads_to=Text("importing torch fails: cannot open shared object file", "import torch 失败：cannot open shared object file"),
            evidence=(Evidence(source=f"{torch.path}/lib/libtorch_cuda.so", text=", ".join(torch.lacking)),),
            remedies=("one-cuda", "see-what-is-loaded"),
        )
    nccl = seen.copy("nccl")
    if nccl is not None and nccl.through in ("LD_PRELOAD", "LD_LIBRARY_PATH"):
        yield from _nccl(seen, nccl)
    gpus = host.get(gpu.SUBJECT)
    if gpus is not None and libraries.usable_gpus(host):
        yield from _driver_library(seen.copy("cuda"), gpus.driver)
    if seen.net_plugin_lacking:
        yield CAUSE.host_finding(
            area="libraries",
            severity="warning",
            says=Text(
                f"NCCL_NET_PLUGIN asks for {seen.net_plugin}, and no such library is found", f"NCCL_NET_PLUGIN 要求 {seen.net_plugin}，却找不到这个库"
            ),
            leads_to=Text(
                "NCCL goes on with its own transports and says so only at NCCL_DEBUG=INFO: on clusters that need the plugin, many times slower",
                "NCCL 改用自带的传输方式，只有 NCCL_DEBUG=INFO 时才说明：在需要该插件的集群上慢很多倍",
            ),
            evidence=(Evidence(source="the environment", text=f"NCCL_NET_PLUGIN={seen.net_plugin}"),),
            remedies=("net-plugin",),
        )


def _some(names: tuple[str, ...]) -> Text:
    more = Text(f" and {len(names) - 3} more", f" 等 {len(names)} 个库") if len(names) > 3 else NOTHING
    return joined(map(same, names[:3]), COMMA) + more


def _nccl(seen: Libraries, nccl: Copy) -> Iterable[HostFinding]:
    """NCCL only adds functions: a newer one in front is somebody's wish, an older one may lack what torch calls."""
    from unhang.facts.libraries import number

    own = next((c for c in seen.others if c.name == "nccl" and c.through in ("RPATH", "RUNPATH", "package")), None)
    if nccl.version is None or own is None or own.version is None or number(nccl.version) >= number(own.version):
        return
    yield CAUSE.host_finding(
        area="libraries",
        severity="warning",
        says=Text(
            f"{nccl.through} puts NCCL {nccl.version} ({nccl.path}) before the NCCL {own.version} that torch {seen.torch.version} brought along",
            f"{nccl.through} 把 NCCL {nccl.version}（{nccl.path}）排在 torch {seen.torch.version} 自带的 NCCL {own.version} 之前",
        ),
        leads_to=Text(
            "torch calls functions that the older NCCL lacks (undefined symbol), or hosts run different releases",
            "torch 调用了旧版 NCCL 没有的函数（undefined symbol），或各主机版本不同",
        ),
        evidence=(Evidence(source=nccl.path, text=f"NCCL version {nccl.version}"), Evidence(source=own.path, text=f"NCCL version {own.version}")),
        remedies=("drop-ld-library-path", "one-nccl"),
    )


def _driver_library(cuda: Copy | None, driver: str | None) -> Iterable[HostFinding]:
    """Copies of libcuda that LD_LIBRARY_PATH puts before the driver's own: the toolkit's stub, or a compat package that is older."""
    from unhang.facts.libraries import number

    if cuda is None or cuda.through not in ("LD_LIBRARY_PATH", "LD_PRELOAD"):
        return
    if "/stubs/" in cuda.path:
        says = Text(
            f"{cuda.through} leads to the toolkit's stub of the driver, {cuda.path}", f"{cuda.through} 指向 CUDA 工具包里的驱动桩库 {cuda.path}"
        )
        leads_to = Text("CUDA does not start: the stub is for linking only (error 34)", "CUDA 无法启动：桩库只用于链接（错误 34）")
    elif "/compat" in cuda.path and cuda.version is not None and driver is not None and number(cuda.version) < number(driver):
        says = Text(
            f"{cuda.through} puts libcuda {cuda.version} ({cuda.path}) before the one of the driver, {driver}",
            f"{cuda.through} 把 libcuda {cuda.version}（{cuda.path}）排在驱动 {driver} 自带的之前",
        )
        leads_to = Text(
            "CUDA does not start: error 803, forward compatibility works only with a driver that is older than the package",
            "CUDA 无法启动：错误 803，forward compatibility 只适用于比 compat 包更旧的驱动",
        )
    else:
        return
    yield CAUSE.host_finding(
        area="libraries",
        severity="error",
        says=says,
        leads_to=leads_to,
        evidence=(Evidence(source=cuda.path, text=cuda.version or "libcuda.so.1"),),
        remedies=("drop-ld-library-path",),
    )


CAUSE = cause("library-link", in_logs=_in_logs, on_host=_on_host)
