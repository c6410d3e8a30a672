"""One tail on the real vLLM: built, hit, bypassed and evicted; exact and apart where it must be."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sternpost_engine.model_fetch import default_directory, is_model
from sternpost_running.engine import RunningEngine, Tail, running_engine

pytestmark = pytest.mark.engine

TOKEN_BYTES = 30 * 3 * 64 * (4 + 4)
"""One stored token of SmolLM2-135M in float32: 30 layers, 3 heads, 64 wide, keys and values."""

POOL_BYTES = 2 * 1024 * TOKEN_BYTES
"""Room for two tails of 513 to 1,024 tokens."""

LOGPROB_TOLERANCE = 1e-3
"""Float32, with sums in another order."""


def _rules(name: str) -> str:
    rules = [
        f"Rule {number}: {name} answers in one short sentence and never names article {number * 7 % 101}."
        for number in range(28)
    ]
    return " ".join(rules)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    """A real engine whose suffix store holds two tails."""
    config = {
        "kv_connector": "SternpostConnector",
        "kv_connector_module_path": "sternpost_engine.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"pool_bytes": POOL_BYTES},
    }
    log = tmp_path_factory.mktemp("engine") / "engine.log"
    with running_engine(_model(), log, "--kv-transfer-config", json.dumps(config)) as running:
        yield running


def _model() -> Path:
    model = default_directory(os.environ)
    assert is_model(model), "run `sternpost model fetch` first"
    return model


@pytest.fixture(scope="module")
def measured(engine: RunningEngine) -> Tail:
    """A tail that the engine may hold or not."""
    return engine.tail(_rules("the clerk"))


@pytest.fixture
def tail(engine: RunningEngine, measured: Tail) -> Tail:
    """A tail that the engine holds, whatever the tests before have evicted."""
    assert engine.build(measured)["reason"] in ("built", "hit")
    return measured


def test_the_engine_says_that_it_takes_hints(engine: RunningEngine) -> None:
    """The info route names the contract's version, and that reuse is supported."""
    info = engine.client.get("/sternpost/v1/info").json()

    assert (1, True, None) == (info["v"], info["supported"], info["reason"])


def test_a_second_build_of_a_tail_builds_nothing(engine: RunningEngine, tail: Tail) -> None:
    """A tail is built once; a second build reports that it is there."""
    assert "hit" == engine.build(tail)["reason"]


@pytest.mark.parametrize(
    ("question", "head", "last"),
    [
        pytest.param("What may the clerk name?", 0, 1, id="only the last token"),
        pytest.param("Which article is it that nobody names?", 0, 32, id="the closing instruction"),
        pytest.param("May I have two sentences? " * 20, 16, 32, id="a long middle and a head"),
    ],
)
def test_a_hit_computes_the_middle_the_head_and_the_last_tokens_alone(
    engine: RunningEngine, tail: Tail, question: str, head: int, last: int
) -> None:
    """The scheduler's own count says what was computed, and vLLM's metrics say the same."""
    prompt = engine.tokens([{"role": "user", "content": question}, tail.message])
    before = engine.metric("vllm:prompt_tokens_by_source_total", source="local_compute")

    answer = engine.ask(question, tail, hint={"head": head, "last": last})

    middle = len(prompt) - len(tail.tokens)
    computed = engine.metric("vllm:prompt_tokens_by_source_total", source="local_compute") - before
    assert {
        "prefix_tokens": 0,
        "suffix_tokens": len(tail.tokens) - head - last,
        "computed_tokens": middle + head + last,
        "reason": "hit",
        "owner": "",
    } == {key: answer.report[key] for key in answer.report if key not in ("v", "engine")}
    assert middle + head + last == computed
    assert len(tail.tokens) - head - last == answer.usage["prompt_tokens_details"]["cached_tokens"]


def test_a_prefix_hit_and_a_suffix_hit_add_up(engine: RunningEngine, tail: Tail) -> None:
    """A middle that begins as an earlier one is taken from the prefix store, in whole blocks."""
    long = "The clerk was asked a very long question about the articles on the shelf. " * 16
    engine.ask(long, tail)

    answer = engine.ask(long + "And then?", tail)

    prompt = answer.usage["prompt_tokens"]
    middle = prompt - len(tail.tokens)
    assert "hit" == answer.report["reason"]
    assert 128 <= answer.report["prefix_tokens"] <= middle
    assert answer.report["prefix_tokens"] % 128 == 0
    assert (
        prompt - answer.report["prefix_tokens"] - answer.report["suffix_tokens"]
        == middle - answer.report["prefix_tokens"] + 32
    )


def test_a_streamed_answer_carries_the_same_report(engine: RunningEngine, tail: Tail) -> None:
    """The report comes with the usage of the last event."""
    body = engine.body("Is this streamed?", tail, tokens=3) | {"stream_options": {"include_usage": True}}

    events = list(engine.stream(body))

    report = events[-1]["usage"]["prompt_tokens_details"]["sternpost"]
    assert ("hit", len(tail.tokens) - 32) == (report["reason"], report["suffix_tokens"])


def test_a_splice_of_kv_from_the_same_context_equals_full_prefill(engine: RunningEngine) -> None:
    """In float32, a tail built after exactly this middle gives exactly this prompt's answer."""
    question = [{"role": "user", "content": "Please tell me what the shop sells on Mondays."}]
    tail = engine.tail(_rules("the shopkeeper"), before=question)
    exact = engine.ask(question[0]["content"], tail, tokens=8, hint={"op": "off"})
    assert engine.build(tail)["reason"] == "built"
    # Otherwise the exact request's blocks would cover the prompt, and nothing would be spliced.
    engine.forget_prefixes()

    spliced = engine.ask(question[0]["content"], tail, tokens=8)

    assert "hit" == spliced.report["reason"]
    assert exact.text == spliced.text
    assert pytest.approx(exact.logprobs, abs=LOGPROB_TOLERANCE) == spliced.logprobs


def test_approximate_blocks_never_enter_the_prefix_store(engine: RunningEngine) -> None:
    """After a hit, the same prompt without a hint finds no block past the exact part, and answers exactly."""
    tail = engine.tail(_rules("the guard"))
    assert engine.build(tail)["reason"] == "built"
    question = "Who guards the gate? " * 12
    clean = engine.ask(question, tail, tokens=8, hint={"op": "off"}, cache_salt="elsewhere")
    assert engine.ask(question, tail, tokens=8).report["reason"] == "hit"

    exact = engine.ask(question, tail, tokens=8, hint={"op": "off"})

    middle = exact.usage["prompt_tokens"] - len(tail.tokens)
    assert middle - middle % 128 == exact.report["prefix_tokens"]
    assert clean.text == exact.text
    assert pytest.approx(clean.logprobs, abs=LOGPROB_TOLERANCE) == exact.logprobs


@pytest.mark.parametrize(
    ("hint", "more", "reason"),
    [
        pytest.param({"op": "off"}, {}, "off", id="switched off"),
        pytest.param({"scaffold": "another"}, {}, "not_built", id="another scaffold"),
        pytest.param({"epoch": 1}, {}, "not_built", id="another epoch"),
        pytest.param({}, {"cache_salt": "another tenant"}, "not_built", id="another tenant"),
        pytest.param({"tail_tokens": 100}, {}, "tail_share_too_small", id="a small share"),
        pytest.param({"tail_tokens": 200}, {}, "tail_too_short", id="a short tail"),
        pytest.param({"v": 2}, {}, "bad_hint", id="a hint of another version"),
        pytest.param({"op": "steal"}, {}, "bad_hint", id="an unknown operation"),
        pytest.param({"mode": "anchor", "anchor": 900}, {}, "not_built", id="an anchor"),
        pytest.param(
            {"mode": "anchor", "anchor": 2}, {}, "middle_over_anchor", id="a middle over the anchor"
        ),
        pytest.param({"mode": "anchor", "anchor": 4000}, {}, "anchor_unsupported", id="an anchor too far"),
        pytest.param({}, {"prompt_logprobs": 1}, "prompt_logprobs", id="prompt log-probabilities"),
    ],
)
def test_a_bypass_is_exact_and_says_why(
    engine: RunningEngine, tail: Tail, hint: dict[str, object], more: dict[str, Any], reason: str
) -> None:
    """Whatever cannot use the tail is computed, and the report names the reason."""
    # A question of its own, for otherwise the blocks of the one before would cover the prompt.
    answer = engine.ask(f"Why not with {hint} and {more}?", tail, hint=hint, **more)

    assert (reason, 0) == (answer.report["reason"], answer.report["suffix_tokens"])


def test_a_wrong_tail_is_never_used(engine: RunningEngine, tail: Tail) -> None:
    """The engine trusts its own comparison of token ids, not the hint."""
    other = Tail(
        {"role": "system", "content": tail.message["content"].replace("short", "long")},
        tail.scaffold,
        tail.tokens,
    )

    assert "not_built" == engine.ask("Is it this tail?", other).report["reason"]


def test_a_private_middle_cannot_become_a_tail(engine: RunningEngine) -> None:
    """A build with anything between scaffold and tail is refused, and nothing is stored."""
    tail = engine.tail(_rules("the spy"))
    private = engine.tokens([{"role": "user", "content": "my secret"}], closed=False)

    report = engine.build(tail, prompt=private + tail.tokens)

    assert "bad_hint" == report["reason"]
    assert "not_built" == engine.ask("What is the secret?", tail).report["reason"]


def test_the_least_recently_read_tail_is_evicted(engine: RunningEngine) -> None:
    """With room for two, a third tail takes the place of the one that was read longest ago."""
    tails = [engine.tail(_rules(name)) for name in ("the first", "the second", "the third")]
    evicted = engine.metric("sternpost_suffix_evictions_total", reason="budget")
    for built in tails[:2]:
        assert engine.build(built)["reason"] == "built"
    assert engine.ask("Still there?", tails[0]).report["reason"] == "hit"

    assert engine.build(tails[2])["reason"] == "built"

    assert ["hit", "not_built", "hit"] == [
        engine.ask("Who is there now?", one).report["reason"] for one in tails
    ]
    assert engine.metric("sternpost_suffix_evictions_total", reason="budget") > evicted
    assert engine.metric("sternpost_suffix_pool_bytes") <= POOL_BYTES


def test_many_readers_and_aborts_leave_nothing_behind(engine: RunningEngine) -> None:
    """Sixteen readers at once, some of which go away: all others are served, no block stays in use."""
    tail = engine.tail(_rules("the crowd"))
    assert engine.build(tail)["reason"] == "built"
    probe = engine.ask("Name the planets.", tail, tokens=16, hint={"op": "off"}, cache_salt="probe 1")

    def read(number: int) -> str:
        question = f"Question {number}: " + "what about the crowd? " * (number % 9)
        body = engine.body(question, tail, tokens=12) | {"stream_options": {"include_usage": True}}
        for count, event in enumerate(engine.stream(body)):
            if number % 4 == 3 and count > 2:
                return "gone"
            if event.get("usage"):
                return str(event["usage"]["prompt_tokens_details"]["sternpost"]["reason"])
        return "cut"

    with ThreadPoolExecutor(16) as pool:
        outcomes = list(pool.map(read, range(48)))

    again = engine.ask("Name the planets.", tail, tokens=16, hint={"op": "off"}, cache_salt="probe 2")
    assert (36, 12) == (outcomes.count("hit"), outcomes.count("gone"))
    assert probe.text == again.text
    assert 0.0 == engine.metric("vllm:kv_cache_usage_perc")
    assert 0.0 == engine.metric("vllm:num_requests_running")


def test_the_three_counts_add_up_to_the_prompts_tokens(engine: RunningEngine, tail: Tail) -> None:
    """In every report, prefix, suffix and computed tokens are the prompt's tokens."""
    answers = [
        engine.ask("How many? " * length, tail, hint={"op": operation})
        for length, operation in ((1, "read"), (30, "read"), (30, "off"), (31, "read"))
    ]

    sums = [
        sum(answer.report[f"{source}_tokens"] for source in ("prefix", "suffix", "computed"))
        for answer in answers
    ]
    assert [answer.usage["prompt_tokens"] for answer in answers] == sums
    assert all(first <= second for first, second in pairwise(sums))


def test_every_figure_of_the_store_is_shown_and_moves(engine: RunningEngine) -> None:
    """After a build, a hit, a miss and an eviction; a false hit cannot be made on command."""
    figures = {
        "lookups_total": {"result": "live"},
        "requests_total": {"reason": "hit"},
        "prompt_tokens_total": {"source": "suffix"},
        "evictions_total": {"reason": "budget"},
        "inserts_total": {},
        "builds_total": {"outcome": "completed"},
        "match_seconds_count": {},
        "copy_seconds_count": {},
        "lock_wait_seconds_count": {},
        "hit_kv_share_count": {},
    }

    def shown() -> dict[str, float]:
        return {name: engine.metric(f"sternpost_suffix_{name}", **labels) for name, labels in figures.items()}

    before = shown()
    for name in ("the first mover", "the second mover", "the third mover"):
        moved = engine.tail(_rules(name))
        assert engine.build(moved)["reason"] == "built"
        assert engine.ask("Does it move?", moved).report["reason"] == "hit"

    after = shown()
    assert [] == [name for name in figures if after[name] <= before[name]]
    assert (1.0, float(POOL_BYTES)) == (
        engine.metric("sternpost_suffix_supported"),
        engine.metric("sternpost_suffix_pool_budget_bytes"),
    )
    assert 2.0 == engine.metric("sternpost_suffix_tails", state="live")
    assert POOL_BYTES == engine.metric("sternpost_suffix_bucket_bytes", bucket="1024")
    assert POOL_BYTES == engine.metric("sternpost_suffix_pool_bytes")
    assert 0.0 == engine.metric("sternpost_suffix_false_hits_total")


def test_held_tails_are_listed_without_what_they_say(engine: RunningEngine, tail: Tail) -> None:
    """Their sizes, states and ages; the one that was read last comes first."""
    assert engine.ask("Who is listed first?", tail).report["reason"] == "hit"

    listed = engine.client.get("/sternpost/v1/tails").json()["engines"][0]["tails"]
    info = engine.client.get("/sternpost/v1/info").json()

    first = listed[0]
    assert (len(tail.tokens), "live", 0, 0) == tuple(
        first[key] for key in ("tokens", "state", "readers", "epoch")
    )
    assert (True, True) == (first["hits"] >= 1, first["read_seconds_ago"] < 60)
    assert sum(one["bytes"] for one in listed) == info["pools"][0]["pool_bytes"]
    assert len(listed) == info["pools"][0]["tails"]["live"]
    assert not any(isinstance(value, list | dict) for one in listed for value in one.values())
