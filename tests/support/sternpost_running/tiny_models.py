"""
Tiny models with random weights, one per way in which models turn their keys, for the real vLLM.

In all layers but the last, attention and feed-forward add nothing: so every layer's keys and values depend on
token and position alone, a tail's KV is the same after any middle, and a splice must give exactly what full
prefill gives. The last layer attends as usual, and its answer hangs on every key's position.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
)
"""What is taken from the model whose tokenizer all tiny ones share."""

POSITIONS = 4096
"""The longest prompt of a tiny model."""

SPREAD = 0.3
"""The weights' standard deviation: large enough that an answer depends on what is attended to."""

SILENCED = ("o_proj", "out_proj", "down_proj", "fc_out", "dense_4h_to_h")
"""The last matrix of an attention or a feed-forward, by the names that model families give it."""


@dataclass(frozen=True, slots=True)
class Family:
    """A model family: the name that its configurations go by, and what differs from the common shape."""

    model_type: str
    changes: Mapping[str, Any] = field(default_factory=dict)


SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": POSITIONS,
    "initializer_range": SPREAD,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
"""The common shape; a family without one of these ignores it."""


def write_tiny_model(folder: Path, family: Family, tokenizer: Path) -> Path:
    """Write a family's tiny model with the tokenizer of the model in `tokenizer`; return its folder."""
    folder.mkdir(parents=True)
    for name in TOKENIZER_FILES:
        if (tokenizer / name).is_file():
            shutil.copy(tokenizer / name, folder / name)
    words = json.loads((tokenizer / "config.json").read_text())["vocab_size"]
    config = AutoConfig.for_model(family.model_type, **{**SHAPE, "vocab_size": words, **family.changes})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    last = f".{config.num_hidden_layers - 1}."
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if last not in name and any(part in name for part in SILENCED):
                weight.zero_()
    model.save_pretrained(folder)
    return folder
