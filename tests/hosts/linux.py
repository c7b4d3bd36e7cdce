"""A Linux machine without devices: what its kernel tells in /proc and /sys, its users, its Python, and who looks at it."""

from __future__ import annotations

from collections.abc import Sequence

from tests.hosts.part import GIB, Part, ran, space

ALL_CAPABILITIES, NO_CAPABILITIES = "000001ffffffffff", "0000000000000000"
# The namespaces of a kernel's first processes (include/linux/proc_ns.h); those of a container are any others.
FIRST_NAMESPACES = {"pid": 4026531836, "ipc": 4026531839, "user": 4026531837, "uts": 4026531838}
_STA_PLL, _STA_UNSYNC, _STA_NANO = 0x1, 0x40, 0x2000
_NO_LIMIT = 2**63 - 1
_FLAGS = "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2 ht syscall nx lm avx2 avx512f"


def kernel(*, release: str = "5.15.0-91-generic", cpus: int = 128, memory_gib: int = 1024, virtual: str = "", options: str = "") -> Part:
    """`virtual` is the vendor of a virtual machine, as its firmware tells."""
    total = memory_gib * GIB // 1024
    info = {
        "MemTotal": total,
        "MemFree": total * 8 // 10,
        "MemAvailable": total * 9 // 10,
        "Buffers": 70388,
        "Cached": total // 20,
        "SwapCached": 0,
        "SwapTotal": 8388604,
        "SwapFree": 8388604,
        "Shmem": 18788,
        "CommitLimit": total // 2 + 8388604,
        "Committed_AS": total // 30,
        "VmallocTotal": 34359738367,
    }
    pages = "HugePages_Total:       0\nHugePages_Free:        0\nHugePages_Rsvd:        0\nHugePages_Surp:        0\nHugepagesize:       2048 kB\n"
    flags = _FLAGS + (" hypervisor" if virtual else "")
    processor = "processor\t: {}\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R) Platinum 8480C\nflags\t\t: {}\nbugs\t\t: spectre_v1\n\n"
    files: dict[str, str | None] = {
        "/proc/meminfo": "".join(f"{name + ':':15} {kib:8} kB\n" for name, kib in info.items()) + pages,
        "/proc/cpuinfo": "".join(processor.format(n, flags) for n in range(cpus)),
        "/proc/cmdline": f"BOOT_IMAGE=/boot/vmlinuz-{release} root=/dev/sda2 ro {options}\n",
        "/proc/uptime": "864000.24 6912000.10\n",
        "/proc/loadavg": "0.52 0.58 0.59 1/1843 51234\n",
        "/proc/vmstat": "nr_free_pages 1234567\nnr_zone_inactive_anon 4711\noom_kill 0\nballoon_inflate 0\n",
        "/proc/sysvipc/shm": "       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid\n",
        "/proc/sys/kernel/osrelease": f"{release}\n",
        "/proc/sys/kernel/pid_max": "4194304\n",
        "/proc/sys/kernel/threads-max": f"{memory_gib * 8192}\n",
        "/proc/sys/kernel/shmmni": "4096\n",
        "/proc/sys/kernel/shmmax": "18446744073692774399\n",
        "/proc/sys/kernel/shmall": "18446744073692774399\n",
        "/proc/sys/kernel/numa_balancing": "0\n",
        "/proc/sys/kernel/yama/ptrace_scope": "1\n",
        "/proc/sys/vm/max_map_count": "65530\n",
        "/proc/sys/vm/overcommit_memory": "0\n",
        "/proc/sys/fs/file-nr": f"3520\t0\t{_NO_LIMIT}\n",
        "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        "/sys/devices/system/cpu/online": f"0-{cpus - 1}\n",
        "/sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
        "/sys/class/dmi/id/sys_vendor": f"{virtual or 'Supermicro'}\n",
        "/sys/class/dmi/id/product_name": f"{'Standard PC (Q35 + ICH9, 2009)' if virtual else 'SYS-821GE-TNHR'}\n",
        "/dev/null": "",
    }
    return Part(files=files) | nodes([(f"0-{cpus - 1}", memory_gib)])


def nodes(given: Sequence[tuple[str, int]]) -> Part:
    """NUMA nodes: the CPUs of each as the kernel lists them, and its GiB of memory."""
    files: dict[str, str | None] = {}
    for number, (cpus, gib) in enumerate(given):
        at, kib = f"/sys/devices/system/node/node{number}", gib * GIB // 1024
        told = {"MemTotal": kib, "MemFree": kib * 8 // 10, "MemUsed": kib - kib * 8 // 10}
        files[f"{at}/meminfo"] = "".join(f"Node {number} {name + ':':15} {value:8} kB\n" for name, value in told.items())
        files[f"{at}/cpulist"] = f"{cpus}\n"
        files[f"{at}/distance"] = " ".join("10" if other == number else "21" for other in range(len(given))) + "\n"
    files["/sys/devices/system/node/online"] = f"0-{len(given) - 1}\n" if len(given) > 1 else "0\n"
    return Part(files=files)


def looks(
    *,
    capabilities: str = ALL_CAPABILITIES,
    cpus: str = "0-127",
    memory_nodes: str = "0",
    seccomp: int = 0,
    open_files: int = 1048576,
    memlock: str = "unlimited",
    processes: str = "unlimited",
) -> Part:
    """The process that looks: its limits, what it may, where it may run."""
    given = {
        "cpu time": ("unlimited", "unlimited", "seconds"),
        "stack size": ("8388608", "unlimited", "bytes"),
        "core file size": ("0", "unlimited", "bytes"),
        "processes": (processes, processes, "processes"),
        "open files": (str(open_files), "1048576", "files"),
        "locked memory": (memlock, memlock, "bytes"),
        "address space": ("unlimited", "unlimited", "bytes"),
        "nice priority": ("0", "0", ""),
    }
    rows = "".join(f"{'Max ' + name:25} {soft:20} {hard:20} {unit:10}\n" for name, (soft, hard, unit) in given.items())
    status = (
        f"Name:\tpython3\nUmask:\t0022\nState:\tR (running)\nPid:\t4711\nUid:\t0\t0\t0\t0\nThreads:\t4\nCapEff:\t{capabilities}\nNoNewPrivs:\t0\n"
        f"Seccomp:\t{seccomp}\nCpus_allowed_list:\t{cpus}\nMems_allowed_list:\t{memory_nodes}\n"
    )
    return Part(files={"/proc/self/limits": f"{'Limit':25} {'Soft Limit':20} {'Hard Limit':20} {'Units':10}\n{rows}", "/proc/self/status": status})


def process(pid: int, name: str, *, threads: int = 1, uid: int = 0) -> Part:
    """A process of the machine; a name holds 15 characters."""
    ids = "\t".join([str(uid)] * 4)
    return Part(
        files={
            f"/proc/{pid}/comm": f"{name[:15]}\n",
            f"/proc/{pid}/cmdline": f"{name}\0",
            f"/proc/{pid}/status": f"Name:\t{name[:15]}\nUid:\t{ids}\nThreads:\t{threads}\n",
            f"/proc/{pid}/maps": "",
            f"/proc/{pid}/fd": None,
        }
    )


def namespaces(**own: int) -> Part:
    return Part(files={f"/proc/self/ns/{name}": f"-> {name}:[{number}]" for name, number in (FIRST_NAMESPACES | own).items()})


def group(
    directory: str,
    *,
    memory: int | None = None,
    used: int = GIB,
    cache: int = 0,
    oom_kills: int = 0,
    pids: int | None = None,
    tasks: int = 30,
    cpus: float | None = None,
) -> Part:
    """A control group, version 2: what it grants (None: no limit) and what is taken."""
    at = f"/sys/fs/cgroup{directory}".rstrip("/")
    return Part(
        files={
            f"{at}/memory.max": f"{'max' if memory is None else memory}\n",
            f"{at}/memory.current": f"{used}\n",
            f"{at}/memory.stat": f"anon {used - cache}\nfile {cache}\nshmem 0\ninactive_file {cache}\nactive_file 0\n",
            f"{at}/memory.events": f"low 0\nhigh 0\nmax {17 * oom_kills}\noom {oom_kills}\noom_kill {oom_kills}\noom_group_kill 0\n",
            f"{at}/pids.max": f"{'max' if pids is None else pids}\n",
            f"{at}/pids.current": f"{tasks}\n",
            f"{at}/cpu.max": f"{'max' if cpus is None else int(cpus * 100000)} 100000\n",
        }
    )


def group_v1(directory: str, *, memory: int = 0x7FFFFFFFFFFFF000, used: int = GIB, oom_kills: int = 0, cpus: float = -1, pids: str = "max") -> Part:
    """The same of version 1, where each controller has a hierarchy of its own."""
    at = {name: f"/sys/fs/cgroup/{name}{directory}".rstrip("/") for name in ("memory", "cpu,cpuacct", "pids")}
    return Part(
        files={
            f"{at['memory']}/memory.limit_in_bytes": f"{memory}\n",
            f"{at['memory']}/memory.usage_in_bytes": f"{used}\n",
            f"{at['memory']}/memory.stat": f"cache 0\nrss {used}\ninactive_file 0\nactive_file 0\ntotal_inactive_file 0\ntotal_active_file 0\n",
            f"{at['memory']}/memory.oom_control": f"oom_kill_disable 0\nunder_oom 0\noom_kill {oom_kills}\n",
            f"{at['cpu,cpuacct']}/cpu.cfs_quota_us": f"{int(cpus * 100000) if cpus > 0 else -1}\n",
            f"{at['cpu,cpuacct']}/cpu.cfs_period_us": "100000\n",
            f"{at['pids']}/pids.max": f"{pids}\n",
            f"{at['pids']}/pids.current": "30\n",
        }
    )


def clock(*, kept: bool = True) -> Part:
    status = _STA_PLL | _STA_NANO if kept else _STA_UNSYNC | _STA_NANO
    return Part(clock={"status": status, "max_error_s": 0.021 if kept else 16.0})


def storage(shm: Part, *, root_gib: int = 1800, kind: str = "ext4", device: str = "/dev/sda2") -> Part:
    """File systems, with what stands at /dev/shm."""
    disk = space(root_gib * GIB, root_gib * GIB // 2)
    mounts = (
        "sysfs /sys sysfs rw,nosuid,nodev,noexec,relatime 0 0\n"
        "proc /proc proc rw,nosuid,nodev,noexec,relatime 0 0\n"
        "udev /dev devtmpfs rw,nosuid,relatime,size=528280977k,nr_inodes=132070244,mode=755,inode64 0 0\n"
        f"{device} / {kind} rw,relatime 0 0\n"
    )
    return Part(
        files={**shm.files, "/proc/mounts": f"{mounts}{shm.files['/proc/mounts']}", "/tmp": None, "/root": None},
        spaces={**shm.spaces, "/": disk, "/tmp": disk, "/root": disk},
    )


def shm(size_bytes: int, *, used_bytes: int = 0, source: str = "tmpfs", options: str = "rw,nosuid,nodev,inode64") -> Part:
    """/dev/shm as `storage` mounts it; without size= in its options it is half of the memory."""
    return Part(
        files={"/proc/mounts": f"{source} /dev/shm tmpfs {options} 0 0\n", "/dev/shm": None},
        spaces={"/dev/shm": space(size_bytes, size_bytes - used_bytes)},
    )


def python() -> Part:
    """The system's, without torch."""
    return Part(
        files={"/usr/bin/python3": "-> python3.11", "/usr/lib/python3.11/os.py": ""},
        programs={"/usr/bin/python3.11": "\x7fELF"},
        environ={"PATH": "/usr/bin:/bin", "HOME": "/root", "PWD": "/root"},
    )


def kernel_log(*lines: str) -> Part:
    """As /dev/kmsg gives it: facility and level, number, microseconds since boot. The lines were written a minute ago."""
    told = ("Linux version 5.15.0-91-generic", "systemd[1]: Detected architecture x86-64.")
    early = "".join(f"6,{n},{n * 1000},-;{line}\n" for n, line in enumerate(told))
    return Part(files={"/dev/kmsg": early + "".join(f"4,{900 + n},{(864000 - 60) * 10**6 + n},-;{line}\n" for n, line in enumerate(lines))})


def no_firewall() -> Part:
    """The kernel has packet filters, and nobody has put rules into them."""
    return Part(
        files={"/proc/net/netfilter/nf_log": ""},
        commands={
            ("nft", "-j", "list", "ruleset"): ran('{"nftables": [{"metainfo": {"json_schema_version": 1}}]}'),
            ("iptables-save",): ran(),
            ("ip6tables-save",): ran(),
        },
    )
