"""Whether what a reader of Chinese sees of a machine is Chinese: each line whole, but for names, values and what another program said."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from unhang import encoding
from unhang.i18n import Text, in_language
from unhang.model import Examination
from unhang.report import language

_CHINESE = re.compile(r"[一-鿿]")
# Two words in a row that are no path, no option, no name.
_PROSE = re.compile(r"(?<![-\w/.{=*])[a-z']+(?:,? [a-z']+)+(?![-\w/.=*])", re.ASCII)
_WORD = re.compile(r"(?<![-\w/.{=*@:])[a-z]{2,}(?![-\w/.=*:(])", re.ASCII)
# Words that stand in Chinese as they are, and what other programs say word for word.
# fmt: off
_TECHNICAL = frozenset((
    "accelerate", "accept", "access", "apptainer", "barrier", "batch", "bond", "checkpoint", "compat", "conda", "container",
    "deepspeed", "desync", "docker", "driver", "drop", "fabric", "flight", "forward", "group", "import", "input", "kernel", "key",
    "kubernetes", "libcuda", "loopback", "lxc", "manager", "monitored", "numpy", "output", "overlay", "pair", "partition", "peer",
    "pid", "pip", "pod", "podman", "python", "queue", "rail", "rank", "ranks", "recorder", "rendezvous", "root", "run", "slurm",
    "store", "stub", "subnet", "switch", "system", "systemd", "torch", "torchaudio", "torchrun", "torchvision",
    "traceback", "transformers", "triton", "unhang", "venv", "worker", "workers",
))
# fmt: on


def english(text: str) -> bool:
    """Whether a reader of Chinese would have to know English: no Chinese in a sentence, or English in the middle of it."""
    told, colon, _ = text.partition("：")
    # Behind a Chinese sentence, and in quotes, other programs speak for themselves.
    bare = re.sub(r"'[^']*'|\"[^\"]*\"|（[^（）]*）", "", told if colon and _CHINESE.search(told) else text)
    if any(set(re.findall("[a-z']+", run.group())) - _TECHNICAL for run in _PROSE.finditer(bare)):
        return True
    return not _CHINESE.search(text) and any(word not in _TECHNICAL for word in _WORD.findall(bare))


def zh(said: str) -> str:
    return in_language(said, "zh")


class _Both(Text):
    __slots__ = ("chinese",)

    def of(self, language: str) -> str:
        return self.chinese if language == "zh" else str(self)


def of_document(document: dict[str, Any], said: str) -> str:
    """What a document of --json says, in Chinese, by its "messages"."""
    told: str = encoding.with_messages({"said": said, "messages": document.get("messages", {})})["said"]
    return zh(told)


def both(english: str, chinese: str) -> Text:
    """What is told by no catalogue."""
    made = _Both(english)
    made.chinese = chinese
    return made


def in_chinese(examination: Examination) -> Iterator[str]:
    """What stands behind each area, and what each finding says."""
    for area in examination.areas:
        yield language.unseen(area.summary, "zh")
        yield from (language.unseen(one, "zh") for one in area.unread)
    for finding in examination.findings:
        yield zh(finding.says)
        yield zh(finding.leads_to)
