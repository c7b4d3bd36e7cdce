"""library-link: the dynamic linker does not find a library, or finds another one than was meant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from unhang.knowledge.caught_exceptions import stepped_over, that_ended_something
from unhang.knowledge.cause import Cause, LogView, Signature
from unhang.knowledge.text import COMMA, NOTHING, Text, joined, same
from unhang.model import Evidence, Finding, HostFinding, Remedy
from unhang.patterns import lazily

if TYPE_CHECKING:
    from unhang.facts.libraries import Copy, Libraries
    from unhang.facts.snapshot import Snapshot
    from unhang.logs import Hit

_LIBRARY = r"(?P<library>(?<![\w.+-])[\w.+-]{1,80}\.so[\w.]{0,24})"

# What loaders and linkers end with, and an exception whose traceback is not in the log.
_FATAL = lazily(
    r"symbol lookup error|error while loading shared libraries|undefined reference to|cannot find -l|_LIBRARY using the| fatal error: |"
    r"^(?:\([^()]{1,60}\) )?[\w.]{0,60}(?:Error|Exception): "
)
# torch.utils.cpp_extension builds NAME/NAME.so; a rank that waited for the one that builds imports it, whether it is there or not.
_UNBUILT = r"ImportError: /\S{0,300}/(?P<library>\w{1,80})/(?P=library)\.so: cannot open shared object file"
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


CAUSE = Cause(
    id="library-link",
    role="root",
    title="A library is missing or is the wrong one",
    title_zh="动态库缺失或加载了错误的版本",
    what=(
        "A program or a Python module could not be loaded: a shared library is not found, or the one that is found lacks a symbol or a symbol "
        "version."
    ),
    why=(
        "Two copies of a library are installed (a system NCCL beside torch's, wheels for two CUDA versions), LD_LIBRARY_PATH puts the wrong one "
        "first, or an extension was built against another torch."
    ),
    signatures=(
        # NCCL's own attempts to load optional plugins fail with the same words at INFO level and harm nobody.
        Signature(
            needle=": undefined symbol: ",
            pattern=r"^(?!.{0,400}NCCL INFO).{0,400}?(?<![\w.+-])(?P<library>[\w.+-]{1,100}): undefined symbol: (?P<symbol>nccl\w+)",
            says="{library} needs {symbol}, which the libnccl that is loaded does not have: an older NCCL is found first",
            says_zh="{library} 需要 {symbol}，而实际加载的 libnccl 没有它：先找到的是更旧的 NCCL",
            remedies=("one-nccl", "drop-ld-library-path"),
        ),
        Signature(
            needle=": undefined symbol: _",
            pattern=rf"^(?!.{{0,400}}NCCL INFO).{{0,400}}?{_LIBRARY}: undefined symbol: (?P<symbol>_Z\w*(?:torch|c10|at\d|caffe2)\w*)",
            says="{library} was built against another torch than the one that is installed ({symbol} is missing)",
            says_zh="编译 {library} 所用的 torch 不是当前安装的这个（缺少 {symbol}）",
            remedies=("rebuild-the-extension",),
        ),
        Signature(
            needle=": undefined symbol: __nvJitLink",
            pattern=rf"{_LIBRARY}: undefined symbol: (?P<symbol>__nvJitLink\w+)",
            says="{library} found a libnvJitLink of another CUDA release",
            says_zh="{library} 找到的 libnvJitLink 属于另一个 CUDA 版本",
            remedies=("drop-ld-library-path", "one-cuda"),
        ),
        Signature(
            needle="undefined symbol: ",
            pattern=rf"^(?!.{{0,400}}NCCL INFO).{{0,400}}?{_LIBRARY}:? (?:\S{{1,200}}: )?undefined symbol: "
            r"(?P<symbol>(?!nccl|__nvJitLink|_Z\w*(?:torch|c10|at\d|caffe2))\w+)",
            says="{library} needs {symbol}, which no loaded library has",
            says_zh="{library} 需要 {symbol}，而已加载的库都没有它",
            remedies=("see-what-is-loaded", "drop-ld-library-path"),
        ),
        Signature(
            needle="with link time reference",
            pattern=r"symbol (?P<symbol>\w+),? version \S{1,60} not defined in file (?P<library>[\w.+-]{1,80})",
            says="the {library} that is found is of another release: it lacks {symbol}",
            says_zh="找到的 {library} 是另一个版本：缺少 {symbol}",
            remedies=("drop-ld-library-path", "one-cuda"),
        ),
        # The driver's own libraries are the container runtime's business.
        Signature(
            needle=": cannot open shared object file",
            pattern=r"(?:Error|error while loading shared libraries|Exception|native library)(?:: |\(')"
            rf"(?!libcuda\.so|libnvidia-ml|libnccl-(?:net|profiler|tuner|env))(?:/\S{{0,200}}/)?{_LIBRARY}: cannot open shared object file",
            unless=_UNBUILT,
            says="{library} is not found",
            says_zh="找不到 {library}",
            remedies=("see-what-is-loaded", "one-cuda"),
        ),
        Signature(
            needle=": cannot open shared object file",
            pattern=_UNBUILT,
            standing="possible",
            says="the extension {library} was not built: its build, which another rank may have made, has failed",
            says_zh="扩展 {library} 没有编译出来：它的编译（可能由另一个 rank 进行）失败了",
            remedies=("for-the-compiler",),
        ),
        Signature(
            needle=": cannot open shared object",
            pattern=r"^(?!.{0,400}(?:NCCL INFO|(?:Error|librar(?:ies|y)|Exception)(?:: |\('))).{0,400}?"
            r"(?P<library>libnccl\.so[\w.]{0,16}): cannot open shared object",
            standing="likely",
            says="{library} is not found",
            says_zh="找不到 {library}",
            remedies=("one-nccl", "see-what-is-loaded"),
        ),
        Signature(
            needle="NCCL library",
            pattern=r"Failed to (?:load|import) NCCL library(?:.{0,60}?(?P<library>libnccl\.so[\w.]{0,16}))?",
            says="the NCCL library could not be loaded",
            says_zh="NCCL 库无法加载",
            remedies=("one-nccl", "see-what-is-loaded"),
        ),
        Signature(
            needle="name 'ncclGetVersion' is not defined",
            says="the NCCL library could not be loaded, so its functions are missing",
            says_zh="NCCL 库无法加载，因此缺少它的函数",
            remedies=("one-nccl", "see-what-is-loaded"),
        ),
        Signature(
            needle="' not found (required by ",
            pattern=r"version [`'‘](?P<symbol>(?:GLIBC|GLIBCXX|CXXABI|GOMP|OMP|NCCL|OMPI|lib\w+\.so)[\w.]{0,40})' not found \(required by "
            r"(?:/[^\s)]{0,200}/)?(?P<library>[^\s/)]{1,100})\)",
            says="{library} needs {symbol}, and the library that is found is older",
            says_zh="{library} 需要 {symbol}，而找到的库更旧",
            remedies=("newer-runtime", "drop-ld-library-path"),
        ),
        Signature(
            needle="cannot find -l",
            pattern=r"\bld(?:\.\w+)?: (?:error: )?(?:cannot|unable to) find (?:library )?-l(?P<library>[\w.+-]{1,60}\w)",
            says="the linker does not find lib{library}",
            says_zh="链接器找不到 lib{library}",
            remedies=("for-the-linker",),
        ),
        *(
            Signature(
                needle=needle,
                pattern=rf"{words}(?P<library>libbitsandbytes\w{{1,40}}\.\w{{1,5}})",
                standing="likely",
                says="bitsandbytes was not built for this CUDA release: {library} is missing",
                says_zh="bitsandbytes 没有为该 CUDA 版本编译：缺少 {library}",
                remedies=("rebuild-the-extension",),
            )
            for needle, words in (
                ("bitsandbytes CUDA binary at", "Could not find the bitsandbytes CUDA binary at .{0,300}?"),
                ("Required library version not found: ", "Required library version not found: "),
            )
        ),
        Signature(
            needle=" fatal error: ",
            pattern=r"fatal error: (?:(?P<library>[\w./+-]{1,200}\.h(?:pp)?): No such file|cannot execute [`'‘]?(?P<program>cc1\w*))",
            says="a compiler that the run started lacks {library}{program}",
            says_zh="运行中启动的编译器缺少 {library}{program}",
            remedies=("for-the-compiler",),
        ),
        Signature(
            needle="DLL load failed while importing ",
            pattern=r"DLL load failed while importing (?P<library>\w{1,80}): The specified (?:module|procedure) could not be found",
            says="a DLL that {library} needs is not found, or is another release",
            says_zh="找不到 {library} 需要的 DLL，或其版本不对",
            remedies=("see-what-is-loaded",),
        ),
        Signature(
            needle="_LIBRARY using the following names",
            pattern=r"Could not find (?P<library>\w{1,60})_LIBRARY using the following names",
            says="CMake does not find the library {library}",
            says_zh="CMake 找不到库 {library}",
            remedies=("for-the-linker",),
        ),
        Signature(
            needle="undefined reference to",
            pattern=r"undefined reference to [`'](?P<symbol>(?:nccl|cuda|cu[A-Z]|cublas|cudnn|torch|c10)\w*)",
            says="the linker found headers and library of different releases: {symbol} is missing",
            says_zh="链接器找到的头文件和库版本不同：缺少 {symbol}",
            remedies=("one-nccl", "see-what-is-loaded"),
        ),
        Signature(
            needle="third-party dynamic library (",
            pattern=r"third-party dynamic library \((?P<library>[\w.+-]{1,80})\) that Paddle depends on is not configured correctly",
            unless=r"libcuda\.so",
            says="Paddle does not find {library}",
            says_zh="Paddle 找不到 {library}",
            remedies=(
                "see-what-is-loaded",
                "one-cuda",
            ),
        ),
    ),
    in_logs=_in_logs,
    on_host=_on_host,
    remedies=(
        Remedy(
            id="one-nccl",
            says=(
                "Leave one NCCL: the wheel that torch asks for. Remove the wheels for other CUDA versions and keep system copies off the search path."
            ),
            says_zh="只保留一个 NCCL：torch 所要求的那个 wheel。卸载其他 CUDA 版本的 wheel，并让系统里的副本不出现在搜索路径上。",
            command=(
                'python -m pip list | grep -i nccl; ldconfig -p | grep libnccl; ldd $(python -c "import importlib.util as u; '
                "print(u.find_spec('torch').submodule_search_locations[0])\")/lib/libtorch_cuda.so | grep -E 'nccl|not found'"
            ),
            verify="python -c 'import torch; print(torch.cuda.nccl.version())'",
        ),
        Remedy(
            id="drop-ld-library-path",
            says="Start without LD_LIBRARY_PATH and LD_PRELOAD, so that each library finds the ones that it was shipped with.",
            says_zh="去掉 LD_LIBRARY_PATH 和 LD_PRELOAD 再启动，让每个库使用随它一起发布的依赖。",
            command="env -u LD_LIBRARY_PATH -u LD_PRELOAD torchrun ARGS train.py",
            verify="env -u LD_LIBRARY_PATH -u LD_PRELOAD python -c 'import torch; print(torch.__version__)'",
        ),
        Remedy(
            id="one-cuda",
            says="Reinstall torch with its own CUDA wheels, after removing those of another CUDA version (nvidia-*-cu11 beside nvidia-*-cu12).",
            says_zh="卸载其他 CUDA 版本的 wheel（例如与 nvidia-*-cu12 并存的 nvidia-*-cu11），再重装 torch 及其自带的 CUDA wheel。",
            command="python -m pip list | grep -i ^nvidia-; python -m pip check",
            verify="python -c 'import torch; torch.cuda.init()'",
        ),
        Remedy(
            id="rebuild-the-extension",
            says="Reinstall the extension for the torch that is installed; a wheel of it has to name the same torch, CUDA and C++ ABI.",
            says_zh="针对当前安装的 torch 重装该扩展；若使用预编译 wheel，其 torch、CUDA 版本与 C++ ABI 必须一致。",
            command="python -m pip install --force-reinstall --no-deps --no-cache-dir --no-build-isolation EXTENSION",
            verify="python -c 'import torch; print(torch.__version__, torch.version.cuda, torch.compiled_with_cxx11_abi())'",
        ),
        Remedy(
            id="see-what-is-loaded",
            says="Let the dynamic linker tell where it looks and what it takes.",
            says_zh="让动态链接器打印它搜索的路径和最终选择的文件。",
            command="LD_DEBUG=libs python -c 'import torch' 2>&1 | grep -E 'find library|trying file|calling init' | grep -E 'nccl|cud|LIBRARY'",
        ),
        Remedy(
            id="for-the-linker",
            says=(
                "A compiler that starts during the run (Triton, torch.compile, an extension) links against that library: install it, or put its "
                "directory on LIBRARY_PATH. For libcuda that is the driver's directory, or lib64/stubs of the CUDA toolkit."
            ),
            says_zh=(
                "运行中启动的编译器（Triton、torch.compile、扩展）要链接这个库：安装它，或把它所在的目录加入 LIBRARY_PATH。"
                "libcuda 位于驱动的目录，或 CUDA 工具包的 lib64/stubs。"
            ),
            command="ldconfig -p | grep -E 'libcuda|libcudnn'; export LIBRARY_PATH=/usr/local/cuda/lib64/stubs:$LIBRARY_PATH",
        ),
        Remedy(
            id="for-the-compiler",
            says="Install the whole compiler and the headers: build-essential and the -dev package of this Python, or gxx of that conda environment.",
            says_zh="安装完整的编译器和头文件：build-essential 和该 Python 的 -dev 包，或同一 conda 环境中的 gxx 与 python。",
            command="gcc --version; echo | gcc -E -xc++ - >/dev/null; python -c 'import sysconfig; print(sysconfig.get_paths()[\"include\"])'",
        ),
        Remedy(
            id="net-plugin",
            says="Put the directory of the plugin on LD_LIBRARY_PATH of every rank, or unset NCCL_NET_PLUGIN.",
            says_zh="把插件所在目录加入每个进程的 LD_LIBRARY_PATH，或取消设置 NCCL_NET_PLUGIN。",
            command="find / -xdev -name 'libnccl-net*.so*' 2>/dev/null",
            verify="NCCL_DEBUG=INFO torchrun ARGS train.py 2>&1 | grep -i 'NET/Plugin'",
        ),
        Remedy(
            id="newer-runtime",
            says="The binary was built on a newer system: install the newer C++ runtime into the environment, or use a build for this system.",
            says_zh="该二进制在更新的系统上编译：在环境中安装更新的 C++ 运行时，或改用适合本系统的构建。",
            command="ldd --version | head -1; strings $(gcc -print-file-name=libstdc++.so.6) | grep -E '^(GLIBCXX|CXXABI)_' | sort -V | tail -2",
            verify="python -c 'import torch; print(torch.__version__)'",
        ),
    ),
    leads_to=("rank-exception",),
    mistaken_for={
        "version-mismatch": "there everything loads, and the parts do not understand each other later",
        "arch-not-in-build": "there the library is loaded and has no code for the GPU",
        "container-capability": "a missing libcuda.so.1 or libnvidia-ml.so.1 means that the container has no GPU driver",
        "env-relocation": "after a move, libraries are missing because their recorded paths point to the old place",
    },
    sources=(
        "https://man7.org/linux/man-pages/man8/ld.so.8.html",
        "https://github.com/pytorch/pytorch/issues/119932",
        "https://github.com/pytorch/pytorch/issues/111469",
        "https://github.com/rapidsai/cugraph/issues/4465",
    ),
    hits=(
        "ImportError: DLL load failed while importing MPI: The specified module could not be found.",
        "/srv/x/torch/csrc/python_headers.h:12:10: fatal error: Python.h: No such file or directory",
        "gcc: fatal error: cannot execute 'cc1': execvp: No such file or directory",
        "Could not find the bitsandbytes CUDA binary at PosixPath('/opt/py/lib/python3.11/site-packages/bitsandbytes/libbitsandbytes_cuda124.so')",
        "CUDA SETUP: Required library version not found: libbitsandbytes_cuda116.so. Maybe you need to compile it from source?",
        "/usr/bin/ld: cannot find -lcuda: No such file or directory\ncollect2: error: ld returned 1 exit status",
        "/opt/cc/bin/x86_64-conda-linux-gnu/bin/ld: cannot find -laio\ncollect2: error: ld returned 1 exit status",
        "CMake Error at cmake/FindNCCL.cmake:12 (find_library):\n  Could not find nccl_LIBRARY using the following names: nccl, libnccl.so.",
        "ImportError: /srv/env/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so: undefined symbol: ncclCommWindowRegister",
        "[rank0]: ImportError: /opt/conda/lib/python3.10/site-packages/torch/lib/libtorch_cuda.so: undefined symbol: ncclMemFree",
        "./build/all_reduce_perf: symbol lookup error: /srv/nccl/lib/libnccl-x.so: undefined symbol: ncclCommSplit",
        (
            "ImportError: /srv/env/lib/python3.11/site-packages/flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so: undefined symbol: "
            "_ZN3c105ErrorC2ENS_14SourceLocationESs"
        ),
        "ImportError: /usr/lib/python3/dist-packages/torch/lib/libtorch_python.so: undefined symbol: _ZN5torch4cuda4nccl7versionEv",
        (
            "ImportError: /srv/env/lib/python3.10/site-packages/torch/lib/../../nvidia/cusparse/lib/libcusparse.so.12: undefined symbol: "
            "__nvJitLinkAddData_12_1, version libnvJitLink.so.12"
        ),
        "OSError: /srv/env/lib/libcudnn_ops.so.9: undefined symbol: _ZTVN5cudnn9engineE",
        (
            "ImportError: libcusparse.so.12: symbol __nvJitLinkComplete_12_4, version libnvJitLink.so.12 not defined in file libnvJitLink.so.12 "
            "with link time reference"
        ),
        "(Worker pid=812) ImportError: libnccl.so.2: cannot open shared object file: No such file or directory",
        "./build/all_reduce_perf: error while loading shared libraries: libcudart.so.12: cannot open shared object file: No such file or directory",
        "ImportError: /home/me/.cache/torch_extensions/cpu_adam/cpu_adam.so: cannot open shared object file: No such file or directory",
        "OSError: /opt/tools/libmpi.so.40: cannot open shared object file: No such file or directory",
        "INFO:tensorflow:Error reported to Coordinator: libnccl.so.2: cannot open shared object file: No such file or directory",
        "WARNING:root:Debug message: libnccl.so.2: cannot open shared object file: No such file or directory",
        "all_reduce_perf: symbol lookup error: all_reduce_perf: undefined symbol: ncclCommWindowRegister",
        (
            "ERROR 11-03 10:00:01 [pynccl_wrapper.py:290] Failed to load NCCL library from libnccl.so.2. It is expected if you are not running "
            "on NVIDIA/AMD GPUs."
        ),
        "INFO Failed to import NCCL library: Cannot find libnccl.so.2 in the system.",
        "NameError: name 'ncclGetVersion' is not defined",
        (
            "ImportError: /lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by "
            "/srv/env/lib/python3.11/site-packages/deepspeed/ops/fused_adam.so)"
        ),
        "/usr/bin/ld: all_reduce.o: undefined reference to `ncclCommRegister'",
        (
            "RuntimeError: (PreconditionNotMet) The third-party dynamic library (libnccl.so) that Paddle depends on is not configured corr"
            "ectly. (error code is libnccl.so: cannot open shared object file: No such file or directory)"
        ),
    ),
    near_misses=(
        (
            "node7:5120:5120 [0] NCCL INFO NET/Plugin: Plugin load returned 2 : libnccl-net.so: cannot open shared object file: No such file or "
            "directory : when loading libnccl-net.so"
        ),
        "node7:5120:5120 [0] NCCL INFO NET/Plugin: dlerror=/opt/x/libnccl-net.so: undefined symbol: ncclDebugLog No plugin found",
        "node7:5120:5120 [0] NCCL INFO Failed to open libibverbs.so[.1]",
        "OSError: libcuda.so.1: cannot open shared object file: No such file or directory",
        "node7:5120:5120 [0] NCCL INFO NET/Plugin: Failed to find ncclNetPlugin_v8 symbol.",
        "node7:5120:5120 [0] enqueue.cc:58 NCCL WARN Cuda failure 'named symbol not found'",
        "FileNotFoundError: [Errno 2] No such file or directory: '/srv/data/train.jsonl'",
        ("W1103 10:00:01 dynamic_loader.cc:238] third-party dynamic library found in /usr/local/cuda/lib64"),
    ),
    explain={
        "en": (
            "Before a program runs, the dynamic linker collects its libraries by name and takes the first match on its search path. Here a name "
            "was not found at all, or the first match is another release and lacks a symbol. The usual reasons are two NCCLs or two sets of CUDA "
            "wheels in one environment, an LD_LIBRARY_PATH that puts a system copy first, and extensions that were built against another torch. "
            "ldd and LD_DEBUG=libs show which file is taken. Messages of NCCL at INFO level about libnccl-net.so are harmless: that plugin is "
            "optional."
        ),
        "zh": (
            "程序运行之前，动态链接器按名字收集所需的库，并采用搜索路径上第一个匹配的文件。这里要么根本找不到某个库，要么第一个匹配的是别的版本，"
            "缺少所需符号。常见原因：同一环境里装了两个 NCCL 或两套 CUDA wheel；LD_LIBRARY_PATH 让系统副本排在前面；扩展是针对另一个 torch 编译的。"
            "用 ldd 或 LD_DEBUG=libs 可以看到实际选中的文件。NCCL 在 INFO 级别打印的 libnccl-net.so 找不到并无妨碍：该插件是可选的。"
        ),
    },
)
