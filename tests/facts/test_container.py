from tests.tables import for_each

from unhang.facts import container
from unhang.facts.host import Host

FIRST = {
    f"/proc/self/ns/{name}": f"-> {name}:[{number}]"
    for name, number in (("pid", 4026531836), ("ipc", 4026531839), ("user", 4026531837), ("uts", 4026531838))
}
STATUS = {"/proc/self/status": "Name:\tx\nCapEff:\t00000000a80425fb\nNoNewPrivs:\t0\nSeccomp:\t2\n"}
PLAIN = FIRST | STATUS


@for_each(
    ("files", "environ", "kind"),
    [
        ({}, {}, "bare"),
        ({"/.dockerenv": ""}, {}, "docker"),
        ({"/proc/self/cgroup": "12:memory:/docker/8f3a\n"}, {}, "docker"),
        ({"/proc/self/cgroup": "0::/system.slice/docker-8f3a.scope\n"}, {}, "docker"),
        ({"/.dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, "kubernetes"),
        ({"/proc/self/cgroup": "0::/kubepods.slice/kubepods-burstable.slice/cri-containerd-5.scope\n"}, {}, "kubernetes"),
        ({"/run/.containerenv": ""}, {}, "podman"),
        ({"/.singularity.d": None}, {"SLURM_JOB_ID": "7"}, "apptainer"),
        ({"/run/systemd/container": "lxc\n"}, {}, "lxc"),
        ({"/run/systemd/container": "systemd-nspawn\n"}, {}, "container"),
        ({"/proc/sys/kernel/osrelease": "5.15.153.1-microsoft-standard-WSL2\n"}, {}, "wsl"),
        ({}, {"SLURM_JOB_ID": "7"}, "slurm"),
        ({"/proc/self/cgroup": "0::/system.slice/train.service\n"}, {"INVOCATION_ID": "x"}, "systemd"),
        # A terminal of a desktop session has an INVOCATION_ID too.
        ({"/proc/self/cgroup": "0::/user.slice/user-1000.slice/session-2.scope\n"}, {"INVOCATION_ID": "x"}, "bare"),
    ],
)
def test_what_it_is(machine, files, environ, kind):
    assert container.collect(machine(PLAIN | files, environ=environ)).kind == kind


def test_rights(machine):
    seen = container.collect(machine(PLAIN))
    # Docker's default set.
    assert seen.capabilities == ("DAC_OVERRIDE", "NET_RAW")
    assert (seen.seccomp, seen.no_new_privileges) == (True, False)


def test_what_was_not_seen_is_named(machine):
    seen = container.collect(machine())
    assert (seen.capabilities, seen.unread) == (None, ("capabilities",))
    assert container.collect(machine({"/proc/self/status": "CapEff:\tzz\n"})).capabilities is None


def test_devices_and_what_the_bus_has(machine):
    files = {
        "/dev/nvidiactl": "",
        "/dev/nvidia0": "",
        "/dev/infiniband/uverbs0": "",
        "/dev/null": "",
        "/sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n",
        "/sys/bus/pci/devices/0000:01:00.0/class": "0x030200\n",
        # Its sound, and a bridge of NVSwitch.
        "/sys/bus/pci/devices/0000:01:00.1/vendor": "0x10de\n",
        "/sys/bus/pci/devices/0000:01:00.1/class": "0x040300\n",
        "/sys/bus/pci/devices/0000:02:00.0/vendor": "0x10de\n",
        "/sys/bus/pci/devices/0000:02:00.0/class": "0x068000\n",
        "/sys/class/infiniband/mlx5_0": None,
    }
    seen = container.collect(machine(PLAIN | files))
    assert {d.path for d in seen.devices} == {"/dev/nvidiactl", "/dev/nvidia0", "/dev/infiniband/uverbs0"}
    assert (seen.nvidia_gpus_on_bus, seen.infiniband_on_bus) == (1, 1)


def test_on_this_machine():
    seen = container.collect(Host())
    assert seen.unread == ()
    assert seen.kernel
