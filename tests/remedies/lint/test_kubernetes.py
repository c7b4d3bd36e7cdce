"""Kubernetes: what containers start, and Jobs whose pods have to find one another."""

from __future__ import annotations

from tests.tables import for_each

from unhang.remedies.lint import check

POD = """      restartPolicy: Never
      subdomain: a
      containers:
        - name: node
          env:
            - name: MASTER_PORT
              value: "29500"
          command: {command}
          volumeMounts: [{{name: shm, mountPath: /dev/shm}}]
      volumes: [{{name: shm, emptyDir: {{medium: Memory}}}}]
"""
JOB = """apiVersion: batch/v1
kind: Job
spec:
  parallelism: 2
  completions: 2
  completionMode: Indexed
  template:
    spec:
"""
COMMAND = "[torchrun, --nnodes=2, --node-rank=$(JOB_COMPLETION_INDEX), --master-addr=a-0.a, train.py]"


def said(text):
    return [(p.line, p.says) for p in check("job.yaml", text)[1]]


def test_a_job_that_is_right():
    assert said(JOB + POD.format(command=COMMAND)) == []


@for_each(
    ("old", "new", "line", "says"),
    [
        ("  completionMode: Indexed\n", "", 4, "no completionMode"),
        ("completions: 2", "completions: 3", 4, "completions is 3"),
        ("      subdomain: a\n", "", 4, "no subdomain"),
        ("restartPolicy: Never", "restartPolicy: Always", 3, "Never or OnFailure"),
        ("--node-rank=$(JOB_COMPLETION_INDEX)", "--node-rank=$(RANK)", 16, "every host takes itself"),
        ("train.py", "accelerate, launch, train.py", 16, "torchrun > accelerate launch"),
        ("a-0.a", "127.0.0.1", 16, "takes itself for the first"),
        (" --node-rank=$(JOB_COMPLETION_INDEX),", "", 16, "no --node-rank"),
        (" --master-addr=a-0.a,", "", 16, "no --master-addr"),
        ("--nnodes=2, --node-rank=$(JOB_COMPLETION_INDEX), --master-addr=a-0.a, ", "", 4, "torchrun without --nnodes"),
        ("medium: Memory", "sizeLimit: 1Gi", 17, "is on disk"),
    ],
)
def test_what_is_wrong_in_a_job(old, new, line, says):
    whole = JOB + POD.format(command=COMMAND)
    assert old in whole
    found = said(whole.replace(old, new))
    assert len(found) == 1 and found[0][0] == line and says in found[0][1], found


def test_accelerate_in_a_job_is_told_its_number_and_the_first_host():
    right = COMMAND.replace("torchrun, --nnodes=2, --node-rank", "accelerate, launch, --num_machines=2, --machine_rank").replace(
        "--master-addr", "--main_process_ip"
    )
    assert said(JOB + POD.format(command=right)) == []
    ((_, number),) = said(JOB + POD.format(command=right.replace(" --machine_rank=$(JOB_COMPLETION_INDEX),", "")))
    assert "no --machine_rank: accelerate launch fails, or takes each for number 0" in number
    ((_, address),) = said(JOB + POD.format(command=right.replace(" --main_process_ip=a-0.a,", "")))
    assert "no --main_process_ip" in address


def test_a_script_in_a_command():
    command = (
        "\n            - bash\n            - -c\n            - |\n              torchrun --nnodes=2 --node-rank=$RANK --master-addr=a-0.a train.py"
    )
    ((line, says),) = said(JOB + POD.format(command=command))
    assert line == 20 and "RANK is a process's number" in says


def test_a_service_with_an_address():
    service = "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: a\nspec:\n  clusterIP: {}\n"
    job = JOB + POD.format(command=COMMAND)
    assert said(job + service.format("None")) == []
    ((line, says),) = said(job + service.format('""'))
    assert line == 25 and "pods get no names" in says


def test_an_operator_sets_what_it_sets():
    text = "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nspec:\n  pytorchReplicaSpecs:\n    Worker:\n" + POD.replace("MASTER_PORT", "X").format(
        command="[torchrun, --nnodes=2, --node_rank=$(RANK), train.py]"
    )
    assert said(text) == []
