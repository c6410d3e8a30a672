"""
A transformers cache whose rows go to any slots, as a paged KV cache has them.

One forward may compute runs of tokens that lie apart; each layer writes the whole batch's keys before it
attends, so every row sees what the other rows wrote in the same layer, and what was copied between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from sternpost_engine.tensors import LayerShape


@dataclass(frozen=True, slots=True)
class Rows:
    """
    The tokens of one forward, the slots that their KV goes to, and the positions that they are rotated by.

    All three are of one length, slots ascend, and a token attends to every slot up to its own.
    """

    tokens: tuple[int, ...]
    slots: tuple[int, ...]
    positions: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def plain(self) -> bool:
        """Whether the rows are a prompt's first tokens, so that ordinary causal attention is meant."""
        return self.slots == tuple(range(len(self.slots)))


@dataclass(slots=True)
class Placement:
    """Where the forward that is running writes: its slots, and how many slots it sees."""

    slots: torch.Tensor
    visible: int


class SlotLayer(CacheLayerMixin):
    """One layer's keys and values, each [1, kv_heads, capacity, dim]."""

    is_sliding = False

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, placement: Placement) -> None:
        super().__init__()
        self.keys, self.values, self._placement = keys, values, placement
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Do nothing: the tensors are made with the layer."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the rows' keys and values to their slots, and return all that the forward sees."""
        place = self._placement
        self.keys.index_copy_(2, place.slots, key_states)
        self.values.index_copy_(2, place.slots, value_states)
        return self.keys[:, :, : place.visible], self.values[:, :, : place.visible]

    def get_seq_length(self) -> int:
        """Return how many slots come before the forward's rows, as transformers asks."""
        return self._placement.visible - len(self._placement.slots)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return how many slots the mask covers, and the first of them."""
        return self._placement.visible, 0

    def get_max_length(self) -> int:
        """Return the capacity."""
        return int(self.keys.shape[2])


class SlotCache(Cache):
    """The KV of one prompt, with room for `capacity` tokens; rows are placed with `place`."""

    def __init__(
        self, shapes: Sequence[LayerShape], capacity: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._placement = Placement(torch.zeros(0, dtype=torch.long, device=device), 0)
        self.dtype, self.device = dtype, device
        super().__init__(
            layers=[
                SlotLayer(
                    torch.zeros((1, shape.kv_heads, capacity, shape.head_dim), dtype=dtype, device=device),
                    torch.zeros((1, shape.kv_heads, capacity, shape.value_dim), dtype=dtype, device=device),
                    self._placement,
                )
                for shape in shapes
            ]
        )

    def place(self, rows: Rows) -> None:
        """Say where the next forward's keys and values go."""
        self._placement.slots = torch.tensor(rows.slots, dtype=torch.long, device=self.device)
        self._placement.visible = rows.slots[-1] + 1

    def mask(self, rows: Rows) -> torch.Tensor | None:
        """
        Return what is added to each row's scores, [1, 1, rows, slots]; None for ordinary causal attention.

        Nothing for a slot that the row sees, the dtype's lowest number for one that it does not: the form
        that every attention implementation of transformers with masks takes.
        """
        if rows.plain:
            return None
        slots = torch.arange(self._placement.visible, device=self.device)
        hidden = slots > self._placement.slots.unsqueeze(1)
        mask = torch.zeros(hidden.shape, dtype=self.dtype, device=self.device)
        return mask.masked_fill_(hidden, torch.finfo(self.dtype).min).view(1, 1, len(rows), -1)

    def write(self, layer: int, slot: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write rotated keys and values, both [tokens, kv_heads, dim], to the slots from `slot` on."""
        end = slot + keys.shape[0]
        self.layers[layer].keys[0, :, slot:end] = keys.transpose(0, 1).to(self.layers[layer].keys.dtype)
        self.layers[layer].values[0, :, slot:end] = values.transpose(0, 1).to(self.layers[layer].values.dtype)

    def read(self, layer: int, slot: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return rotated keys and values, both [tokens, kv_heads, dim], of the slots from `slot` on."""
        end = slot + count
        return (
            self.layers[layer].keys[0, :, slot:end].transpose(0, 1),
            self.layers[layer].values[0, :, slot:end].transpose(0, 1),
        )
