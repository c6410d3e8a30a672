"""The simulated cache beside vLLM's own, block for block, and the read tokenizer beside the hub's library."""

from __future__ import annotations

import os
import random
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pytest

from bench.agent_log.compare import compare
from bench.agent_log.vllm_parts import VllmCache
from sternpost_engine.model_fetch import default_directory
from sternpost_fakes.vllm_modules import import_object
from sternpost_gateway.lint.cache import PrefixCache, block_hashes
from sternpost_gateway.lint.encoders import pack
from sternpost_gateway.lint.model_tokenizer import load_model_tokenizer

pytestmark = pytest.mark.engine

BLOCK: Final = 16
REQUESTS: Final = 500
DIFFERENCE_MAX: Final = 0.02


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
    vllm, simulated = VllmCache(blocks, BLOCK), PrefixCache(blocks)
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


def test_predicted_reuse_is_counted_reuse(tmp_path: Path) -> None:
    """From the log's bytes to vLLM's own counters, today and with the proposed policy."""
    found = compare(default_directory(os.environ), tmp_path, REQUESTS, seed=5)

    assert {"Pin", "RequestId", "Tail", "Timestamp"} == {fix.name for fix in found.report.fixes}
    assert max(found.differences) <= DIFFERENCE_MAX
    assert found.fixed > found.today + 0.5
