"""What lint predicts of a log beside the prefix counters of the real vLLM that is sent the log's requests."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from bench.agent_log.compare import as_sent, predict
from bench.agent_log.vllm_parts import write_tokenizer
from sternpost_engine.model_fetch import default_directory, is_model
from sternpost_gateway.bench.agents import agent_bodies
from sternpost_gateway.lint.simulate import CacheShape
from sternpost_running.engine import RunningEngine, running_engine

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

REQUESTS = 24
SEED = 5
BLOCKS = 129
"""Of 32 tokens, one of them vLLM's own: fewer than the requests' tokens, so that the cache has to forget."""

SHAPE = CacheShape(block_tokens=32, cache_tokens=32 * (BLOCKS - 1))
DIFFERENCE_MAX = 0.01
"""By how much a prediction of reuse may be off."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model's tokenizer, with a template that renders tools."""
    source = default_directory(os.environ)
    assert is_model(source), "run `sternpost model fetch` first"
    return write_tokenizer(source, tmp_path_factory.mktemp("lint") / "model")


@pytest.fixture(scope="module")
def engine(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    """A real engine with few blocks and that template."""
    log = tmp_path_factory.mktemp("engine") / "engine.log"
    arguments = ["--block-size", "32", "--num-gpu-blocks-override", str(BLOCKS)]
    arguments += ["--max-model-len", str(SHAPE.cache_tokens)]
    arguments += ["--chat-template", str(model / "chat_template.jinja")]
    # Without them vLLM refuses a request that has tools.
    arguments += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    with running_engine(default_directory(os.environ), log, *arguments) as running:
        yield running


def counted(engine: RunningEngine, sent: Iterable[tuple[bytes, str | None]]) -> float:
    """Send bodies with their salts, one after the other, and return the share of tokens that vLLM reused."""
    engine.forget_prefixes()
    names = ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total")
    before = [engine.metric(name) for name in names]
    for body, salt in sent:
        request = {**json.loads(body), "model": engine.model}
        engine.post("/v1/chat/completions", request if salt is None else {**request, "cache_salt": salt})
    hits, queries = (engine.metric(name) - was for name, was in zip(names, before, strict=True))
    return hits / queries


def test_predictions_are_what_the_engine_counts(engine: RunningEngine, model: Path, tmp_path: Path) -> None:
    """Of the requests as they are, and as a gateway with the proposed policy sends them."""
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"\n".join(agent_bodies(REQUESTS, SEED)) + b"\n")
    report, takes_later_system = predict(log, model, SHAPE)
    assert report.policy is not None

    today = counted(engine, ((body, None) for body in log.read_bytes().splitlines()))
    fixed = counted(engine, as_sent(log, report.policy, takes_later_system=takes_later_system))

    assert report.reuse == pytest.approx(today, abs=DIFFERENCE_MAX)
    assert report.reuse_fixed == pytest.approx(fixed, abs=DIFFERENCE_MAX)
    assert fixed > today
    print(f"reuse today {report.reuse:.4f} predicted, {today:.4f} counted", end="; ")
    print(f"fixed {report.reuse_fixed:.4f} predicted, {fixed:.4f} counted")
