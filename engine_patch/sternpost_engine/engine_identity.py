"""The engine's own part of a tail's identity: whatever of model and engine changes the KV of equal tokens."""

from __future__ import annotations

from hashlib import sha256
from typing import Any


def describe_engine(vllm_config: Any) -> str:
    """
    Sum up model, dtypes, RoPE parameters and parallel layout as a SHA-256 in hexadecimal.

    Two engines with equal sums compute the same KV for the same tokens, up to rounding. The rank of a worker
    is no part: each holds its own heads of a tail, under the one key that all ranks share.
    """
    model, parallel, cache = vllm_config.model_config, vllm_config.parallel_config, vllm_config.cache_config
    text_config = model.hf_text_config
    parts = {
        "model": model.model,
        "revision": model.revision,
        "quantization": model.quantization,
        "weights_dtype": model.dtype,
        "kv_dtype": cache.cache_dtype,
        "rope": getattr(text_config, "rope_parameters", None),
        "rope_theta": getattr(text_config, "rope_theta", None),
        "partial_rotary_factor": getattr(text_config, "partial_rotary_factor", None),
        "rope_scaling": getattr(text_config, "rope_scaling", None),
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "tokenizer": model.tokenizer,
        "tokenizer_revision": model.tokenizer_revision,
    }
    digest = sha256(b"sternpost-engine-1")
    for name, value in parts.items():
        part = _canonical(value).encode()
        digest.update(f"{name}:{len(part)}:".encode())
        digest.update(part)
    return digest.hexdigest()


def _canonical(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}={_canonical(value[key])}" for key in sorted(value, key=str)) + "}"
    return str(value)
