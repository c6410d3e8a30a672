"""
Making a worker from what vLLM has loaded, and what the worker reports when the engine starts.

The report says how much memory is free for tails and what stands against reuse; the scheduler's side reads
it before the first request. A model whose rotation is not understood is refused here, once, and is then
served as plain vLLM.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn
from vllm import _custom_ops as custom_ops
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorHandshakeMetadata

from sternpost_engine.memory import free_bytes, is_host
from sternpost_engine.positions import model_of
from sternpost_engine.rotary import RotaryKernel, Rotation, no_rotation, rotation_of
from sternpost_engine.rotary_check import moves_like
from sternpost_engine.rotary_layers import UnknownRotaryError, live_modules, rotaries_of
from sternpost_engine.tensors import LayerShape
from sternpost_engine.worker import Layer, SuffixWorker

_FOREIGN: Final = (AttributeError, TypeError, RuntimeError, ValueError)
"""What a rotary module of vLLM or of a model's author raises when it has a form that is not known here."""


@dataclass
class WorkerReport(KVConnectorHandshakeMetadata):
    """
    What one worker says when the engine starts.

    `free_bytes` are free after weights and KV cache; `host` says that it is the host's memory, which the
    engine's workers share. `refusal` is what stands against reuse, if anything does, and `shifts_positions`
    says whether tails may be anchored.
    """

    free_bytes: int
    host: bool
    refusal: str | None = None
    shifts_positions: bool = False


class UnsupportedModelError(Exception):
    """The model's layers cannot be served from stored tails; the message says why."""


def make_worker(
    pages: Mapping[str, torch.Tensor],
    modules: Mapping[str, Any],
    *,
    dtype: torch.dtype,
    block_size: int,
    logger: logging.Logger,
) -> SuffixWorker:
    """
    Make the worker over vLLM's attention layers, `modules`, and their KV caches, `pages`, by layer name.

    Raises:
        UnsupportedModelError: when an attention backend has no cache update of its own, or a layer's keys
            are turned in a way that is not understood.
    """
    # A layer that shares another's KV has no keys of its own.
    owned = {name: modules[name] for name in pages if _target(modules[name]) is None}
    if not owned:
        raise UnsupportedModelError("the model has no attention layer with a KV cache")
    for name, module in owned.items():
        _check_backend(name, module)
    device = next(iter(pages.values())).device
    shapes = {name: shape_of(module, dtype) for name, module in owned.items()}
    live = live_modules()
    rotations = _rotations(owned, shapes, live, device)
    layers = [Layer(name, modules[name], pages[name], shapes[name], rotations[name]) for name in owned]
    model = model_of(owned.values(), live)
    return SuffixWorker(layers, block_size, device, time.perf_counter, logger, model)


def report_of(
    pages: Mapping[str, torch.Tensor], *, refusal: str | None = None, shifts_positions: bool = False
) -> WorkerReport:
    """Report the memory that is free on the device of the KV caches, and what the worker can do."""
    device = next((cache.device for cache in pages.values()), torch.device("cpu"))
    return WorkerReport(free_bytes(device), is_host(device), refusal, shifts_positions)


def shape_of(module: Any, dtype: torch.dtype) -> LayerShape:
    """Read the heads of vLLM's attention module on this worker."""
    value_dim = getattr(module, "head_size_v", None) or module.head_size
    return LayerShape(module.num_kv_heads, module.head_size, value_dim, dtype)


def _check_backend(name: str, module: Any) -> None:
    """
    Refuse a backend that writes its cache inside attention.

    Tails are kept on their way into the update, and copied by it; where attention itself writes, the keys
    of one row may also not be there yet when another row attends.
    """
    backend = module.attn_backend
    if backend.forward_includes_kv_cache_update or not hasattr(module.impl, "do_kv_cache_update"):
        raise UnsupportedModelError(
            f"layer {name}: attention backend {backend.get_name()} has no cache update of its own"
        )


def _rotations(
    attention: Mapping[str, Any],
    shapes: Mapping[str, LayerShape],
    live: list[nn.Module],
    device: torch.device,
) -> dict[str, Rotation]:
    try:
        rotaries = rotaries_of(attention, live, _known_rotaries())
    except UnknownRotaryError as error:
        raise UnsupportedModelError(str(error)) from error
    unturned = no_rotation(device)
    made: dict[int, Rotation] = {}
    for name, rotary in rotaries.items():
        if rotary is not None and id(rotary) not in made:
            made[id(rotary)] = checked_rotation(rotary, shapes[name], device, fused_rotation)
    return {name: unturned if rotary is None else made[id(rotary)] for name, rotary in rotaries.items()}


def checked_rotation(rotary: Any, shape: LayerShape, device: torch.device, kernel: RotaryKernel) -> Rotation:
    """
    Return the rotation of vLLM's rotary module, carried out by `kernel` where that does it right.

    Raises:
        UnsupportedModelError: when moved keys differ from those that the module computes.
    """
    kind = type(rotary).__name__
    try:
        rotation = rotation_of(rotary, device)
        right = _moves_right(rotary, rotation, shape)
    except _FOREIGN as error:
        raise UnsupportedModelError(f"rotary module {kind}: {type(error).__name__}") from error
    if not right:
        raise UnsupportedModelError(f"rotary module {kind}: moved keys differ from computed ones")
    fast = rotation.with_kernel(kernel)
    try:
        return fast if _moves_right(rotary, fast, shape) else rotation
    except _FOREIGN:
        # vLLM's kernel is not there for every device and every size of a head; torch's operators are.
        return rotation


def _moves_right(rotary: Any, rotation: Rotation, shape: LayerShape) -> bool:
    heads, head_dim = shape.kv_heads, shape.head_dim
    return moves_like(rotary, rotation, heads=heads, head_dim=head_dim, dtype=shape.dtype)


def fused_rotation(
    positions: torch.Tensor, keys: torch.Tensor, head_dim: int, table: torch.Tensor, neox: bool
) -> None:
    """Turn keys in place by vLLM's own kernel, which it turns queries with."""
    custom_ops.rotary_embedding(positions, keys, None, head_dim, table, neox)


def _known_rotaries() -> list[Any]:
    from vllm.model_executor.layers import rotary_embedding

    return list(rotary_embedding._ROPE_DICT.values())


def _target(module: Any) -> str | None:
    return getattr(module, "kv_sharing_target_layer_name", None)
