"""The Job that needs no operator: what the API server, DNS and torchrun ask of it."""

from __future__ import annotations

import re

import pytest
import yaml

from unhang.errors import UnhangError
from unhang.remedies.exports.form_settings import Layout
from unhang.remedies.exports.launch_command import export


def test_pods_of_several_hosts_find_one_another():
    service, job = yaml.safe_load_all(export("kubernetes-job", {"ib": False}, Layout(nodes=2, processes=8, name="tune")).text)
    assert (service["apiVersion"], service["kind"]) == ("v1", "Service") and (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    # YAML's null would ask for an address; the string is what the API means.
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"] is True
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items() and pod["subdomain"] == service["metadata"]["name"]
    assert (spec["parallelism"], spec["completions"], spec["completionMode"], spec["backoffLimit"]) == (2, 2, "Indexed", 0)
    assert pod["restartPolicy"] == "Never"
    env = {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}
    assert all(isinstance(v, dict | str) for v in env.values()) and env["NCCL_IB_DISABLE"] == "1"
    assert env["NODE_RANK"] == {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    assert env["MASTER_ADDR"] == f"{job['metadata']['name']}-0.{pod['subdomain']}"
    # What a command refers to has to be one of the container's own variables.
    assert set(re.findall(r"\$\((\w+)\)", " ".join(container["command"]))) == {"NODE_RANK", "MASTER_ADDR", "MASTER_PORT"}
    assert container["command"][:3] == ["torchrun", "--nnodes=2", "--node-rank=$(NODE_RANK)"]
    (port,) = service["spec"]["ports"]
    assert str(port["port"]) == env["MASTER_PORT"] and container["ports"] == [{"name": "master", "containerPort": port["port"]}]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 8
    assert container["volumeMounts"] == [{"name": "shm", "mountPath": "/dev/shm"}]
    assert pod["volumes"] == [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}]


def test_one_host_needs_no_service():
    (job,) = yaml.safe_load_all(export("kubernetes-job", {}, Layout(gpus=False)).text)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["torchrun", "--standalone", "--nproc-per-node=2", "train.py"]
    assert "env" not in container and "resources" not in container and "subdomain" not in job["spec"]["template"]["spec"]


def test_a_name_that_its_last_pod_cannot_have():
    export("kubernetes-job", {}, Layout(nodes=2, name="a" * 61))
    with pytest.raises(UnhangError, match="longer than 63"):
        export("kubernetes-job", {}, Layout(nodes=2, name="a" * 62))
