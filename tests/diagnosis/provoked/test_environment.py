"""Environments, libraries, options and limits that do not fit."""

from __future__ import annotations

import importlib.util
import shutil
import sysconfig
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

EXTENSION = """\
#define PY_SSIZE_T_CLEAN
#include <Python.h>
%s
static PyObject *version(PyObject *self, PyObject *none) { return PyLong_FromLong(%s); }
static PyMethodDef methods[] = {{"version", version, METH_NOARGS, ""}, {NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "fused_adam", "", -1, methods};
PyMODINIT_FUNC PyInit_fused_adam(void) { return PyModule_Create(&module); }
"""


@pytest.fixture
def compiled(provoke):
    """Compiles the extension fused_adam; `calls` is a function of the library libkernels.so."""
    if shutil.which("cc") is None or not Path(sysconfig.get_path("include"), "Python.h").is_file():
        pytest.skip("no C compiler, or no headers of Python")

    def compile(*, calls: str = "", linked: bool = True) -> Path:
        folder = provoke.tmp_path / "extension"
        folder.mkdir()
        (folder / "kernels.c").write_text(f"long {calls or 'kernels_version'}(void) {{ return 3; }}\n")
        (folder / "fused_adam.c").write_text(EXTENSION % ((f"long {calls}(void);", f"{calls}()") if calls else ("", "3")))
        built = provoke("cc", "-shared", "-fPIC", "-o", folder / "libkernels.so", folder / "kernels.c")
        libraries = (f"-L{folder}", "-lkernels", "-Wl,--no-as-needed") if linked and calls else ()
        target = folder / "fused_adam.so"
        built = provoke("cc", "-shared", "-fPIC", f"-I{sysconfig.get_path('include')}", "-o", target, folder / "fused_adam.c", *libraries)
        assert built.exitcode == 0, built.text
        return folder

    return compile


def test_an_extension_whose_library_is_gone(provoke, compiled):
    folder = compiled(calls="kernels_version")
    ran = provoke(provoke.python, provoke.scripts / "import_extension.py", folder)
    primary = provoke.primary(ran.log)
    assert primary["cause"] == "library-link" and "libkernels.so" in primary["says"]


def test_an_extension_built_against_another_release(provoke, compiled):
    folder = compiled(calls="ncclCommRegister", linked=False)
    ran = provoke.torchrun("import_extension.py", folder, options=("--nproc-per-node=1",))
    primary = provoke.primary(ran.log)
    assert primary["cause"] == "library-link" and "ncclCommRegister" in primary["says"]


def test_an_extension_that_fits(provoke, compiled):
    folder = compiled(calls="kernels_version")
    ran = provoke(provoke.python, provoke.scripts / "import_extension.py", folder, env={"LD_LIBRARY_PATH": str(folder)})
    assert "fused_adam 3" in ran.text
    assert provoke.verdict(ran.log)["primary"] is None


@pytest.fixture
def bare(provoke) -> Path:
    """A virtual environment without torch."""
    venv.create(provoke.tmp_path / "other", symlinks=True, with_pip=False)
    return provoke.tmp_path / "other"


def with_torch(environment: Path) -> Path:
    """Give it the packages of this one, and a torchrun as pip writes it."""
    (next(environment.glob("lib/python3*")) / "site-packages" / "all.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    program = environment / "bin" / "torchrun"
    program.write_text(f"#!{environment}/bin/python3\nimport sys\nfrom torch.distributed.run import main\nsys.exit(main())\n")
    program.chmod(0o755)
    return program


def test_the_python_of_another_environment(provoke, bare):
    ran = provoke("python", "-m", "torch.distributed.run", "train.py", env={"PATH": f"{bare}/bin:/usr/bin:/bin"})
    assert provoke.primary(ran.log)["cause"] == "launcher-wrong-env"


def test_a_torchrun_that_is_not_on_the_path(provoke, bare):
    ran = provoke("bash", "-c", "torchrun --nproc-per-node=2 train.py", env={"PATH": f"{bare}/bin:/usr/bin:/bin"})
    assert ran.exitcode == 127
    primary = provoke.primary(ran.log)
    assert primary["cause"] == "launcher-wrong-env" and "torchrun" in primary["says"]


@pytest.mark.integration
def test_a_torchrun_whose_environment_lacks_torch(provoke, bare):
    program = with_torch(bare)
    next(bare.glob("lib/python3*/site-packages/all.pth")).unlink()
    ran = provoke(program, "--nproc-per-node=2", "train.py")
    assert provoke.primary(ran.log)["cause"] == "launcher-wrong-env"


def test_a_moved_environment(provoke, bare):
    program = with_torch(bare)
    moved = provoke.tmp_path / "elsewhere"
    bare.rename(moved)
    ran = provoke("bash", "-c", f"{moved}/bin/{program.name} --nproc-per-node=1 train.py")
    assert ran.exitcode in (126, 127)
    primary = provoke.primary(ran.log)
    assert primary["cause"] == "env-relocation" and "elsewhere/bin/torchrun" in primary["says"] + primary["evidence"][0]["text"]


@pytest.mark.integration
def test_an_environment_in_its_place(provoke, bare):
    ran = provoke(with_torch(bare), "--nproc-per-node=1", provoke.scripts / "parse_arguments.py")
    assert ran.exitcode == 0, ran.text
    assert provoke.verdict(ran.log)["primary"] is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--nproc-per-nodes=2",), "nproc-per-nodes"),
        (("--nproc-per-node=all",), "all"),
        (("--nproc-per-node=2", "--rdzv-backend=c10d2"), "c10d2"),
    ],
    ids=["unknown", "value", "backend"],
)
def test_an_option_of_torchrun_that_is_wrong(provoke, options, words):
    ran = provoke.torchrun("connect.py", options=options)
    primary = provoke.primary(ran.log)
    assert primary["cause"] == "config-error" and words in primary["says"] + primary["evidence"][0]["text"]


def test_a_script_that_does_not_know_local_rank_with_a_hyphen(provoke, port):
    ran = provoke(
        provoke.python, "-m", "torch.distributed.launch", "--nproc-per-node=2", f"--master-port={port}", provoke.scripts / "parse_arguments.py"
    )
    primary = provoke.primary(ran.log)
    assert primary["cause"] == "config-error" and "local-rank" in primary["says"] + primary["evidence"][0]["text"]


@pytest.mark.integration
def test_a_key_that_accelerate_does_not_know(provoke):
    if importlib.util.find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed")
    config = provoke.tmp_path / "config.yaml"
    config.write_text("compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nnum_processes: 2\nnum_process: 2\n")
    ran = provoke(provoke.python, "-m", "accelerate.commands.launch", "--config_file", config, provoke.scripts / "parse_arguments.py", timeout_s=100)
    primary = provoke.primary(ran.log)
    assert primary["cause"] == "config-error" and "num_process" in primary["says"] + primary["evidence"][0]["text"]


@pytest.mark.integration
def test_accelerate_starts_one_process_for_the_cpu(provoke, port):
    """Without mpirun `accelerate launch --cpu` sets no RANK, whatever --num_processes says."""
    if importlib.util.find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed")
    launch = ("-m", "accelerate.commands.launch", "--cpu", "--num_processes=2", f"--main_process_port={port}")
    ran = provoke(provoke.python, *launch, provoke.scripts / "train.py", timeout_s=100)
    primary = provoke.primary(ran.log)
    assert primary["cause"] == "rendezvous-misconfig" and "RANK" in primary["says"]


@pytest.mark.integration
def test_an_exception_under_accelerate(provoke, port):
    if importlib.util.find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed")
    launch = (
        "-m",
        "accelerate.commands.launch",
        "--multi_gpu",
        "--num_processes=2",
        "--num_machines=1",
        "--mixed_precision=no",
        "--dynamo_backend=no",
    )
    ran = provoke(provoke.python, *launch, f"--main_process_port={port}", provoke.scripts / "train.py", "--fault", "exception", timeout_s=100)
    primary = provoke.primary(ran.log)
    assert (primary["cause"], primary["ranks"]) == ("rank-exception", [1])


def test_a_group_that_has_no_backend_for_the_cpu(provoke):
    ran = provoke.torchrun("reduce_on.py", "--backend", "cuda:gloo")
    primary = provoke.primary(ran.log)
    assert (primary["cause"], primary["standing"]) == ("wrong-backend-for-tensor", "established")
    assert "reduce_on.py:" in primary["where"]


@pytest.mark.integration
def test_a_group_with_a_backend_for_the_cpu(provoke):
    ran = provoke.torchrun("reduce_on.py")
    assert ran.exitcode == 0, ran.text
    assert provoke.verdict(ran.log)["primary"] is None


def test_too_few_open_files(provoke):
    limited = ("bash", "-c", 'ulimit -n 64; exec "$@"', "bash")
    ran = provoke(provoke.python, provoke.scripts / "load_data.py", "--samples", "200", "--size-bytes", "100", "--keep", wrap=limited)
    assert ran.exitcode != 0
    assert provoke.primary(ran.log)["cause"] == "limits"


def test_too_few_processes(provoke, mounts):
    """The limit binds no root: nobody runs it, with leave to read what root may read."""
    nobody = "setpriv --reuid=65534 --clear-groups --inh-caps=+dac_read_search,+dac_override --ambient-caps=+dac_read_search,+dac_override"
    limited = mounts("mount -t tmpfs -o mode=1777 tmpfs /dev/shm", ends_as=f'exec {nobody} prlimit --nproc=2 "$@"')
    ran = provoke(provoke.python, provoke.scripts / "load_data.py", wrap=limited)
    assert ran.exitcode == 1
    assert provoke.primary(ran.log)["cause"] == "limits"


@pytest.mark.integration
def test_many_open_files_where_they_are_allowed(provoke):
    ran = provoke(provoke.python, provoke.scripts / "load_data.py", "--samples", "200", "--size-bytes", "100", "--keep")
    assert ran.exitcode == 0, ran.text
    assert provoke.verdict(ran.log)["primary"] is None


def test_a_folder_of_the_image_that_is_read_only(provoke, mounts):
    folder = provoke.tmp_path / "cache"
    folder.mkdir()
    read_only = f"mount --bind {folder} {folder}; mount -o remount,ro,bind {folder}"
    ran = provoke.torchrun("save_checkpoint.py", "--folder", folder / "run", options=("--nproc-per-node=1",), wrap=mounts(read_only))
    primary = provoke.primary(ran.log)
    assert primary["cause"] == "container-capability" and str(folder) in primary["says"]


@pytest.mark.integration
def test_a_variable_that_nothing_reads(provoke):
    """The shell shows what was set, and the collective is given up after the timeout of its group all the same."""
    script = provoke.tmp_path / "launch.sh"
    script.write_text(f'set -x\nexport NCCL_TIMEOUT=3600\nexec {provoke.python} -m torch.distributed.run --standalone --nproc-per-node=3 "$@"\n')
    ran = provoke("bash", script, provoke.scripts / "evaluate.py", "--fault", "guarded", "--timeout-s", "3", env={"OMP_NUM_THREADS": "1"})
    verdict = provoke.verdict(ran.log)
    found = [verdict["primary"], *verdict["contributing"]]
    assert "ineffective-setting" in [f["cause"] for f in found]
    assert "NCCL_TIMEOUT=3600" in next(f["says"] for f in found if f["cause"] == "ineffective-setting")
