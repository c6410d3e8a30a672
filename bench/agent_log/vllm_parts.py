"""
vLLM's own parts that decide about prefix reuse, without an engine around them.

Its parser of requests, the chat template by the hub's library, and its cache manager with the very counters
that `vllm:prefix_cache_queries` and `vllm:prefix_cache_hits` show. What they are given is token ids, so no
weights are needed, and 10,000 requests take minutes on one core.
"""

from __future__ import annotations

import importlib
import json
import shutil
import warnings
from pathlib import Path
from typing import Any, Final

TOKENS_MAX: Final = 8192
"""Tokens of the longest prompt."""

TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer_config.json")

CHAT_TEMPLATE: Final = """{%- if tools %}<|im_start|>system
# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif -%}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}
"""
"""Tools first, then every message as it comes, a system's too, wherever it stands."""


def write_tokenizer(source: Path, folder: Path) -> Path:
    """Write a model's tokenizer to `folder`, with a template that renders tools, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        shutil.copy(source / name, folder / name)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    return folder


class VllmPrompts:
    """Turns the body of a chat into token ids as vLLM's server does."""

    def __init__(self, directory: Path) -> None:
        self._tokenizer = _load("transformers:AutoTokenizer").from_pretrained(str(directory))
        self._request: Any = _load("vllm.entrypoints.openai.chat_completion.protocol:ChatCompletionRequest")

    def tokens(self, body: bytes) -> list[int]:
        """Return a body's token ids."""
        request = self._request.model_validate(json.loads(body))
        tools = [tool.model_dump() for tool in request.tools] if request.tools else None
        text = self._tokenizer.apply_chat_template(
            request.messages, tools=tools, tokenize=False, add_generation_prompt=True
        )
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return tokens


class VllmCache:
    """vLLM's cache manager, which gets one request after the other; `queries` and `hits` are its counters."""

    def __init__(self, blocks: int, block_tokens: int) -> None:
        spec = _load("vllm.v1.kv_cache_interface:FullAttentionSpec")(
            block_size=block_tokens, num_kv_heads=1, head_size=64, dtype=_load("torch:float32")
        )
        group = _load("vllm.v1.kv_cache_interface:KVCacheGroupSpec")(["layer"], spec)
        config = _load("vllm.v1.kv_cache_interface:KVCacheConfig")(
            # One block is the manager's own.
            num_blocks=blocks + 1,
            kv_cache_tensors=[],
            kv_cache_groups=[group],
        )
        hashing = _load("vllm.utils.hashing:sha256")
        _load("vllm.v1.core.kv_cache_utils:init_none_hash")(hashing)
        self._hasher = _load("vllm.v1.core.kv_cache_utils:get_request_block_hasher")(block_tokens, hashing)
        self._manager: Any = _load("vllm.v1.core.kv_cache_manager:KVCacheManager")(
            config,
            max_model_len=TOKENS_MAX,
            scheduler_block_size=block_tokens,
            hash_block_size=block_tokens,
            log_stats=True,
        )
        self._request: Any = _load("vllm.v1.request:Request")
        self._sampling = _load("vllm:SamplingParams")(max_tokens=1)
        self.requests = self.queries = self.hits = 0

    def take(self, tokens: list[int], salt: str | None = None) -> int:
        """Return how many of a prompt's tokens are there, compute the rest, and end the request."""
        request = self._request(
            request_id=str(self.requests),
            prompt_token_ids=tokens,
            sampling_params=self._sampling,
            pooling_params=None,
            cache_salt=salt,
            block_hasher=self._hasher,
        )
        computed, held, _ = self._manager.get_computed_blocks(request)
        self._manager.record_prefix_cache_stats(request, held)
        assert self._manager.allocate_slots(request, len(tokens) - held, held, computed) is not None
        self._manager.free(request)
        self._count()
        return int(held)

    @property
    def reuse(self) -> float:
        """Return the share of prompt tokens, from 0 to 1, that were there."""
        return self.hits / self.queries

    def _count(self) -> None:
        stats = self._manager.make_prefix_cache_stats()
        self.requests += 1
        self.queries += stats.queries
        self.hits += stats.hits


def _load(path: str) -> Any:
    """Return `package.module:name`; what vLLM warns of when it is imported is its own affair."""
    module, _, name = path.partition(":")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(importlib.import_module(module), name)
