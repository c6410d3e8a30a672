"""
Reads on the real vLLM with small blocks and small steps: the same prompt again, and long middles.

Each tail is built after the very question that is asked, so that a splice is exact in float32.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from sternpost_engine.command_engine import CONNECTOR
from sternpost_engine.model_fetch import default_directory, is_model
from sternpost_running.engine import Answer, RunningEngine, Tail, running_engine

pytestmark = pytest.mark.engine

BLOCK_TOKENS = 32
"""Tokens of a KV block: small, so that little of a prompt is outside whole blocks."""

STEP_TOKENS = 512
"""The tokens of a step."""

LOGPROB_TOLERANCE = 1e-3
"""Float32, with sums in another order."""

LAST = 32
"""The tail's last tokens, which every read computes."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A question and a tail whose KV was built after exactly this question, so that a splice is exact."""

    question: str
    tail: Tail


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    """A real engine with small blocks."""
    model = default_directory(os.environ)
    assert is_model(model), "run `sternpost model fetch` first"
    config = json.dumps({**CONNECTOR, "kv_connector_extra_config": {"pool_bytes": 2 * 10**8}})
    log = tmp_path_factory.mktemp("again") / "engine.log"
    arguments = ["--block-size", str(BLOCK_TOKENS), "--max-num-batched-tokens", str(STEP_TOKENS)]
    with running_engine(model, log, "--kv-transfer-config", config, *arguments) as running:
        yield running


def prepare(engine: RunningEngine, name: str, *, middle: str = "") -> Scene:
    """Build a tail of some 700 tokens after one question, and empty the prefix store."""
    question = f"Please tell me what {name} sells on Mondays. " + middle
    rules = " ".join(f"Rule {n}: {name} answers briefly and never names article {n}." for n in range(40))
    tail = engine.tail(rules, before=[{"role": "user", "content": question}])
    assert "built" == engine.build(tail)["reason"]
    engine.forget_prefixes()
    return Scene(question, tail)


def ask(engine: RunningEngine, scene: Scene, *, hint: dict[str, Any] | None = None, **more: Any) -> Answer:
    """Ask the scene's question for eight tokens."""
    return engine.ask(scene.question, scene.tail, tokens=8, hint=hint or {}, **more)


def assert_equal(first: Answer, second: Answer) -> None:
    """Both answers are the same, up to the order of sums."""
    assert first.text == second.text
    assert pytest.approx(first.logprobs, abs=LOGPROB_TOLERANCE) == second.logprobs


def test_the_same_prompt_again_computes_less_than_two_blocks(engine: RunningEngine) -> None:
    """The approximate blocks of the first answer are found, and the answer is the same."""
    scene = prepare(engine, "the baker")
    exact = ask(engine, scene, hint={"op": "off"})
    engine.forget_prefixes()

    first, again = ask(engine, scene), ask(engine, scene)

    prompt = first.usage["prompt_tokens"]
    middle = prompt - len(scene.tail.tokens)
    whole = (prompt - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    assert (0, middle + LAST, "hit") == tuple(
        first.report[key] for key in ("prefix_tokens", "computed_tokens", "reason")
    )
    assert (middle, whole - middle, prompt - whole, "hit") == tuple(
        again.report[key] for key in ("prefix_tokens", "suffix_tokens", "computed_tokens", "reason")
    )
    assert whole == again.usage["prompt_tokens_details"]["cached_tokens"]
    assert_equal(exact, first)
    assert_equal(exact, again)


@pytest.mark.parametrize(
    ("hint", "more"),
    [
        pytest.param({"op": "off"}, {}, id="switched off"),
        pytest.param({"epoch": 1}, {}, id="another epoch"),
        pytest.param({"scaffold": "another"}, {}, id="another scaffold"),
        pytest.param({"kind": "another"}, {}, id="another kind"),
        pytest.param({"correction": "calibrated"}, {}, id="another correction"),
    ],
)
def test_who_may_not_read_the_tail_finds_exact_blocks_alone(
    engine: RunningEngine, hint: dict[str, Any], more: dict[str, Any]
) -> None:
    """After two reads of a prompt, another request over it has the middle's whole blocks, and no more."""
    scene = prepare(engine, f"the grocer of {hint}")
    ask(engine, scene)
    ask(engine, scene)

    answer = ask(engine, scene, hint=hint, **more)

    middle = answer.usage["prompt_tokens"] - len(scene.tail.tokens)
    assert middle // BLOCK_TOKENS * BLOCK_TOKENS == answer.report["prefix_tokens"]
    assert 0 == answer.report["suffix_tokens"]


@pytest.mark.parametrize("hint", [{"last": 40}, {"head": 8}, {"match": 16}], ids=["last", "head", "match"])
def test_reads_with_other_settings_share_no_approximate_block(
    engine: RunningEngine, hint: dict[str, Any]
) -> None:
    """What is computed afresh differs, and so do the blocks: the tail is spliced again."""
    scene = prepare(engine, f"the smith of {hint}")
    ask(engine, scene)

    answer = ask(engine, scene, hint=hint)

    middle = answer.usage["prompt_tokens"] - len(scene.tail.tokens)
    assert "hit" == answer.report["reason"]
    assert middle // BLOCK_TOKENS * BLOCK_TOKENS == answer.report["prefix_tokens"]
    assert answer.report["computed_tokens"] >= LAST


def test_exact_blocks_of_the_whole_prompt_are_preferred(engine: RunningEngine) -> None:
    """A prompt that was computed exactly before is read from the prefix store, and nothing is copied."""
    scene = prepare(engine, "the tailor")
    exact = ask(engine, scene, hint={"op": "off"})

    answer = ask(engine, scene, hint={"last": 1})

    prompt = answer.usage["prompt_tokens"]
    assert (prompt - 1) // BLOCK_TOKENS * BLOCK_TOKENS == answer.report["prefix_tokens"]
    assert_equal(exact, answer)


def test_approximate_blocks_of_an_evicted_tail_are_not_found(engine: RunningEngine) -> None:
    """Without the tail the request is exact, and finds exact blocks alone."""
    scene = prepare(engine, "the miller")
    ask(engine, scene)
    ask(engine, scene)
    assert "hit" == ask(engine, scene).report["reason"]
    for number in range(8):
        prepare_without_forgetting(engine, f"the evictor {number}")

    answer = ask(engine, scene)

    middle = answer.usage["prompt_tokens"] - len(scene.tail.tokens)
    assert ("not_built", 0) == (answer.report["reason"], answer.report["suffix_tokens"])
    assert middle // BLOCK_TOKENS * BLOCK_TOKENS == answer.report["prefix_tokens"]


@pytest.mark.parametrize(
    ("steps", "head", "last"),
    [
        pytest.param(0.8, 0, 32, id="over-its-share-of-a-step"),
        pytest.param(1.0, 0, 1, id="one-step"),
        pytest.param(2.0, 16, 32, id="two-steps"),
        pytest.param(4.0, 0, 32, id="four-steps"),
    ],
)
def test_a_middle_longer_than_a_step_is_computed_once_and_spliced(
    engine: RunningEngine, steps: float, head: int, last: int
) -> None:
    """In chunks up to the tail, which is copied: computed = middle + head + last, and the answer is exact."""
    words = "please " * int(steps * STEP_TOKENS)
    scene = prepare(engine, f"the clerk of {steps}", middle=words)
    exact = ask(engine, scene, hint={"op": "off"})
    engine.forget_prefixes()

    answer = ask(engine, scene, hint={"head": head, "last": last})

    prompt = answer.usage["prompt_tokens"]
    middle = prompt - len(scene.tail.tokens)
    assert middle > steps * STEP_TOKENS
    assert (0, len(scene.tail.tokens) - head - last, middle + head + last, "hit") == tuple(
        answer.report[key] for key in ("prefix_tokens", "suffix_tokens", "computed_tokens", "reason")
    )
    assert_equal(exact, answer)


def test_long_middles_beside_each_other_and_others(engine: RunningEngine) -> None:
    """Each is computed once, whatever runs beside it; an abort in the middle leaves nothing behind."""
    scenes = [
        prepare(engine, f"the porter {number}", middle=f"item {number} " * length)
        for number, length in enumerate((150, 300, 10))
    ]
    exact = [ask(engine, scene, hint={"op": "off"}) for scene in scenes]
    engine.forget_prefixes()

    with ThreadPoolExecutor(8) as pool:
        leaving = [pool.submit(leave, engine, scene) for scene in scenes]
        answers = list(pool.map(lambda scene: ask(engine, scene), scenes))
        for left in leaving:
            left.result()

    for scene, expected, answer in zip(scenes, exact, answers, strict=True):
        assert "hit" == answer.report["reason"]
        assert 0 < answer.report["suffix_tokens"] <= len(scene.tail.tokens) - LAST
        assert_equal(expected, answer)
    assert 0.0 == engine.metric("vllm:kv_cache_usage_perc")
    assert 0.0 == engine.metric("vllm:num_requests_running")


@pytest.mark.parametrize("distance", [0, 300], ids=["at its place", "further on"])
def test_an_anchored_tail_answers_as_if_computed_at_its_anchor(engine: RunningEngine, distance: int) -> None:
    """However much of it is copied: the positions of what is copied and computed agree, and the answer's."""
    name = f"the anchorite of {distance}"
    question = f"Please tell me what {name} sells on Mondays. " + "Be brief. " * 20
    tail = engine.tail(
        " ".join(f"Rule {n}: {name} answers briefly and never names article {n}." for n in range(40)),
        before=[{"role": "user", "content": question}],
    )
    anchor = {"mode": "anchor", "anchor": len(tail.scaffold) + distance}
    assert "built" == engine.build(tail, hint=anchor)["reason"]
    engine.forget_prefixes()
    exact = engine.ask(question, tail, tokens=8, hint={"op": "off"})
    engine.forget_prefixes()

    copied = engine.ask(question, tail, tokens=8, hint=anchor)
    again = engine.ask(question, tail, tokens=8, hint=anchor)
    computed = engine.ask(question, tail, tokens=8, hint={**anchor, "head": 200})

    assert ["hit"] * 3 == [answer.report["reason"] for answer in (copied, again, computed)]
    assert len(tail.tokens) - LAST == copied.report["suffix_tokens"]
    assert len(tail.tokens) - LAST - 200 == computed.report["suffix_tokens"]
    assert_equal(copied, again)
    assert_equal(copied, computed)
    if distance == 0:
        assert_equal(exact, copied)
    else:
        assert pytest.approx(exact.logprobs, abs=LOGPROB_TOLERANCE) != copied.logprobs


def leave(engine: RunningEngine, scene: Scene) -> None:
    """Ask, and go away before the first token."""
    body = engine.body(scene.question + " And more?", scene.tail, tokens=8) | {"stream": True}
    with contextlib.suppress(httpx.ReadTimeout):
        engine.client.post("/v1/chat/completions", json=body, timeout=0.3)


def prepare_without_forgetting(engine: RunningEngine, name: str) -> None:
    """Build another tail."""
    rules = " ".join(f"Rule {n}: {name} answers briefly and never names article {n}." for n in range(40))
    assert "built" == engine.build(engine.tail(rules))["reason"]
