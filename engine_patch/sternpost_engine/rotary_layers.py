"""
Which rotary module turns the keys of which attention layer.

vLLM hands a connector its attention layers, but no model. The modules that own them are found among the live
ones, and an owner's rotary module is the layer's: a model may have one for all layers, others for local than
for global attention, or none in some of its layers.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from typing import Any, Final

from torch import nn

ROTARY_ATTRIBUTE: Final = "rotary_emb"
"""The name that vLLM's models give it; None there says that a layer's keys are not turned."""


class UnknownRotaryError(Exception):
    """It cannot be told how a layer's keys are turned; the message names the layer."""


def live_modules() -> list[nn.Module]:
    """Return all modules of this process; slow, for an engine's start alone."""
    # By type, because asking a lazy proxy for its class would load what stands behind it.
    return [found for found in gc.get_objects() if issubclass(type(found), nn.Module)]


def rotaries_of(
    attention: Mapping[str, Any], modules: Iterable[nn.Module], known: Iterable[Any]
) -> dict[str, Any]:
    """
    Return each layer's rotary module, None where its keys are not turned.

    `attention` are the layers by name, `modules` those among which their owners are, and `known` all rotary
    modules of the model: where an owner has none of its own, the only one there is must be its.

    Raises:
        UnknownRotaryError: where a layer has no rotary module, or more than one.
    """
    owners = _owners({id(module) for module in attention.values()}, modules)
    every = list({id(module): module for module in known}.values())
    return {name: _rotary_of(name, owners.get(id(layer), []), every) for name, layer in attention.items()}


def is_rotary(module: object) -> bool:
    """Whether this is one of vLLM's rotary modules."""
    return hasattr(module, "_compute_cos_sin_cache") and hasattr(module, "is_neox_style")


def _owners(layers: set[int], modules: Iterable[nn.Module]) -> dict[int, list[nn.Module]]:
    owners: dict[int, list[nn.Module]] = {}
    for module in modules:
        for child in module.children():
            if id(child) in layers:
                owners.setdefault(id(child), []).append(module)
    return owners


def _rotary_of(name: str, owners: list[nn.Module], every: list[Any]) -> Any:
    own = {id(child): child for owner in owners for child in owner.children() if is_rotary(child)}
    if len(own) == 1:
        return next(iter(own.values()))
    if len(own) > 1:
        raise UnknownRotaryError(f"layer {name} has {len(own)} rotary modules; 1 is supported")
    if any(getattr(owner, ROTARY_ATTRIBUTE, owner) is None for owner in owners):
        return None
    if len(every) == 1:
        return every[0]
    raise UnknownRotaryError(f"layer {name} has no rotary module of its own, and the model has {len(every)}")
