"""What a check of a launcher's file leaves out: files that it only names, and forms of which a part alone is known here."""

from __future__ import annotations

import re
from collections.abc import Iterator

from unhang.knowledge.text import Text, same
from unhang.remedies.exports.checking.documents import Key
from unhang.remedies.exports.checking.kubernetes import TRAINS

_COMMENT = re.compile(r"(?:^|(?<=\s))#[^\n]*")
# What a shell reads or starts, and what launchers read their settings from.
_NAMED = re.compile(
    r"(?:^|[\s;&|('\"])(?:(?:source|\.)[ \t]+|(?:ba|z|da)?sh[ \t]+(?=[^ ]+\.\w)|srun[ \t]+(?:-\S+[ \t]+)*(?=[^ ]+\.sh\b)"
    r"|--?[\w-]*(?:config|deepspeed|hostfile|fsdp)[\w-]*(?:[ \t]+|=)(?=\S+\.\w)|(?:llamafactory-cli|lmf)[ \t]+train[ \t]+)"
    r"['\"]?(?P<name>[\w./~${}-]*\w)"
)
# These bring an environment for Python, not settings of a training.
_ENVIRONMENTS = re.compile(r"(?:^|/)(?:activate|conda\.sh|\.bashrc|\.profile)$")
_KEYS = re.compile(r"deepspeed|config_file|hostfile")
_MOST_NAMED = 4


def of_text(found: str, text: str) -> tuple[Text, ...]:
    """What is not looked at in a file for a shell, Docker, Python or Kubernetes."""
    if found in ("kubernetes", "kubernetes-job") and not TRAINS.search(text):
        return (Text("what its pods run: no training was recognised in them", "其 Pod 运行的内容：没有认出训练"),)
    if found in ("lightning", "ray"):
        return (Text("all but the arguments of Lightning's and Ray's classes", "除 Lightning 和 Ray 各类的参数之外的内容"),)
    named = (m["name"] for m in _NAMED.finditer(_COMMENT.sub("", text)))
    return _shown(name for name in named if not _ENVIRONMENTS.search(name))


def of_keys(keys: tuple[Key, ...]) -> tuple[Text, ...]:
    """What is not looked at in YAML of a launcher."""
    if any(key.value == "AMAZON_SAGEMAKER" for key in keys):
        return (Text("its keys, which are those of SageMaker", "其中的键，它们属于 SageMaker"),)
    files = (key.value for key in keys if isinstance(key.value, str) and _KEYS.search(str(key.path[-1])))
    return _shown(name for name in files if re.search(r"\.(?:json|ya?ml)$", name))


def _shown(names: Iterator[str]) -> tuple[Text, ...]:
    found = list(dict.fromkeys(names))
    more = len(found) - _MOST_NAMED
    return (*map(same, found[:_MOST_NAMED]), *([Text(f"{more} more files", f"另外 {more} 个文件")] if more > 0 else []))
