"""Question-answer pairs, in English and Chinese, made from the catalogue of causes that unhang ships.

Row `number` is a pure function of (seed, number): any number of rows can be made without holding them, and two machines
make the same ones. Answers are the catalogue's own text; questions vary in wording and in the situation they describe.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What the rows are about: one cause. `answers` go by language, then by what was asked for."""

    id: str
    title: dict[str, str]
    answers: dict[str, dict[str, str]]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One question with its answer; `language` is "en" or "zh"."""

    language: str
    cause: str
    question: str
    answer: str


def subjects() -> list[Subject]:
    """All causes of the catalogue, in its order. Ends the process where unhang, which has it, cannot be imported."""
    try:
        from unhang.knowledge import catalogue
    except ImportError as e:
        sys.exit(
            f"the data is made from what unhang knows, which cannot be imported here ({e}). Make it where it can, and bring it:\n"
            "    python train.py prepare --out DIR        then        train.py train --data DIR"
        )

    return [
        Subject(
            id=cause.id,
            title={"en": cause.title, "zh": cause.title.of("zh")},
            answers={
                "en": {
                    "what": cause.what,
                    "why": cause.why,
                    "fix": " ".join(remedy.says for remedy in cause.remedies) or cause.explain["en"],
                    "explain": cause.explain["en"],
                },
                # Chinese has one text for all; its first sentence says what it is.
                "zh": {"what": re.split(r"(?<=。)", cause.explain["zh"], maxsplit=1)[0], "explain": cause.explain["zh"]},
            },
        )
        for cause in catalogue.load().values()
    ]


SITUATIONS: dict[str, tuple[str, ...]] = {
    "en": (
        "",
        "I train with {gpus} GPUs on {hosts} host(s), using {launcher}. ",
        "A job of {ranks} ranks stopped at step {step}. ",
        "Rank {rank} of {ranks}, {launcher}, step {step}. ",
        "It happens with {launcher} since we went from {fewer} to {ranks} ranks. ",
        "After {hours} hours of training with {launcher}: ",
        "Batch size {batch}, {ranks} ranks, {launcher}. ",
    ),
    "zh": (
        "",
        "我用 {launcher} 在 {hosts} 台机器的 {gpus} 张卡上训练。",
        "一个有 {ranks} 个进程的任务停在第 {step} 步。",
        "{launcher}，共 {ranks} 个进程，进程 {rank} 在第 {step} 步。",
        "从 {fewer} 个进程增加到 {ranks} 个之后，用 {launcher} 就会出现。",
        "用 {launcher} 训练了 {hours} 小时之后：",
        "批大小 {batch}，{ranks} 个进程，{launcher}。",
    ),
}

# Which part of a cause answers the question, and the ways to ask for it.
WORDINGS: dict[str, dict[str, tuple[str, ...]]] = {
    "en": {
        "what": ("What does {id} mean?", "What is {id}?", "What has happened when the verdict says {id}?", "{title}: what is that?"),
        "why": ("Why does {id} happen?", "What makes {id} happen?", "Where does this come from: {title}?", "How can it come to {id}?"),
        "fix": ("How do I fix {id}?", "What can be done about {id}?", "{title}. What now?", "Which settings help against {id}?"),
        "explain": ("Explain {id}.", "Explain to me: {title}", "Tell me all about {id}.", "Please help with {id}."),
    },
    "zh": {
        "what": ("{id} 是什么意思？", "什么是 {id}？", "判定结果是 {id}，发生了什么？", "{title}：这是怎么回事？", "用一句话说明 {id}。"),
        "explain": ("请解释 {id}。", "为什么会出现 {id}？该怎么办？", "{title}。请详细说说。", "遇到 {id} 怎么处理？"),
    },
}

LAUNCHERS = ("torchrun", "accelerate", "DeepSpeed", "LLaMA-Factory", "python -m torch.distributed.run", "Slurm", "Ray")


def row(number: int, *, seed: int, base: Sequence[Subject]) -> Row:
    """Row `number`: languages alternate, causes follow each other, the wording is drawn."""
    draw = random.Random(f"{seed}:{number}")
    language = ("en", "zh")[number % 2]
    subject = base[number // 2 % len(base)]
    part = draw.choice(list(WORDINGS[language]))
    situation = draw.choice(SITUATIONS[language]).format(**_numbers(draw))
    wording = draw.choice(WORDINGS[language][part]).format(id=subject.id, title=subject.title[language])
    return Row(language=language, cause=subject.id, question=situation + wording, answer=subject.answers[language][part].strip())


def rows(count: int, *, seed: int, base: Sequence[Subject], progress: Callable[[Iterator[int]], Iterator[int]] = iter) -> Iterator[Row]:
    """The first `count` rows, made one at a time."""
    for number in progress(iter(range(count))):
        yield row(number, seed=seed, base=base)


def _numbers(draw: random.Random) -> dict[str, object]:
    hosts, ranks = draw.choice((1, 2, 3, 4, 8)), draw.choice((2, 4, 8, 16, 32, 64, 128))
    return {
        "hosts": hosts,
        "gpus": hosts * draw.choice((2, 4, 8)),
        "ranks": ranks,
        "fewer": ranks // 2,
        "rank": draw.randrange(ranks),
        "step": draw.randrange(1, 20_000),
        "hours": draw.randrange(2, 72),
        "batch": draw.choice((8, 16, 32, 64, 128, 256, 512, 1024)),
        "launcher": draw.choice(LAUNCHERS),
    }
