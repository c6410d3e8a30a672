"""Attention layers whose pages are plain tensors, and rotary positions written down from their definition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from sternpost_engine.rotary import Rotation
from sternpost_engine.tensors import LayerShape
from sternpost_engine.worker import Layer

UNTOUCHED: Final = -77.0
"""What a page holds before anything is written."""


class FakeBackend:
    """Writes keys and values to the pages' slots; fails while `failing`."""

    def __init__(self) -> None:
        self.failing = False

    def do_kv_cache_update(
        self,
        layer: Any,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Write a batch; a slot of -1 is padding."""
        if self.failing:
            raise RuntimeError("the device has no memory left")
        used = slot_mapping >= 0
        kv_cache[0, slot_mapping[used]] = key[: len(slot_mapping)][used]
        kv_cache[1, slot_mapping[used]] = value[: len(slot_mapping)][used]


@dataclass
class FakeAttention:
    """One layer's module."""

    impl: FakeBackend = field(default_factory=FakeBackend)


def fake_layers(count: int, slots: int, shape: LayerShape, rotations: Sequence[Rotation]) -> list[Layer]:
    """Return layers with empty pages of [2, slots, heads, dim], whose keys take turns at the rotations."""
    return [
        Layer(
            f"layer-{number}",
            FakeAttention(),
            torch.full((2, slots, shape.kv_heads, shape.head_dim), UNTOUCHED, dtype=shape.dtype),
            shape,
            rotations[number % len(rotations)],
        )
        for number in range(count)
    ]


@dataclass(frozen=True, slots=True)
class FakeRotary:
    """A rotary module as vLLM has it: angles per position and pair, scaled by `magnitude`."""

    frequencies: tuple[float, ...]
    positions: int
    is_neox_style: bool = True
    magnitude: float = 1.0

    def _compute_cos_sin_cache(self) -> torch.Tensor:
        angles = torch.outer(torch.arange(self.positions).double(), torch.tensor(self.frequencies).double())
        return (torch.cat((angles.cos(), angles.sin()), dim=-1) * self.magnitude).float()

    def rotated(self, keys: torch.Tensor, first: int) -> torch.Tensor:
        """
        Return the keys as the model computes them, from position `first` on, in float64.

        Each pair of dimensions is one complex number, and is multiplied by the unit vector of its angle.
        """
        pairs = len(self.frequencies)
        low, high = _pair(keys[..., : 2 * pairs].double(), neox=self.is_neox_style)
        positions = torch.arange(first, first + len(keys)).double()
        angles = torch.outer(positions, torch.tensor(self.frequencies).double())[:, None, :]
        turned = torch.complex(low, high) * torch.polar(torch.full_like(angles, self.magnitude), angles)
        parts = (turned.real, turned.imag)
        together = torch.cat(parts, -1) if self.is_neox_style else torch.stack(parts, -1).flatten(-2)
        return torch.cat((together, keys[..., 2 * pairs :].double()), dim=-1)


def frequencies_of(rotary_dim: int, base: float = 10_000.0) -> tuple[float, ...]:
    """Return the frequency of each pair, as RoPE defines them."""
    return tuple(base ** (-2 * pair / rotary_dim) for pair in range(rotary_dim // 2))


def _pair(keys: torch.Tensor, *, neox: bool) -> tuple[torch.Tensor, torch.Tensor]:
    if neox:
        low, high = keys.chunk(2, dim=-1)
        return low, high
    return keys[..., 0::2], keys[..., 1::2]
