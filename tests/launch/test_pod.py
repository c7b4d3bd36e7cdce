"""`unhang run --pod`: its exit codes, what the rules of exported manifests make of them, and the termination message."""

from __future__ import annotations

import re

import pytest
import yaml
from tests.launch.test_supervise import PLAIN, UNKNOWN, failed
from tests.tables import for_each

from unhang.cli.running import write_verdict_for_pod
from unhang.launch.supervise import Outcome, Policy, code_for_pod
from unhang.model import Finding, Remedy, Verdict
from unhang.remedies.exports.form_settings import Layout
from unhang.remedies.exports.launch_command import export

pytestmark = pytest.mark.torch
GLOO = 'dist.init_process_group("gloo")\n'
ECC = "CUDA error: uncorrectable ECC error encountered"
RUNS = {
    "finished": ("train(1)", (), 0),
    # It may be chance, the first time.
    "once": ("raise ValueError('odd')", ("--max-restarts", "0"), 1),
    "import": ("import no_such_module", (), 93),
    "ecc": (f"raise RuntimeError({ECC!r}) if rank else train(99)", (), 94),
}


def action(rules, code):
    """What a podFailurePolicy does about an exit code: its first rule that fits, else it counts."""
    for rule in rules:
        fits = code in rule["onExitCodes"]["values"]
        if fits == (rule["onExitCodes"]["operator"] == "In"):
            return rule["action"]
    return "Count"


def by_job(manifests, code):
    """Whether a Job starts another pod, and whether it counts the one that has ended."""
    spec = manifests["Job"]["spec"]
    did = action(spec["podFailurePolicy"]["rules"], code)
    if did == "Count":
        return f"counted, {spec['backoffLimit']} more"
    return {"FailJob": "failed", "Ignore": "another pod"}[did]


def by_jobset(manifests, code):
    """What a JobSet does after a pod of its Job has failed, which fails that Job: the first rule that its reason and message fit."""
    jobset = manifests["TrainingRuntime"]["spec"]["template"]["spec"]
    job = jobset["replicatedJobs"][0]["template"]["spec"]
    assert job["template"]["spec"]["restartPolicy"] == "Never" and job["backoffLimit"] == 0
    reason, message = "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    if action(job["podFailurePolicy"]["rules"], code) == "FailJob":
        # Of kubernetes/pkg/controller/job/pod_failure_policy.go.
        reason, message = (
            "PodFailurePolicy",
            f"Container node for pod default/training-0 failed with exit code {code} matching FailJob rule at index 0",
        )
    for rule in jobset["failurePolicy"]["rules"]:
        if reason in rule["onJobFailureReasons"] and any(re.search(p, message) for p in rule["onJobFailureMessagePatterns"]):
            return rule["action"]
    return "RestartJobSet"


@pytest.mark.parametrize("name", RUNS)
def test_what_a_cluster_does_after_a_run(launcher, name):
    body, options, code = RUNS[name]
    message = launcher.tmp_path / "termination-log"
    message.write_text("")
    run = launcher.train(GLOO + body, "--pod", *options, env={"UNHANG_TERMINATION_LOG": str(message)})
    assert run.exitcode == code == run.outcome["exitcode"] == run.happened("Finished")[0]["exitcode"], run.err[-3000:]
    manifests = {
        m["kind"]: m for form in ("kubernetes", "kubernetes-job") for m in yaml.safe_load_all(export(form, {}, Layout(), with_unhang=True).text)
    }
    start = {"kubernetes": manifests["TrainJob"]["spec"]["trainer"], "job": manifests["Job"]["spec"]["template"]["spec"]["containers"][0]}
    assert [one["command"][:3] for one in start.values()] == [["unhang", "run", "--pod"]] * 2
    if code:
        assert (by_job(manifests, code), by_jobset(manifests, code)) == {
            1: ("counted, 0 more", "RestartJobSet"),
            93: ("failed", "FailJobSet"),
            94: ("another pod", "RestartJobSetAndIgnoreMaxRestarts"),
        }[code]
    said = message.read_text()
    assert run.primary["says"][:30] in said and len(said.encode()) <= 4096 if code else said == ""


@for_each(
    ("failures", "code"),
    [
        ([failed(0)] * 2, 93),
        ([failed(0)], None),
        ([failed(0, standing="likely")] * 2, None),
        # Another pod may have that port, and that network.
        ([failed(0, cause="port-in-use")] * 2, None),
        ([failed(9, cause="network-blocked")] * 3, None),
        ([failed(0, cause="config-error", exitcode=2, text=UNKNOWN)], 93),
        ([failed(9, cause="gpu-oom")] * 2, None),
        ([failed(9, cause="gpu-oom")] * 3, 93),
        ([failed(9), failed(9, cause="gpu-hardware")], 94),
        ([failed(9, cause="gpu-hardware", standing="likely")] * 3, None),
        # The training's own.
        ([failed(9, exitcode=93)], 1),
    ],
)
def test_what_is_established_has_a_code(failures, code):
    assert code_for_pod(Policy(pod=True, on_failure="abort"), failures, failures, PLAIN) == code
    assert code_for_pod(Policy(), failures, failures, PLAIN) is None


def test_the_termination_message_is_bounded_and_never_an_error(tmp_path, monkeypatch, capsys):
    # A command is never cut short on a screen.
    remedy = Remedy(id="reset-gpu", says="reset it", command="字" * 9000)
    verdict = Verdict(primary=Finding(cause="gpu-hardware", standing="established", says="Xid 79", remedies=(remedy,)))
    outcome = Outcome(exitcode=1, attempts=1, incidents=1, elapsed_s=1.0, interrupted=False, run_dir="", verdict=verdict)
    message = tmp_path / "log"
    monkeypatch.setenv("UNHANG_TERMINATION_LOG", str(message))
    write_verdict_for_pod(outcome)
    assert "cannot write" in capsys.readouterr().err and not message.exists()
    message.write_text("old " * 3000)
    write_verdict_for_pod(outcome)
    assert 4090 < len(message.read_bytes()) <= 4096 and "old" not in message.read_text() and capsys.readouterr().err == ""
