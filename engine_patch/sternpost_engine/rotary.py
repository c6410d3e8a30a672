"""
Rotary positions of stored keys.

Keys are stored as they were before rotation, in float32, so that each use rotates once and rounds once: a
key rotated by an angle and again by a difference would be rounded twice, and its error would grow with use.
The rotation is that of RoPE (arXiv 2104.09864); the angles come from the model's own rotary module, so that
scaled variants (linear, llama3, YaRN) need no code of their own here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Rotation:
    """
    The angles of one rotary module, as unit vectors.

    `cos` and `sin` have the shape [positions, rotary_dim / 2], float32. `neox` says that a head's two halves
    are paired (Llama); otherwise neighbours are paired (GPT-J). Dimensions past `rotary_dim` stay as they are.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    neox: bool

    @property
    def rotary_dim(self) -> int:
        """How many of a head's dimensions are rotated."""
        return 2 * int(self.cos.shape[-1])

    @property
    def positions(self) -> int:
        """How many positions the module knows."""
        return int(self.cos.shape[0])

    def rotate(self, keys: torch.Tensor, position: int, out: torch.Tensor) -> None:
        """
        Rotate `keys` to their positions, from `position` on, into `out`.

        Both have the shape [tokens, heads, head_dim], float32; `out` must not share memory with `keys`.
        """
        self._turn(keys, position, out, inverse=False)

    def unrotate(self, keys: torch.Tensor, position: int, out: torch.Tensor) -> None:
        """Take back the rotation of `keys` that stand from `position` on, into `out`; shapes as in `rotate`."""
        self._turn(keys, position, out, inverse=True)

    def _turn(self, keys: torch.Tensor, position: int, out: torch.Tensor, *, inverse: bool) -> None:
        tokens = keys.shape[0]
        assert position + tokens <= self.positions, "positions are inside the model's length"
        cos = self.cos[position : position + tokens].unsqueeze(1)
        sin = self.sin[position : position + tokens].unsqueeze(1)
        first, second = self._halves(keys)
        first_out, second_out = self._halves(out)
        sign = -1.0 if inverse else 1.0
        torch.mul(first, cos, out=first_out)
        first_out.addcmul_(second, sin, value=-sign)
        torch.mul(second, cos, out=second_out)
        second_out.addcmul_(first, sin, value=sign)
        if self.rotary_dim < keys.shape[-1]:
            out[..., self.rotary_dim :] = keys[..., self.rotary_dim :]

    def _halves(self, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.neox:
            half = self.rotary_dim // 2
            return keys[..., :half], keys[..., half : self.rotary_dim]
        rotated = keys[..., : self.rotary_dim]
        return rotated[..., 0::2], rotated[..., 1::2]


def rotation_of(module: Any, device: torch.device) -> Rotation:
    """
    Read the angles of vLLM's rotary module.

    The module's own table may be rounded to the model's dtype and scaled (YaRN's magnitude), so the table is
    computed anew in float32 and normalised: turning a key must not change its length.

    Raises:
        AttributeError: when the module computes its angles in a way that is not known here.
    """
    table = module._compute_cos_sin_cache().to(device=device, dtype=torch.float32)
    cos, sin = table.chunk(2, dim=-1)
    length = torch.sqrt(cos.square() + sin.square()).clamp_min(torch.finfo(torch.float32).tiny)
    return Rotation((cos / length).contiguous(), (sin / length).contiguous(), bool(module.is_neox_style))
