"""Makes the prepared data: two Arrow files that training maps from disk, a tokenizer trained on the same text, and meta.json.

    DIR/train.arrow, DIR/eval.arrow     language, cause, question, answer (to look at) and input_ids, labels (to train on)
    DIR/tokenizer.json                  byte-level BPE for English and Chinese: no text is unknown to it
    DIR/meta.json                       counts, vocabulary, and what the rows were made from

The directory is made beside its place and renamed at the end: it exists whole or not at all. torch is not needed here.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import questions

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PAD, EOS = 0, 1
SPECIAL_TOKENS = ("<pad>", "</s>")
ROWS_IN_A_BATCH = 1024


def read_meta(data: Path) -> dict[str, Any]:
    """What is known of the prepared data in `data`."""
    return json.loads((data / "meta.json").read_text(encoding="utf-8"))


def prepare(
    out: Path, *, rows: int, eval_rows: int, vocab: int, seed: int, progress: Callable[[Iterator[int]], Iterator[int]] = iter
) -> dict[str, Any]:
    """Make the data in `out`, unless another process was quicker. Returns its meta."""
    out.parent.mkdir(parents=True, exist_ok=True)
    building = out.with_name(f".{out.name}.{os.getpid()}")
    building.mkdir()
    try:
        base = questions.subjects()
        tokenizer = train_tokenizer(base, vocab=vocab, seed=seed)
        _write(building / "tokenizer.json", tokenizer.to_str().encode())
        made = questions.rows(rows + eval_rows, seed=seed, base=base, progress=progress)
        write_rows(building / "train.arrow", islice(made, rows), tokenizer=tokenizer)
        write_rows(building / "eval.arrow", made, tokenizer=tokenizer)
        meta = {"rows": rows, "eval_rows": eval_rows, "vocab_size": tokenizer.get_vocab_size(), "seed": seed, "causes": [s.id for s in base]}
        _write(building / "meta.json", json.dumps(meta, indent=2).encode())
        try:
            building.rename(out)
        except OSError:
            if not (out / "meta.json").exists():
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return read_meta(out)


def wait(data: Path, *, seconds: float) -> dict[str, Any]:
    """Wait until another process of this host has prepared `data`. Raises TimeoutError after `seconds`."""
    until = time.monotonic() + seconds
    while not (data / "meta.json").exists():
        if time.monotonic() > until:
            raise TimeoutError(f"{data} was not prepared within {seconds:g} s; usual cause: local rank 0 failed, see its output")
        time.sleep(0.05)
    return read_meta(data)


def train_tokenizer(base: Sequence[questions.Subject], *, vocab: int, seed: int) -> Tokenizer:
    """A byte-level BPE, trained on every answer and on as many questions as there are answers."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    answers = [text for subject in base for language in subject.answers.values() for text in language.values()]
    asked = [row.question for row in questions.rows(len(answers), seed=seed, base=base)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=24,  # Chinese is written without spaces: whole clauses would become tokens
        show_progress=False,
    )
    tokenizer.train_from_iterator(answers + asked, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", EOS)])
    return tokenizer


def write_rows(path: Path, rows: Iterable[questions.Row], *, tokenizer: Tokenizer) -> None:
    """Write an Arrow IPC file, one record batch at a time."""
    import pyarrow as pa

    ids = pa.list_(pa.int32())
    text = [("language", pa.string()), ("cause", pa.string()), ("question", pa.string()), ("answer", pa.string())]
    schema = pa.schema([*text, ("input_ids", ids), ("labels", ids)])
    encoded: dict[str, list[int]] = {}
    source = iter(rows)
    with path.open("wb") as file:
        with pa.ipc.new_file(file, schema) as writer:
            while chunk := list(islice(source, ROWS_IN_A_BATCH)):
                for row in chunk:
                    if row.answer not in encoded:
                        encoded[row.answer] = tokenizer.encode(row.answer).ids
                columns = [pa.array([getattr(row, name) for row in chunk], type=kind) for name, kind in text]
                columns.append(pa.array([e.ids for e in tokenizer.encode_batch([row.question for row in chunk])], type=ids))
                columns.append(pa.array([encoded[row.answer] for row in chunk], type=ids))
                writer.write_batch(pa.record_batch(columns, schema=schema))
        file.flush()
        os.fsync(file.fileno())


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
