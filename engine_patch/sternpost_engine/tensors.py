"""
The tensors of stored tails, on a worker.

A tail's value is, per layer, K before rotation in float32 and V in the model's dtype, contiguous, with the
shapes [tokens, kv_heads, head_dim] and [tokens, kv_heads, value_dim]. It is held once as it was built after
the scaffold, and once more for each calibrated mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sternpost_engine.calibration import SCAFFOLD, Mix

DUPLICATE_TOLERANCE = 0.02
"""How far apart two first-layer keys of one token may lie, as a share of the largest: bf16's rounding."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The heads of one layer on this worker."""

    kv_heads: int
    head_dim: int
    value_dim: int
    dtype: torch.dtype


@dataclass(slots=True)
class TailKV:
    """One copy of a tail's KV over all layers, and how many tokens of each layer have been written."""

    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    written: list[int]

    def put(self, layer: int, offset: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write a run of unrotated keys and values; a build that starts over begins at offset 0 again."""
        count = keys.shape[0]
        self.keys[layer][offset : offset + count] = keys
        self.values[layer][offset : offset + count] = values
        self.written[layer] = offset + count if offset == 0 else self.written[layer] + count

    def clear(self) -> None:
        """Count nothing as written, so that the next sample cannot be taken for this one."""
        self.written = [0] * len(self.written)

    @property
    def whole(self) -> bool:
        """Whether every layer holds every token."""
        return all(count == keys.shape[0] for count, keys in zip(self.written, self.keys, strict=True))


@dataclass(slots=True)
class Mean:
    """The running mean of samples, in float32 until it is complete."""

    kv: TailKV
    samples: int = 0

    def add(self, number: int, sample: TailKV) -> None:
        """
        Take the sample of this number into the mean; numbers come in order, from 0 on.

        One that is in already counts no second time: a sample is computed anew where it was given up while
        its last step was in flight, or where another worker failed.
        """
        if number < self.samples:
            return
        self.samples += 1
        share = 1.0 / self.samples
        for mean, new in zip(self.kv.keys, sample.keys, strict=True):
            mean.lerp_(new, share)
        for mean, new in zip(self.kv.values, sample.values, strict=True):
            mean.lerp_(new.to(torch.float32), share)

    def complete(self, shapes: Sequence[LayerShape]) -> None:
        """Round the values to the model's dtype, once."""
        self.kv.values = [value.to(shape.dtype) for value, shape in zip(self.kv.values, shapes, strict=True)]


@dataclass(slots=True)
class StoredTail:
    """A tail's token ids, its KV after the scaffold, and its means; `sample` is being computed."""

    tokens: tuple[int, ...]
    scaffold: TailKV
    means: dict[int, Mean]
    sample: TailKV | None = None

    def variant(self, number: int) -> TailKV:
        """
        Return one copy of the tail's KV.

        Raises:
            KeyError: when there is no such mean.
        """
        return self.scaffold if number == SCAFFOLD else self.means[number].kv

    def mixed(self, layer: int, offset: int, count: int, mix: Mix) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Return the keys and values of `count` tokens from `offset` on, in this mix of variants.

        One variant alone is not copied.
        """
        run = slice(offset, offset + count)
        first, *rest = ((self.variant(variant), share) for variant, share in mix.shares)
        keys, values = first[0].keys[layer][run], first[0].values[layer][run]
        for kv, share in rest:
            # Two variants at most, whose shares add up to 1.
            keys = torch.lerp(keys, kv.keys[layer][run], share)
            values = torch.lerp(values, kv.values[layer][run], share)
        return keys, values

    def rotation_holds(self) -> bool:
        """
        Check the arithmetic on what was built.

        Before rotation, a first layer's key depends on its token alone. So wherever a token occurs twice, the
        two unrotated keys must be equal up to rounding; they differ when the angles were not the model's.
        """
        pairs = _repeated(self.tokens)
        if not pairs:
            return True
        keys = self.scaffold.keys[0]
        first = keys[[pair[0] for pair in pairs]]
        second = keys[[pair[1] for pair in pairs]]
        return bool((first - second).abs().max() <= DUPLICATE_TOLERANCE * keys.abs().max())


def allocate(
    tokens: int, shapes: Sequence[LayerShape], device: torch.device, *, precise: bool = False
) -> TailKV:
    """Make room for one copy of so many tokens; `precise` holds the values in float32 too, for a mean."""
    return TailKV(
        keys=[
            torch.zeros((tokens, shape.kv_heads, shape.head_dim), dtype=torch.float32, device=device)
            for shape in shapes
        ],
        values=[
            torch.zeros(
                (tokens, shape.kv_heads, shape.value_dim),
                dtype=torch.float32 if precise else shape.dtype,
                device=device,
            )
            for shape in shapes
        ],
        written=[0] * len(shapes),
    )


def bytes_per_token(shapes: Sequence[LayerShape]) -> int:
    """The size of one stored token over all layers, in bytes."""
    key_bytes = torch.finfo(torch.float32).bits // 8
    return sum(
        shape.kv_heads * (shape.head_dim * key_bytes + shape.value_dim * torch.finfo(shape.dtype).bits // 8)
        for shape in shapes
    )


def _repeated(tokens: Sequence[int]) -> list[tuple[int, int]]:
    """Positions of each token's first and last occurrence, where it occurs more than once."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for position, token in enumerate(tokens):
        first.setdefault(token, position)
        last[token] = position
    return [(first[token], last[token]) for token in first if first[token] != last[token]]
