"""
The angles of a transformers model's rotary positions.

The tables come from the model's own rotary module, so that partial and scaled variants (linear, llama3,
YaRN) need no code here. Which dimensions of a head are paired is code in each model, so it is found out by
a trial: before rotation a first layer's key depends on its token alone.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from sternpost_engine.reference.support import UnsupportedModelError
from sternpost_engine.rotary import Rotation
from sternpost_engine.tensors import DUPLICATE_TOLERANCE

PROBE_TOKENS: Final = 8
"""So many different tokens are written twice, one row of them behind the other."""


def probe_tokens(vocabulary: int) -> tuple[int, ...]:
    """Return a prompt in which every token occurs twice, `PROBE_TOKENS` apart."""
    return tuple(number % vocabulary for number in range(PROBE_TOKENS)) * 2


def rotation_of(module: Any, keys: torch.Tensor, positions: int) -> Rotation:
    """
    Return the angles of the rotary `module`, for so many positions.

    `keys` are the first layer's for `probe_tokens`, rotated by the model: [tokens, kv_heads, head_dim].

    Raises:
        UnsupportedModelError: when the module has no table of cosines and sines, or the model turns its keys
            in a way that is not known here.
    """
    cos, sin = _table(module, positions, keys.device)
    for neox in (True, False):
        rotation = Rotation(cos, sin, neox)
        if _takes_back(rotation, keys.to(torch.float32)):
            return rotation
    raise UnsupportedModelError("the model turns its keys in a way that the reference engine does not know")


def _table(module: Any, positions: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines, [positions, rotary_dim / 2], as unit vectors: without YaRN's magnitude."""
    places = torch.arange(positions, device=device).unsqueeze(0)
    try:
        cos, sin = module(torch.zeros(1, dtype=torch.float32, device=device), places)
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise UnsupportedModelError(f"the model's rotary module gives no table: {error}") from error
    cos, sin = _once(cos[0].float()), _once(sin[0].float())
    length = torch.sqrt(cos.square() + sin.square()).clamp_min(torch.finfo(torch.float32).tiny)
    return (cos / length).contiguous(), (sin / length).contiguous()


def _once(table: torch.Tensor) -> torch.Tensor:
    """Take each angle once, from a table that holds it for both of its dimensions."""
    half = table.shape[-1] // 2
    first = table[:, :half]
    return first if torch.equal(first, table[:, half:]) else table[:, ::2]


def _takes_back(rotation: Rotation, keys: torch.Tensor) -> bool:
    """Whether taking the rotation back makes equal tokens' keys equal."""
    unrotated = torch.empty_like(keys)
    rotation.unrotate(keys, 0, unrotated)
    first, second = unrotated.chunk(2)
    return bool((first - second).abs().max() <= DUPLICATE_TOLERANCE * keys.abs().max())
