"""
How a tail's KV is made: after a scaffold, after nothing, or as means over calibration middles.

A full prefill computes context and tail; what the cache then holds of the tail is taken, its rotation taken
back, so that it can stand anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from sternpost_engine.calibration import Calibrator, Sample
from sternpost_engine.reference.cache import SlotCache
from sternpost_engine.reference.model import ReferenceModel
from sternpost_engine.reference.splice import prefill
from sternpost_engine.tensors import Mean, StoredTail, TailKV, allocate


def encode_tail(model: ReferenceModel, context: Sequence[int], tail: Sequence[int]) -> TailKV:
    """Return the tail's KV as it is behind `context`; an empty one encodes it alone, from position 0."""
    cache = model.new_cache(len(context) + len(tail))
    prefill(model, cache, context, tail)
    return take_tail(model, cache, len(context), len(tail))


def take_tail(model: ReferenceModel, cache: SlotCache, start: int, count: int) -> TailKV:
    """Return the KV of `count` tokens that stand from slot and position `start` on in a filled cache."""
    kv = allocate(count, model.shapes, model.device)
    for layer in range(len(model.shapes)):
        rotated, values = cache.read(layer, start, count)
        keys = torch.empty_like(kv.keys[layer])
        model.rotation.unrotate(rotated.to(torch.float32), start, keys)
        kv.put(layer, 0, keys, values)
    return kv


def build_tail(model: ReferenceModel, scaffold: Sequence[int], tail: Sequence[int]) -> StoredTail:
    """Return a tail as a build leaves it: after its scaffold, without means."""
    return StoredTail(tuple(tail), encode_tail(model, scaffold, tail), means={})


def add_means(
    model: ReferenceModel,
    stored: StoredTail,
    calibrator: Calibrator,
    tell: Callable[[Sample], object] = lambda sample: None,
) -> dict[int, int]:
    """
    Compute the samples that `calibrator` hands out, and add their means to the tail.

    `tell` is called after each sample. Returns the number of samples of each mean, by its variant.
    """
    while (sample := calibrator.next_sample(0.0, idle=True)) is not None:
        context = sample.prompt[: -sample.tail_tokens]
        kv = encode_tail(model, context, stored.tokens)
        mean = stored.means.get(sample.variant)
        if mean is None:
            empty = allocate(len(stored.tokens), model.shapes, model.device, precise=True)
            mean = stored.means[sample.variant] = Mean(empty)
        mean.add(sample.number, kv)
        calibrator.done(sample, 0.0, computed=True)
        tell(sample)
    for mean in stored.means.values():
        mean.complete(model.shapes)
    return {variant: mean.samples for variant, mean in stored.means.items()}
