"""Every cause keeps what a cause promises: its lines hit, near misses do not, it is explained twice, sourced, and documented."""

from __future__ import annotations

import ast
import importlib.util
import operator
import pkgutil
import re
import string
import subprocess
import sys
from pathlib import Path

import pytest
from tests.chinese import zh
from tests.tables import for_each

from unhang import data
from unhang.diagnosis.assemble import CONTEXT
from unhang.i18n import msg
from unhang.knowledge import catalogue
from unhang.knowledge import causes as room
from unhang.knowledge.cause import LogView
from unhang.knowledge.environments import ENVIRONMENTS
from unhang.knowledge.judge import HostView
from unhang.logs import clean, match
from unhang.logs.signature import compiled, unanchored
from unhang.records.incident_view import IncidentView

ROOT = Path(__file__).resolve().parents[2]
CAUSES = catalogue.load()
SIGNATURES = catalogue.signatures()
# Verdicts, file names and documentation rest on these ids: none is ever taken away.
VOCABULARY = {
    "arch-not-in-build", "backend-unavailable", "clock-skew", "collective-mismatch", "config-error", "container-capability", "cumem-host-numa",
    "dataloader-deadlock",
    "device-mapping", "disk-full", "dns-resolution", "driver-reboot-needed", "driver-too-old", "duplicate-gpu", "env-relocation",
    "extension-build-lock",
    "filesystem-shared", "foreign-traffic", "framework-bug", "gdr-peer-memory", "gloo-connect", "gpu-busy-exclusive", "gpu-hardware",
    "gpu-newer-than-nccl", "gpu-oom", "host-lost", "host-oom-or-killed", "ib-config", "ib-port-down", "ib-transport-retry", "illegal-memory-access",
    "ineffective-setting", "interface-selection", "launcher-wrong-env", "library-link", "limits", "mig-slices", "nccl-bug", "network-blocked",
    "network-mtu", "nic-hardware", "nvlink-nvswitch-fabric", "p2p-broken", "port-in-use", "premature-exit", "process-stuck", "rank-exception",
    "rank0-guarded-collective", "rendezvous-misconfig", "shm-exhausted", "shm-permission", "shm-register-failed", "shm-stale-or-missing",
    "ssh-launcher", "straggler-timeout", "topology-file", "version-mismatch", "wrong-backend-for-tensor", "wsl-limits", "collective-timeout",
    "launcher-teardown", "peer-lost", "store-disconnect", "unhandled-generic", "out-of-sync", "evaluation-out-of-step", "guarded-call-timeout",
    "ended-by-scheduler", "terminal-closed", "loader-worker-died", "unused-parameters",
    "crash-at-exit",
}  # fmt: skip
CHINESE = re.compile(r"[一-鿿]")
ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
BY_ID = [pytest.param(c, id=c.id) for c in CAUSES.values()]


def recognised(text: str) -> dict[str, set[str]]:
    """Cause id to roles, for lines as they would be read from a log."""
    lines = [clean(line)[0] for line in text.splitlines()]
    found: dict[str, set[str]] = {}
    for line in lines:
        for hit in match(line, SIGNATURES, source="test", around="\n".join(lines)):
            found.setdefault(SIGNATURES[hit.signature], set()).add(hit.signature.role)
    return found


def test_the_catalogue_is_whole():
    assert set(CAUSES) >= VOCABULARY
    files = Path(room.__path__[0])
    assert {p.stem for p in files.glob("*.toml")} == set(CAUSES) >= {p.stem.replace("_", "-") for p in files.glob("[a-z]*.py")}
    assert list(CAUSES) == list(catalogue.load())


@for_each("cause", BY_ID)
def test_what_its_lines_say_is_told_in_chinese_too(cause):
    # What is only quoted is the same in both.
    told = [s for s in cause.signatures if re.sub(r"\{\w+\}", "", s.says)]
    values = lambda template: {name for _, name, _, _ in string.Formatter().parse(template) if name}  # noqa: E731
    assert [s.says for s in told if not CHINESE.search(zh(msg(s.says))) or values(s.says) != values(zh(msg(s.says)))] == []


def test_each_judge_of_a_module_has_what_it_needs_in_the_data():
    judges = ("in_run", "in_logs", "on_host")
    made = {m.name.replace("_", "-"): importlib.import_module(f"{room.__name__}.{m.name}") for m in pkgutil.iter_modules(room.__path__)}
    assert {id: [j for j in judges if getattr(c, j)] for id, c in CAUSES.items() if id in made or c.in_run or c.in_logs or c.on_host} == {
        id: [j for j in judges if hasattr(module, j)] for id, module in made.items()
    }
    own = {id: module.CAUSE for id, module in made.items() if hasattr(module, "CAUSE")}
    assert all(c.id == id and c.signatures == CAUSES[id].signatures for id, c in own.items())


def test_what_judges_may_need_exists():
    assert all(name in HostView.__annotations__ for name in data._EVIDENCE["judge.host"].split())
    assert all(operator.attrgetter(name)(LogView()) is not None for name in data._EVIDENCE["judge.logs"].split())
    assert all(name in IncidentView.__annotations__ for name in data._EVIDENCE["judge.run"].split())


@for_each("cause", BY_ID)
def test_it_is_told_completely(cause):
    assert ID.fullmatch(cause.id) and cause.role in ("root", "symptom")
    assert cause.title and cause.what and cause.why and not cause.title.endswith(".")
    assert set(cause.explain) == {"en", "zh"}
    assert re.search(r"[一-鿿]", cause.explain["zh"]) and re.search(r"[一-鿿]", zh(cause.title))
    assert not re.search(r"[一-鿿]", cause.explain["en"] + cause.title + cause.what + cause.why)
    assert cause.sources and all(s.startswith("https://") for s in cause.sources)
    if cause.role == "root":
        assert cause.remedies
    ids = [r.id for r in cause.remedies]
    assert len(ids) == len(set(ids)) and all(ID.fullmatch(i) for i in ids) and all(r.says for r in cause.remedies)
    assert cause.signatures or cause.in_run, "nothing would ever find it"


@for_each("cause", BY_ID)
def test_remedies_can_be_followed_and_verified(cause):
    for remedy in cause.remedies:
        assert re.search(r"[一-鿿]", zh(remedy.says)), f"{remedy.id} is not told in Chinese"
        if remedy.env:
            assert remedy.verify, f"{remedy.id}: nothing shows that the setting took effect"
    if cause.role == "root":
        assert any(r.command or r.env or r.verify for r in cause.remedies), "nothing to run"
    assert set(cause.instead) <= {p.id for p in ENVIRONMENTS}


# What starts ranks, or reads such variables itself; torchrun gives its ranks these, whatever stood in front of it.
READS = re.compile(
    r"(?:env )?(?:\S*/)?(?:torchrun|python|mpirun|srun|bash|enroot|pdsh|hf|ucx_info|all_reduce_perf|COMMAND|IMAGE|unhang|accelerate)\b"
)
BY_TORCHRUN = {"MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE"}
SET_BEFORE = re.compile(
    r"(?<![\w$.{'-])(?<!-[ex] )(?P<names>(?:[A-Z][A-Z0-9_]{2,}=(?:'[^']*'|[^\s;&|$()'\"]+) +)+)(?P<program>(?![A-Z][A-Z0-9_]*=)[^\s;#]+)"
)


def remedies():
    """Every remedy of the package that is written down, as (place, settings, command, check)."""
    for cause in CAUSES.values():
        for remedy in cause.remedies:
            yield f"{cause.id}.toml", remedy.env, remedy.command or "", remedy.verify or ""
    for path in sorted((ROOT / "src" / "unhang").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Remedy":
                given = {k.arg: ast.literal_eval(k.value) for k in node.keywords if isinstance(k.value, ast.Constant | ast.Dict | ast.BinOp)}
                yield f"{path.name}:{node.lineno}", given.get("env") or {}, given.get("command") or "", given.get("verify") or ""
    for known in (*data.table("diagnosis/remedies").values(), *data.table("knowledge/exceptions")["exceptions"]):
        yield known["says"], known.get("env", {}), known.get("command", ""), ""


def test_a_variable_stands_before_a_command_that_reads_it():
    found = list(remedies())
    assert len(found) > 300
    for place, env, command, verify in found:
        shown = " ".join([*(f"{name}={value}" for name, value in env.items()), command]) if env and command else command
        for text in (shown, verify):
            for set_before in SET_BEFORE.finditer(text):
                program = set_before["program"]
                assert READS.match(program), f"{place}: {set_before[0]}"
                names = set(re.findall(r"(\w+)=", set_before["names"]))
                assert program != "torchrun" or not names & BY_TORCHRUN, f"{place}: torchrun sets {names & BY_TORCHRUN} itself"


@for_each("cause", BY_ID)
def test_no_prefix_hides_its_lines(cause):
    """What is held against a line as it stands lets all lines pass that match without their prefixes."""
    for prefix in ("[default3]:", "3: ", "[1,3]<stderr>:", "[pod/worker-0/pytorch] ", "(Worker pid=7, ip=10.0.0.1) "):
        for raw in (prefix + line for text in cause.hits for line in text.splitlines()):
            line = clean(raw)[0]
            for s in cause.signatures:
                hit = s.needle in line and s.pattern and compiled(s.pattern).search(line)
                assert not hit or unanchored(s.pattern).search(raw), (s.pattern, raw)


@for_each("cause", BY_ID)
def test_its_lines_hit_and_its_near_misses_do_not(cause):
    assert bool(cause.hits) == bool(cause.near_misses) == bool(cause.signatures)
    for line in cause.hits:
        assert cause.id in recognised(line), line
    for line in cause.near_misses:
        assert cause.id not in recognised(line), line


def hits_with(signature, text) -> bool:
    lines = [clean(line)[0] for line in text.splitlines()]
    return any(match(line, [signature], source="test", around="\n".join(lines)) for line in lines)


@for_each("cause", BY_ID)
def test_every_signature_has_a_line_and_its_own_role(cause):
    for signature in cause.signatures:
        assert signature.role == cause.role
        assert any(cause.id in recognised(hit) and hits_with(signature, hit) for hit in cause.hits), signature
        assert SIGNATURES[signature] == cause.id, "another cause has the same signature"
        # A short one is a whole line.
        assert len(signature.needle) >= 8 or signature.pattern == f"^{signature.needle}$"


# What every log is full of, as the search meets it.
ORDINARY = (
    "node7:4711:4790 [0] NCCL INFO Channel 00/24 :    0   1   2   3",
    "node7:4711:4790 [0] NCCL INFO Connected all rings",
    "node7:4711:4790 [0] NCCL INFO comm 0x55aa rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 1000 commId 0x77aa - Init COMPLETE",
    "[2026-11-03 10:00:01,123] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[1e-05], mom=[[0.9, 0.999]]",
    "2026-11-03 10:00:01,123 - INFO - train.py:88 - step 120 loss 2.3051 grad_norm 1.2 lr 1.0e-05 tokens/s 18233.1",
    "[rank3]: {'loss': 1.2345, 'grad_norm': 0.5, 'learning_rate': 2e-05, 'epoch': 0.3}",
    " 43%|####3     | 430/1000 [10:02<13:11,  1.39s/it, loss=2.31]",
    "(RayWorkerWrapper pid=812) INFO 11-03 10:00:01 [worker.py:120] the current step took 0.31 s",
    "/opt/venv/lib/python3.11/site-packages/torch/utils/checkpoint.py:429: UserWarning: torch.utils.checkpoint: please pass in use_reentrant",
    'File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1553, in _wrapped_call_impl',
)


@for_each("cause", BY_ID)
def test_needles_do_not_stand_in_ordinary_lines(cause):
    """Each of them would be looked at, one by one, in every log."""
    for signature in cause.signatures:
        assert not [line for line in ORDINARY if signature.needle in line], signature.needle


@for_each("cause", BY_ID)
def test_no_other_root_fires_on_its_lines(cause):
    for line in cause.hits:
        others = {c for c, roles in recognised(line).items() if "root" in roles and c != cause.id}
        assert others <= {*cause.mistaken_for, *cause.leads_to}, (line, others)
    for line in (*cause.hits, *cause.near_misses):
        for other in recognised(line).keys() - {cause.id}:
            assert other in CAUSES


@for_each("cause", BY_ID)
def test_victims_are_never_roots(cause):
    if cause.role == "symptom":
        for line in cause.hits:
            assert "root" not in set().union(*recognised(line).values()), line


@for_each("cause", BY_ID)
def test_patterns_take_no_time_on_hostile_lines(cause):
    for signature in cause.signatures:
        for filler in ("a", " ", "[", "(", "0", "Rank 1 ", "pid: "):
            match(signature.needle + filler * 20_000, [signature], source="test")


SECTIONS = [
    "role",
    "title",
    "what",
    "why",
    "leads-to",
    "sources",
    "judge",
    "explain",
    "patterns",
    "signature",
    "remedy",
    "finding",
    "note",
    "instead",
    "mistaken-for",
    "tests",
]
FIELDS = ["name", "needle", "pattern", "near", "unless", "over", "then", "lines", "standing", "says", "remedies", "keep", "newest"]


def test_the_file_reads_in_order():
    for path in Path(room.__path__[0]).glob("*.toml"):
        raw = data.Source(path).raw
        assert list(raw) == [section for section in SECTIONS if section in raw], path.name
        for signature in raw.get("signature", []):
            assert list(signature) == [field for field in FIELDS if field in signature], (path.name, signature["needle"])


def test_the_documentation_is_generated():
    ran = subprocess.run([sys.executable, str(ROOT / "scripts" / "generate_docs.py"), "--check"], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr


def test_the_documentation_notices_a_change(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "scripts" / "generate_docs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    assert module.main(["--check"]) == 1
    assert module.main([]) == 0 and module.main(["--check"]) == 0
    index = tmp_path / "docs" / "causes" / "index.md"
    assert index.read_text("utf-8").count("\n| ") == len(CAUSES) + 1
    index.write_text("x")
    assert module.main(["--check"]) == 1

    pages = tmp_path / "pages"
    assert module.main(["--pages", str(pages)]) == 0 and {p.stem for p in pages.iterdir()} == set(CAUSES)
    for cause in CAUSES.values():
        page = (pages / f"{cause.id}.md").read_text("utf-8")
        assert cause.explain["en"] in page and cause.explain["zh"] in page and all(line.strip() in page for line in cause.hits)


LINE_BYTES = 16 * 1024
# Runs of what patterns repeat: words, numbers, paths, addresses, lists.
RUNS = ("a", "1", " ", "/", "_", "a.", "1.", "a:", "a ", ",a", "=a", "(", "[", "'", "-")
GENEROUS_S = 0.6


@for_each("group", [*CAUSES, "context"])
def test_no_pattern_takes_more_time_than_a_long_line_is_worth(group, cpu_seconds):
    signatures = CONTEXT if group == "context" else CAUSES[group].signatures
    for signature in signatures:
        patterns = [p for p in (signature.pattern, signature.near, signature.unless, signature.over) if p]
        for run in RUNS:
            needle, times = signature.needle, LINE_BYTES // len(run)
            lines = (needle + run * times, run * times + needle, (needle + run) * (LINE_BYTES // len(needle + run)))
            # All lines of a run together: one of them would take as long as a thousand others.
            cpu_seconds(GENEROUS_S)
            try:
                for pattern in patterns:
                    for line in lines:
                        compiled(pattern).search(line)
            except pytest.fail.Exception:
                pytest.fail(f"{signature.needle!r} beside a run of {run!r}: {patterns}")
