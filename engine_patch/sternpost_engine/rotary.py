"""
Rotary positions of stored keys.

Keys are stored as they were before rotation, in float32, so that each use rotates once and rounds once: a
key rotated by an angle and again by a difference would be rounded twice, and its error would grow with use.
The rotation is that of RoPE (arXiv 2104.09864); the angles come from the model's own rotary module, so that
scaled variants (linear, llama3, YaRN) need no code of their own here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import torch

POSITIONS_UNTURNED: Final = 2**31
"""How many positions a rotation that turns nothing knows: more than any model has."""


class RotaryKernel(Protocol):
    """A kernel that turns keys in place."""

    def __call__(
        self, positions: torch.Tensor, keys: torch.Tensor, head_dim: int, table: torch.Tensor, neox: bool
    ) -> None:
        """
        Turn `keys`, [tokens, heads * head_dim], each token to its position, int64.

        `table` holds cosines and sines, [positions, rotary_dim]; all are float32 but the positions.
        """


@dataclass(frozen=True, slots=True, eq=False)
class Rotation:
    """
    The angles of one rotary module, as unit vectors.

    `cos` and `sin` have the shape [positions, rotary_dim / 2], float32. `neox` says that a head's two halves
    are paired (Llama); otherwise neighbours are paired (GPT-J). Dimensions past `rotary_dim` stay as
    they are. With a `kernel` keys are turned by it, from `table`, which holds the cosines and the sines of
    each position side by side.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    neox: bool
    kernel: RotaryKernel | None = None
    table: torch.Tensor | None = None

    def with_kernel(self, kernel: RotaryKernel) -> Rotation:
        """Return the same rotation, carried out by `kernel`."""
        return replace(self, kernel=kernel, table=torch.cat((self.cos, self.sin), dim=-1))

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
        self.turn(position, keys.shape[0], keys.shape[1]).apply(keys, out)

    def unrotate(self, keys: torch.Tensor, position: int, out: torch.Tensor) -> None:
        """Take back the rotation of `keys` that stand from `position` on; shapes as in `rotate`."""
        self.turn(position, keys.shape[0], keys.shape[1], inverse=True).apply(keys, out)

    def turn(self, position: int, tokens: int, heads: int, *, inverse: bool = False) -> Turn | KernelTurn:
        """Return the turn of so many tokens from `position` on, for use with the keys of every layer."""
        assert position + tokens <= self.positions, "positions are inside the model's length"
        if self.kernel is not None and self.table is not None and not inverse:
            positions = torch.arange(position, position + tokens, device=self.cos.device)
            return KernelTurn(self.kernel, positions, self.table, self.neox)
        cos = self.cos[position : position + tokens].unsqueeze(1)
        sin = self.sin[position : position + tokens].unsqueeze(1)
        sin = -sin if inverse else sin
        if self.neox:
            cos, sin = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
        # Repeated for each head, because a CPU multiplies contiguous memory twice as fast as broadcast rows.
        return Turn(cos.repeat(1, heads, 1), sin.repeat(1, heads, 1), self.neox)


@dataclass(frozen=True, slots=True)
class KernelTurn:
    """The turn of a run of tokens by a kernel, which reads each key once and needs no angles per head."""

    kernel: RotaryKernel
    positions: torch.Tensor
    table: torch.Tensor
    neox: bool

    def apply(self, keys: torch.Tensor, out: torch.Tensor) -> None:
        """Turn `keys` into `out`; both [tokens, heads, head_dim], float32, without shared memory."""
        out.copy_(keys)
        self.kernel(self.positions, out.view(out.shape[0], -1), out.shape[-1], self.table, self.neox)


@dataclass(frozen=True, slots=True)
class Turn:
    """
    The angles of a run of tokens, for every head.

    Where halves are paired, `cos` and `sin` have the shape [tokens, heads, rotary_dim] and `sin` carries the
    sign of each half; where neighbours are paired, the last dimension is rotary_dim / 2.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    neox: bool

    def apply(self, keys: torch.Tensor, out: torch.Tensor) -> None:
        """Turn `keys` into `out`; both [tokens, heads, head_dim], float32, without shared memory."""
        if self.neox:
            self._turn_halves(keys, out)
        else:
            self._turn_neighbours(keys, out)

    def _turn_halves(self, keys: torch.Tensor, out: torch.Tensor) -> None:
        # Whole heads are contiguous: on a CPU this takes a quarter of the time that separate halves take.
        dim = self.cos.shape[-1]
        turned, rest = out[..., :dim], out[..., dim:]
        torch.mul(keys[..., :dim], self.cos, out=turned)
        turned.addcmul_(torch.roll(keys[..., :dim], dim // 2, dims=-1), self.sin)
        if rest.numel():
            rest.copy_(keys[..., dim:])

    def _turn_neighbours(self, keys: torch.Tensor, out: torch.Tensor) -> None:
        dim = 2 * self.cos.shape[-1]
        first, second = keys[..., 0:dim:2], keys[..., 1:dim:2]
        out[..., 0:dim:2] = first * self.cos - second * self.sin
        out[..., 1:dim:2] = second * self.cos + first * self.sin
        out[..., dim:] = keys[..., dim:]


def no_rotation(device: torch.device) -> Rotation:
    """Return the rotation of a layer whose keys are not turned: no dimension takes part."""
    empty = torch.empty((POSITIONS_UNTURNED, 0), dtype=torch.float32, device=device)
    return Rotation(empty, empty, neox=False)


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
