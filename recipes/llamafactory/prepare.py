"""Make what sft.yaml asks for, in the directory that is named: a model without weights, its tokenizer, and sums to learn. Standard library only."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

_SPECIAL = ("<pad>", "</s>", "<unk>")
_WORDS = (*_SPECIAL, "Human", "Assistant", ":", "what", "is", "+", *map(str, range(20)))
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 1,
    "tie_word_embeddings": False,
}
_FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
TOKENIZER = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [{"id": i, "content": word, **_FLAGS} for i, word in enumerate(_SPECIAL)],
    "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {word: i for i, word in enumerate(_WORDS)}, "unk_token": "<unk>"},
}
_TOKENS = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "model_max_length": 128}


def make(folder: Path) -> None:
    sums = [{"instruction": f"what is {a} + {b}", "input": "", "output": str(a + b)} for a in range(8) for b in range(8)]
    files: dict[str, Any] = {
        "config.json": MODEL,
        "tokenizer.json": TOKENIZER,
        "tokenizer_config.json": _TOKENS,
        "dataset_info.json": {"sums": {"file_name": "sums.json"}},
        "sums.json": sums,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_text(json.dumps(data, indent=1))


if __name__ == "__main__":
    make(Path(sys.argv[1]))
