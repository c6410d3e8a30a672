"""Reads on the real vLLM with too few KV blocks: preempted and started again, and exact in float32."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from sternpost_engine.command_engine import CONNECTOR
from sternpost_engine.model_fetch import default_directory, is_model
from sternpost_running.engine import RunningEngine, Tail, running_engine

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]

BLOCKS = 64
"""KV blocks of 32 tokens, one of them vLLM's own: two of the requests fit, and not to their end."""

ANSWER_TOKENS = 60

LOGPROB_TOLERANCE = 1e-3
"""Float32, with sums in another order."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    """A real engine with few blocks."""
    model = default_directory(os.environ)
    assert is_model(model), "run `sternpost model fetch` first"
    config = json.dumps({**CONNECTOR, "kv_connector_extra_config": {"pool_bytes": 3 * 10**8}})
    log = tmp_path_factory.mktemp("pressure") / "engine.log"
    arguments = ["--block-size", "32", "--num-gpu-blocks-override", str(BLOCKS), "--max-model-len", "1984"]
    arguments += ["--max-num-batched-tokens", "512"]
    with running_engine(model, log, "--kv-transfer-config", config, *arguments) as running:
        yield running


@pytest.fixture(scope="module")
def scenes(engine: RunningEngine) -> list[tuple[str, Tail]]:
    """Questions, each with a tail that was built after it, so that a splice is exact."""
    made = []
    for number in range(4):
        question = f"Please tell me what shop {number} sells. " + "Be kind. " * 100
        rules = " ".join(f"Rule {n}: clerk {number} answers and names no article {n}." for n in range(36))
        tail = engine.tail(rules, before=[{"role": "user", "content": question}])
        assert "built" == engine.build(tail)["reason"]
        made.append((question, tail))
    engine.forget_prefixes()
    return made


def test_preempted_reads_answer_exactly(engine: RunningEngine, scenes: list[tuple[str, Tail]]) -> None:
    """Whether they find their blocks again, are spliced again, or both."""
    exact = []
    for question, tail in scenes:
        exact.append(engine.ask(question, tail, tokens=ANSWER_TOKENS, hint={"op": "off"}))
        engine.forget_prefixes()
    before = engine.metric("vllm:num_preemptions_total")

    with ThreadPoolExecutor(len(scenes)) as pool:
        answers = list(pool.map(lambda scene: engine.ask(scene[0], scene[1], tokens=ANSWER_TOKENS), scenes))

    assert engine.metric("vllm:num_preemptions_total") > before
    for expected, answer in zip(exact, answers, strict=True):
        assert "hit" == answer.report["reason"]
        assert expected.text == answer.text
        assert pytest.approx(expected.logprobs, abs=LOGPROB_TOLERANCE) == answer.logprobs
    assert 0.0 == engine.metric("vllm:kv_cache_usage_perc")
