"""The simulated cache beside vLLM's own, block for block, and the read tokenizer beside the hub's library."""

from __future__ import annotations

import os
import random
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pytest

from sternpost_engine.model_fetch import default_directory
from sternpost_fakes.vllm_modules import import_object
from sternpost_gateway.lint.cache import PrefixCache, block_hashes
from sternpost_gateway.lint.encoders import pack
from sternpost_gateway.lint.model_tokenizer import load_model_tokenizer

pytestmark = pytest.mark.engine

BLOCK: Final = 16
TOKENS_MAX: Final = 4096


class VllmCache:
    """vLLM's cache manager, which gets one request after the other."""

    def __init__(self, blocks: int) -> None:
        spec = import_object("vllm.v1.kv_cache_interface:FullAttentionSpec")(
            block_size=BLOCK, num_kv_heads=1, head_size=64, dtype=import_object("torch:float32")
        )
        group = import_object("vllm.v1.kv_cache_interface:KVCacheGroupSpec")(["layer"], spec)
        config = import_object("vllm.v1.kv_cache_interface:KVCacheConfig")(
            # One block is the manager's own.
            num_blocks=blocks + 1,
            kv_cache_tensors=[],
            kv_cache_groups=[group],
        )
        hashing = import_object("vllm.utils.hashing:sha256")
        import_object("vllm.v1.core.kv_cache_utils:init_none_hash")(hashing)
        hasher = import_object("vllm.v1.core.kv_cache_utils:get_request_block_hasher")
        self._hasher = hasher(BLOCK, hashing)
        self._manager: Any = import_object("vllm.v1.core.kv_cache_manager:KVCacheManager")(
            config, max_model_len=TOKENS_MAX, scheduler_block_size=BLOCK, hash_block_size=BLOCK
        )
        self._count = 0

    def take(self, tokens: list[int]) -> int:
        """Return how many of a prompt's tokens are there, compute the rest, and end the request."""
        self._count += 1
        request = import_object("vllm.v1.request:Request")(
            request_id=str(self._count),
            prompt_token_ids=tokens,
            sampling_params=import_object("vllm:SamplingParams")(max_tokens=1),
            pooling_params=None,
            block_hasher=self._hasher,
        )
        computed, held, _ = self._manager.get_computed_blocks(request)
        assert self._manager.allocate_slots(request, len(tokens) - held, held, computed) is not None
        self._manager.free(request)
        return int(held)


@pytest.mark.parametrize(
    ("blocks", "seed"),
    [
        pytest.param(400, 1, id="room-for-all"),
        pytest.param(64, 2, id="some-are-forgotten"),
        pytest.param(20, 3, id="most-are-forgotten"),
    ],
)
def test_the_simulated_cache_is_vllms(blocks: int, seed: int) -> None:
    """Prompts of a few common openings, each with an end of its own: the same hits, one by one."""
    chance = random.Random(seed)
    openings = [[chance.randrange(1000) for _ in range(chance.randrange(0, 200))] for _ in range(6)]
    vllm, simulated = VllmCache(blocks), PrefixCache(blocks)
    for _ in range(300):
        tokens = chance.choice(openings) + [chance.randrange(3) for _ in range(chance.randrange(1, 60))]
        partial = int(len(tokens) % BLOCK > 0)
        held = simulated.take(block_hashes(pack(tokens), "", BLOCK), (len(tokens) - 1) // BLOCK, partial)

        assert vllm.take(tokens) == held * BLOCK


def test_the_tokenizer_that_is_read_is_the_hubs() -> None:
    """The same text from the template, and the same tokens from the text."""
    directory = default_directory(os.environ)
    ours = load_model_tokenizer(Path(directory), datetime(2026, 3, 2))
    theirs: Any = import_object("transformers:AutoTokenizer").from_pretrained(str(directory))
    messages = [
        {"role": "system", "content": "Be brief.\n  Now."},
        {"role": "user", "content": "Où est le nord? <|im_end|> 1234"},
    ]
    text = ours.render(messages, None, closed=True, options={})

    assert theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == text
    assert theirs.encode(text, add_special_tokens=False) == list(ours.ids(text, opened=False))
    assert theirs.encode("a b") == list(ours.ids("a b", opened=True))
