"""
Comparing keys and values that were computed twice: over copied KV, and over computed KV.

The two differ in rounding, since rows of another batch are summed in another order; they differ by far more
when a row did not see what it should have seen.
"""

from __future__ import annotations

import math
from typing import Final

import torch

LIMITS: Final = {torch.float32: 1e-3}
"""How far apart a layer's keys, or values, may lie, as a share of their norm, by the model's dtype."""

LIMIT: Final = 0.1
"""The same for 16-bit dtypes, whose rounding grows from layer to layer."""


class Comparison:
    """Collects each layer's relative difference; `layers` are expected."""

    def __init__(self, layers: int, dtype: torch.dtype) -> None:
        self._layers = layers
        self._limit = LIMITS.get(dtype, LIMIT)
        self._differences: dict[int, float] = {}

    def add(self, layer: int, expected: torch.Tensor, computed: torch.Tensor) -> None:
        """Take a layer's keys, or values, of equal shapes; the larger difference of the two counts."""
        wanted, found = expected.to(torch.float32), computed.to(torch.float32)
        scale = wanted.norm().clamp_min(torch.finfo(torch.float32).tiny)
        distance = float((wanted - found).norm() / scale)
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
        return whole and all(difference <= self._limit for difference in self._differences.values())
