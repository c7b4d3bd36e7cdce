"""A model with code of its own, for `trust_remote_code`: LLaMA-Factory's only place for a user's Python."""

import os
import threading
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM


class TinyConfig(LlamaConfig):
    model_type = "tiny"


class TinyForCausalLM(LlamaForCausalLM):
    config_class = TinyConfig
    calls = 0

    def forward(self, input_ids=None, attention_mask=None, labels=None, **kwargs):
        torch.set_num_threads(1)
        once = Path(os.environ["FAULT_ONCE"])
        self.calls += 1
        if self.calls == 15 and os.environ.get("RANK") == "1" and not once.exists():
            once.touch()
            if os.environ["FAULT"] == "hang":
                threading.Event().wait()  # it stands here
            if os.environ["FAULT"] == "crash":
                raise ValueError("this sample has no label")  # it raises here
        threading.Event().wait(0.05)
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, labels=labels, **kwargs)
