"""Slow work outside collectives, as frameworks announce it: what a rank may be doing while the others wait for it."""

from __future__ import annotations

from unhang.logs.signature import Signature

# What a training prints of its steps.
_STEP = r"(?:\b[Ss]teps?\b|\b[Ii]ter(?:ation)?s?\b|\bloss\b|it/s\]|s/it\]|it/s,|s/it,)"
# What a rank did before is over: the last lines of a log count, of so many ranks.
_KEEP = 16


def _work(needle: str, pattern: str) -> Signature:
    return Signature(needle=needle, pattern=pattern, role="context", keep=_KEEP, newest=True)


def _announced(needle: str, pattern: str) -> Signature:
    """Work of which nothing but its beginning is printed: it was over where steps follow soon."""
    return Signature(needle=needle, pattern=pattern, over=_STEP, role="context", keep=_KEEP, newest=True)


# Of one epoch or stage of several the same is said.
_WHOLE = r"^(?!.{0,300}\b(?i:(?:epoch|round|iteration|fold|split|chunk|part|task)[ :_#=]{0,4}\d|stage|phase|warm-?up))"
# What trainings print when they are through.
FINISHED = (
    Signature(needle="'train_runtime': ", role="context", keep=2),
    Signature(needle="train_runtime  ", pattern=r"^ *train_runtime +=", role="context", keep=2),
    Signature(needle="raining complete", role="context", keep=2),
    Signature(needle="raining finished", role="context", keep=2),
    Signature(needle="`Trainer.fit` stopped: ", role="context", keep=2),
    Signature(needle="raining done", pattern=_WHOLE, role="context", keep=2),
    Signature(needle="inished training", pattern=_WHOLE, role="context", keep=2),
    Signature(needle="ompleted training", pattern=_WHOLE, role="context", keep=2),
)

# What counts on behind a line that seems to be the end: a bar that is not full, what transformers logs of a step, a step.
_COUNTS = r"(?<!\d)\d{1,2}%\||\{'loss': |^\W{0,3}(?:[Tt]rain\w* )?(?:[Ss]tep|[Ii]ter(?:ation)?)[ :=#\[(]{1,4}\d"
# An epoch that is not the last one.
_EARLIER_EPOCH = r"\b[Ee]poch\W{0,3}(\d{1,6}) ?/ ?(?!\1\b)\d"


def _end(needle: str, pattern: str, *, unless: str = "") -> Signature:
    return Signature(needle=needle, pattern=pattern, over=_COUNTS, unless=unless, role="context", keep=2, newest=True)


# The end of a training: its own word; its bar is full (that of a single epoch proves nothing); what it made is saved (one of many checkpoints, or the
# best so far, proves nothing); a process leaves.
DONE = tuple(_end(s.needle, _WHOLE) for s in FINISHED)
FULL = _end(
    "100%|",
    r"^(?:|(?i:[^|%]{0,30}\b(?:train\w*|steps?|iterations?|fit|progress|total)\b[^|%]{0,30})|[^|%]{0,20}[Ee]pochs?:? \[?(?P<epochs>\d+)/(?P=epochs)\b"
    r"[^|%]{0,20}?):? {0,4}100%\|[^|]{0,400}\| *(?P<total>\d+)/(?P=total) \[[\d:]+<[\d:?]+, *[\d.?]+ ?(?:it/s|s/it)",
    unless=_EARLIER_EPOCH,
)
SAVED = tuple(
    _end(
        f"{first}aved ",
        r"^(?!.{0,300}(?:\b(?i:best|(?:checkpoint|ckpt|step|iter|iteration|epoch)s?[-_ ]?\d)|\d\.(?:pt|pth|bin|ckpt|safetensors)\b))"
        r"(?=.{0,300}\b(?i:model|checkpoint|weights|adapter|final|results)).{0,200}?(?<!be )(?<!are )(?<!not )\b[Ss]aved ",
        unless=_EARLIER_EPOCH,
    )
    for first in "Ss"
)
LEAVING = _end("destroy_process_group() was not called before program exit", "")
ENDS = (*DONE, FULL, *SAVED, LEAVING)

# `what` names the work in words that a sentence can use.
SIGNATURES = (
    # datasets: `Map (num_proc=16):  43%|####3     | 430000/1000000 [10:02<13:11, ...]`
    _work(
        "examples/s]",
        r"(?P<what>(?:Map|Filter|Grouping texts|Running tokenizer|Converting format|Generating \w+ split|Tokeniz|Packing|Saving the dataset)[^:]*)",
    ),
    _work("Running tokenizer on ", r"(?P<what>Running tokenizer on [\w ]+)"),
    _work("okenizing ", r"(?P<what>[Tt]okenizing \w+(?: \w+)?)"),
    _work("Loading checkpoint shards", r"(?P<what>Loading checkpoint shards)"),
    _work("Loading safetensors checkpoint shards", r"(?P<what>Loading safetensors checkpoint shards)"),
    _work("Load weight begin", r"(?P<what>Load weight begin)"),
    _announced("aving model checkpoint to ", r"(?P<what>[Ss]aving model checkpoint)"),
    _announced("Saving checkpoint", r"(?P<what>Saving checkpoint)"),
    _announced("aving checkpoint ", r"(?P<what>[Ss]aving checkpoint)"),
    _announced("Running Evaluation", r"(?P<what>Running Evaluation)"),
    _announced("***** Running Prediction", r"(?P<what>Running Prediction)"),
    _work("Evaluating", r"\b(?P<what>Evaluating)\b"),
    _work("Validating", r"\b(?P<what>Validating)\b"),
    _work("Downloading ", r"(?P<what>Downloading (?:data|shards|readme|builder script|model|\S+))"),
    _work("Fetching ", r"(?P<what>Fetching \d+ files)"),
    _work("Building extension module", r"(?P<what>Building extension module \w+)"),
    _work("Loading extension module", r"(?P<what>Loading extension module \w+)"),
    _work("Preprocessing ", r"(?P<what>Preprocessing \w+)"),
    _work("Generating train split", r"(?P<what>Generating train split)"),
    _work("Capturing CUDA graph", r"(?P<what>Capturing CUDA graphs?)"),
    _work("index map", r"(?P<what>[Bb]uilding (?:the )?(?:shuffle|sample|document|GPT)?[\w ]*index map\w*)"),
)
