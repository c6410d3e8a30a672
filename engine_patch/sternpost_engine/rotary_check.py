"""
The self-test of the rotation arithmetic: moved keys must equal those that the model computes in place.

Run once per rotary module when an engine starts, with the model's own module, dtype and device, so that a
rotary variant that is not understood is refused before any answer depends on it.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from sternpost_engine.rotary import Rotation

TOKENS: Final = 16
"""So many keys are moved."""

TOLERANCES: Final = {torch.float32: 1e-3}
"""How far a moved key may lie from the computed one, as a share of the largest, by dtype."""

TOLERANCE: Final = 0.02
"""The same for 16-bit dtypes, in which the module's own table is rounded too."""


def moves_like(module: Any, rotation: Rotation, *, heads: int, head_dim: int, dtype: torch.dtype) -> bool:
    """Whether keys that are moved by `rotation` equal those that vLLM's rotary `module` computes."""
    device = rotation.cos.device
    generator = torch.Generator().manual_seed(0)
    keys = torch.randn((TOKENS, heads, head_dim), generator=generator).to(device=device, dtype=dtype)
    last = rotation.positions - TOKENS
    # The middle and the end: a scaling that sets in late would pass a test near the beginning.
    moves = ((0, last // 2), (last, last // 3))
    return all(_moves(module, rotation, keys, before, after) for before, after in moves)


def _moves(module: Any, rotation: Rotation, keys: torch.Tensor, before: int, after: int) -> bool:
    stands = _computed(module, keys, before)
    unrotated, moved = torch.empty_like(stands), torch.empty_like(stands)
    rotation.unrotate(stands, before, unrotated)
    rotation.rotate(unrotated, after, moved)
    expected = _computed(module, keys, after)
    limit = TOLERANCES.get(keys.dtype, TOLERANCE) * expected.abs().max()
    return bool((moved - expected).abs().max() <= limit)


def _computed(module: Any, keys: torch.Tensor, first: int) -> torch.Tensor:
    """Let the model's own module turn copies: it may write in place."""
    positions = torch.arange(first, first + len(keys), device=keys.device)
    flat = keys.reshape(len(keys), -1)
    _, turned = module(positions, flat.clone(), flat.clone())
    return turned.view(keys.shape).to(torch.float32)
