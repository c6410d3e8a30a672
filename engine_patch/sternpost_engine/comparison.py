"""
Comparing keys and values that were computed twice: over copied KV, and over computed KV.

The two differ in rounding, since rows of another batch are summed in another order; they differ by far more
when a row did not see what it should have seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch


@dataclass(frozen=True, slots=True)
class Limit:
    """What passes for rounding: `share` of a token's norm, for this `quantile` of the tokens."""

    share: float
    quantile: float


LIMITS: Final = {torch.float32: Limit(share=1e-3, quantile=1.0)}
"""By the model's dtype; in float32 every token must hold."""

LIMIT: Final = Limit(share=0.1, quantile=0.75)
"""In 16 bits. Rounding grows from layer to layer, and may send a single token to another expert."""


class Comparison:
    """Collects each layer's relative difference over all tokens; `layers` are expected."""

    def __init__(self, layers: int, dtype: torch.dtype) -> None:
        self._layers = layers
        self._limit = LIMITS.get(dtype, LIMIT)
        self._differences: dict[int, float] = {}

    def add(self, layer: int, expected: torch.Tensor, computed: torch.Tensor) -> None:
        """Take a layer's keys, or values, [tokens, heads, dim] each; the larger difference counts."""
        wanted = expected.to(torch.float32).flatten(start_dim=1)
        found = computed.to(torch.float32).flatten(start_dim=1)
        scale = wanted.norm(dim=1).clamp_min(torch.finfo(torch.float32).tiny)
        each = (wanted - found).norm(dim=1) / scale
        distance = float(each.quantile(self._limit.quantile))
        difference = math.inf if math.isnan(distance) else distance
        self._differences[layer] = max(difference, self._differences.get(layer, 0.0))

    @property
    def largest(self) -> float:
        """The largest relative difference of any layer."""
        return max(self._differences.values(), default=0.0)

    @property
    def holds(self) -> bool:
        """Whether every layer was compared, and none differs by more than rounding. Not a number differs."""
        whole = len(self._differences) == self._layers
        return whole and all(difference <= self._limit.share for difference in self._differences.values())
