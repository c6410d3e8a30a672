"""Which models the reference engine can splice, decided from a transformers configuration alone."""

from __future__ import annotations

from typing import Any, Final

from sternpost_core.errors import OperatingError

ROPE_TYPES: Final = ("default", "linear", "llama3", "yarn")
"""RoPE whose angles do not change with a prompt's length; `dynamic` and `longrope` turn old keys anew."""

LAYER_TYPES: Final = ("full_attention", "sliding_attention")
"""A sliding window bounds the positions; inside of it, it attends to everything."""

ATTENTION: Final = ("sdpa", "eager")
"""Implementations of attention that take a mask of any form."""

POSITIONS_MAX: Final = 65_536
"""Angles are held for so many positions at most, however many the model knows."""


class UnsupportedModelError(OperatingError):
    """The model's keys cannot be moved, or its layers hold something else than keys and values."""


def check_config(config: Any) -> None:
    """
    Refuse a configuration that the reference engine cannot splice.

    Raises:
        UnsupportedModelError: which names what stands in the way.
    """
    reasons = (
        ("an encoder and a decoder", bool(getattr(config, "is_encoder_decoder", False))),
        ("multi-head latent attention", getattr(config, "kv_lora_rank", None) is not None),
        ("layers of other kinds than attention", not _attends_everywhere(config)),
    )
    for reason, refused in reasons:
        if refused:
            raise UnsupportedModelError(f"the model has {reason}, which the reference engine cannot splice")
    attention = getattr(config, "_attn_implementation", ATTENTION[0])
    if attention not in ATTENTION:
        raise UnsupportedModelError(
            f"attention {attention!r} is not supported; supported: {', '.join(ATTENTION)}"
        )
    _check_rope(getattr(config, "rope_parameters", None))


def position_limit(config: Any) -> int:
    """Return how many positions can be used: the model's own, a window's, or `POSITIONS_MAX`."""
    limits = [POSITIONS_MAX, int(getattr(config, "max_position_embeddings", POSITIONS_MAX))]
    window = getattr(config, "sliding_window", None)
    if window is not None:
        limits.append(int(window))
    return min(limits)


def _attends_everywhere(config: Any) -> bool:
    return set(getattr(config, "layer_types", None) or LAYER_TYPES) <= set(LAYER_TYPES)


def _check_rope(parameters: Any) -> None:
    if not isinstance(parameters, dict) or "rope_type" not in parameters:
        raise UnsupportedModelError("the model does not have one set of rotary positions for all its layers")
    kind = parameters["rope_type"]
    if kind not in ROPE_TYPES:
        raise UnsupportedModelError(
            f"rope_type {kind!r} is not supported; supported: {', '.join(ROPE_TYPES)}"
        )
