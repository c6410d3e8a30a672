"""A transformers model, its angles and its layers' shapes, and the one way in which it is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from sternpost_core.errors import OperatingError
from sternpost_engine.reference.angles import probe_tokens, rotation_of
from sternpost_engine.reference.cache import Rows, SlotCache
from sternpost_engine.reference.support import UnsupportedModelError, check_config, position_limit
from sternpost_engine.rotary import Rotation
from sternpost_engine.tensors import LayerShape


@dataclass(frozen=True, slots=True)
class ReferenceModel:
    """A causal language model of transformers, in evaluation mode, with what the splice needs to know."""

    network: Any
    rotation: Rotation
    shapes: tuple[LayerShape, ...]

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.rotation.cos.device

    @property
    def dtype(self) -> torch.dtype:
        """What it computes in; the cache holds the same."""
        return self.shapes[0].dtype

    def new_cache(self, capacity: int) -> SlotCache:
        """Return an empty cache with room for so many tokens."""
        return SlotCache(self.shapes, capacity, self.dtype, self.device)

    def forward(self, cache: SlotCache, rows: Rows, wanted: Sequence[int]) -> torch.Tensor:
        """
        Compute the rows, write their KV to the cache, and return the logits of some of them.

        `wanted` are places in `rows`; the result has the shape [len(wanted), vocabulary].
        """
        cache.place(rows)
        with torch.inference_mode():
            output = self.network(
                input_ids=self._row(rows.tokens),
                position_ids=self._row(rows.positions),
                attention_mask=cache.mask(rows),
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=torch.tensor(wanted, dtype=torch.long, device=self.device),
            )
        logits: torch.Tensor = output.logits[0]
        return logits

    def _row(self, numbers: Sequence[int]) -> torch.Tensor:
        return torch.tensor([numbers], dtype=torch.long, device=self.device)


def wrap(network: Any) -> ReferenceModel:
    """
    Make a reference model of a transformers causal language model.

    Raises:
        UnsupportedModelError: when its keys cannot be moved.
    """
    check_config(network.config)
    network.eval()
    rotary = getattr(network.base_model, "rotary_emb", None)
    if rotary is None:
        raise UnsupportedModelError("the model has no rotary positions")
    layers = _probe(network)
    shapes = tuple(
        LayerShape(int(keys.shape[1]), int(keys.shape[-1]), int(values.shape[-1]), keys.dtype)
        for keys, values in layers
    )
    first_keys = layers[0][0][0].transpose(0, 1).contiguous()
    return ReferenceModel(network, rotation_of(rotary, first_keys, position_limit(network.config)), shapes)


def load_model(folder: Path, dtype: torch.dtype, device: torch.device) -> ReferenceModel:
    """
    Load a folder of config and weights; nothing is fetched.

    Raises:
        OperatingError: when transformers cannot load it.
        UnsupportedModelError: when its keys cannot be moved.
    """
    try:
        network = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        raise OperatingError(f"transformers cannot load the model in {folder}: {error}") from error
    return wrap(network.to(device))


def _probe(network: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return each layer's keys and values for a few tokens, [1, kv_heads, tokens, dim]."""
    cache = DynamicCache()
    tokens = probe_tokens(int(network.config.vocab_size))
    with torch.inference_mode():
        network(input_ids=torch.tensor([tokens], device=network.device), past_key_values=cache)
    return [(layer.keys, layer.values) for layer in cache.layers]
