"""vLLM's own scheduler with this project's adapter, over a model that is a configuration alone."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from sternpost_engine.command_engine import CONNECTOR
from sternpost_engine.support import SCHEDULER
from sternpost_fakes.vllm_modules import import_object

BLOCK_TOKENS: Final = 8
"""Tokens of a KV block."""

STEP_TOKENS: Final = 128
"""Tokens of a step; ordinary rows keep more than half of them."""

ROWS: Final = 6
"""Requests that run at once, with the rows that ride along."""

LENGTH_MAX: Final = 400

_MODEL: Final = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 1,
    "vocab_size": 10_000,
    "max_position_embeddings": LENGTH_MAX,
}


def make_real_scheduler(
    folder: Path, *, blocks: int, policy: str = "fcfs", async_scheduling: bool = False
) -> Any:
    """Return a scheduler over so many KV blocks; `folder` is where the model's configuration is written."""
    (folder / "config.json").write_text(json.dumps(_MODEL))
    with warnings.catch_warnings():
        # Parts of torch that are imported here warn of each other.
        warnings.simplefilter("ignore")
        return _make_scheduler(folder, blocks, policy, async_scheduling)


def _make_scheduler(folder: Path, blocks: int, policy: str, async_scheduling: bool) -> Any:
    config = _engine_config(folder, policy, async_scheduling)
    spec = import_object("vllm.v1.kv_cache_interface:FullAttentionSpec")(
        block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=32, dtype=config.model_config.dtype
    )
    group = import_object("vllm.v1.kv_cache_interface:KVCacheGroupSpec")(["layer"], spec)
    config.cache_config.num_gpu_blocks = blocks
    manager = import_object("vllm.v1.structured_output:StructuredOutputManager")(config)
    return import_object("sternpost_engine.scheduler:SternpostScheduler")(
        vllm_config=config,
        kv_cache_config=import_object("vllm.v1.kv_cache_interface:KVCacheConfig")(
            num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[group]
        ),
        structured_output_manager=manager,
        block_size=BLOCK_TOKENS,
        log_stats=True,
    )


def _engine_config(folder: Path, policy: str, async_scheduling: bool) -> Any:
    transfer = {
        **CONNECTOR,
        "kv_connector_extra_config": {"pool_bytes": 10**6, "tail_tokens_min": 16, "tail_share_min": 0.05},
    }
    arguments = import_object("vllm.engine.arg_utils:EngineArgs")(
        model=str(folder),
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=LENGTH_MAX,
        block_size=BLOCK_TOKENS,
        max_num_batched_tokens=STEP_TOKENS,
        max_num_seqs=ROWS,
        scheduling_policy=policy,
        scheduler_cls=SCHEDULER,
        kv_transfer_config=import_object("vllm.config:KVTransferConfig")(**transfer),
        enable_prefix_caching=True,
    )
    config = arguments.create_engine_config()
    config.scheduler_config.async_scheduling = async_scheduling
    return config


def request_maker() -> Callable[..., Any]:
    """Return what makes a request of vLLM whose blocks are hashed as vLLM hashes them."""
    hash_function = import_object("vllm.utils.hashing:sha256")
    import_object("vllm.v1.core.kv_cache_utils:init_none_hash")(hash_function)
    hasher = import_object("vllm.v1.core.kv_cache_utils:get_request_block_hasher")(
        BLOCK_TOKENS, hash_function
    )
    sampling = import_object("vllm.sampling_params:SamplingParams")
    kind = import_object("vllm.v1.request:Request")

    def make(
        request_id: str,
        prompt: list[int],
        *,
        transfer: Any,
        salt: str,
        answer_tokens: int,
        priority: int,
        apart: bool,
    ) -> Any:
        return kind(
            request_id=request_id,
            prompt_token_ids=list(prompt),
            sampling_params=sampling(
                max_tokens=answer_tokens,
                ignore_eos=True,
                skip_reading_prefix_cache=apart or None,
                extra_args={"kv_transfer_params": transfer},
            ),
            pooling_params=None,
            cache_salt=salt,
            priority=priority,
            block_hasher=hasher,
        )

    return make
