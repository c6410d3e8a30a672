"""Random models of the families that the reference engine must know, small enough for a unit test."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import torch
import transformers

from sternpost_engine.reference.model import ReferenceModel, wrap

VOCABULARY: Final = 64
POSITIONS: Final = 512

SPECIALS_OFF: Final = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}

LLAMA3: Final = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

YARN: Final = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}

FAMILIES: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "llama": ("Llama", {"num_key_value_heads": 4}),
    "llama-grouped": ("Llama", {"num_key_value_heads": 2}),
    "llama3-scaling": ("Llama", {"num_key_value_heads": 2, "rope_parameters": LLAMA3}),
    "yarn": ("Llama", {"num_key_value_heads": 2, "rope_parameters": YARN}),
    "linear": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}},
    ),
    "normed-keys": ("Qwen3", {"num_key_value_heads": 2, "head_dim": 16}),
    "partial": ("Phi", {"num_key_value_heads": 2}),
    "partial-quarter": ("GPTNeoX", {}),
    "neighbours": ("Cohere", {"num_key_value_heads": 2}),
    "partial-neighbours": ("Glm", {"num_key_value_heads": 2, "head_dim": 16}),
    "eager-attention": ("Llama", {"num_key_value_heads": 2, "attn_implementation": "eager"}),
    "window": ("Mistral", {"num_key_value_heads": 2, "sliding_window": 256}),
}
"""By name: the class's first part in transformers, and what differs from the common shape."""


def tiny_network(name: str, *, layers: int = 2, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """Return a transformers model of a family, with large random weights, so that every token matters."""
    family, options = FAMILIES[name]
    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "max_position_embeddings": POSITIONS,
        "initializer_range": 0.2,
    }
    config = getattr(transformers, f"{family}Config")(**{**shape, **SPECIALS_OFF, **options, **changes})
    torch.manual_seed(11)
    return getattr(transformers, f"{family}ForCausalLM")(config).to(dtype)


@lru_cache
def tiny_model(name: str, layers: int = 2, dtype: torch.dtype = torch.float32) -> ReferenceModel:
    """Return a reference model of a family; the same one each time, for it holds no state."""
    return wrap(tiny_network(name, layers=layers, dtype=dtype))
