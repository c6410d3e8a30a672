"""The comparison of routers: the mock engines' cache, the oracle, and which bounds hold."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from bench.routing.cache import BLOCK_TOKENS, BlockCache, chain_of, oracle
from bench.routing.drive import Outcome
from bench.routing.report import bounds, rows
from bench.routing.workloads import WORKLOADS

GOOD = Outcome(
    requests=100,
    failed=0,
    reuse_share=0.9,
    oracle_share=0.91,
    imbalance=1.1,
    ttft_p50=0.02,
    ttft_p95=0.1,
)


def chat(*contents: str) -> dict[str, object]:
    """Return a chat of users' messages."""
    return {"messages": [{"role": "user", "content": content} for content in contents]}


def test_next_turn_finds_the_blocks_of_the_one_before() -> None:
    """A cache holds what prompts begin with alike, and forgets the least recently used beyond its size."""
    first, _ = chain_of(chat("north " * 100))
    second, tokens = chain_of(chat("north " * 100, "east"))
    cache = BlockCache(tokens_max=len(first) * BLOCK_TOKENS)
    cache.store(first)
    held = cache.held(second)
    cache.store(chain_of(chat("south " * 50))[0])

    assert len(first) * BLOCK_TOKENS == held <= tokens
    assert 0 < cache.held(second) < held


def test_oracle_sees_all_engines_and_what_is_on_its_way() -> None:
    """It knows of a prompt that is being computed, which its own engine's cache does not hold yet."""
    chain, _ = chain_of(chat("north " * 100))
    empty, busy = BlockCache(10_000), BlockCache(10_000)
    busy.coming.update(chain)

    assert (0, len(chain) * BLOCK_TOKENS) == (busy.held(chain), oracle([empty, busy], chain))


@pytest.mark.parametrize("name", WORKLOADS)
def test_all_routers_get_the_same_workload(name: str) -> None:
    """A workload is drawn from its seed alone."""
    make = WORKLOADS[name]

    assert make(random.Random(3)) == make(random.Random(3)) != make(random.Random(4))


@pytest.mark.parametrize(
    ("ours", "missed"),
    [
        pytest.param(GOOD, [], id="good"),
        pytest.param(replace(GOOD, oracle_share=0.94), ["reuse within"], id="far-from-the-oracle"),
        pytest.param(replace(GOOD, imbalance=1.4), ["imbalance"], id="uneven"),
        pytest.param(replace(GOOD, ttft_p50=0.03), ["latency not above"], id="slow"),
        pytest.param(
            replace(GOOD, reuse_share=0.8, oracle_share=0.8), ["reuse not below peer"], id="below-a-peer"
        ),
    ],
)
def test_bound_that_is_missed_is_told(ours: Outcome, missed: list[str]) -> None:
    """Each bound is judged by itself."""
    results = {"sessions": {"sternpost": ours, "peer": replace(GOOD, ttft_p50=0.025)}}
    found = [bound.text for bound in bounds(results, frozenset({"peer"})) if not bound.holds]

    assert len(missed) == len(found)
    assert all(text in bound for text, bound in zip(missed, found, strict=True))


def test_rows_name_workload_router_and_metric() -> None:
    """The result file has every figure, and the ratio to the best peer."""
    results = {"sessions": {"sternpost": GOOD, "peer": replace(GOOD, ttft_p50=0.04)}}
    found = {(row["router"], row["metric"]): row["value"] for row in rows(results, frozenset({"peer"}))}

    assert (0.01, 0.5) == (
        found["sternpost", "reuse_gap_to_oracle"],
        found["sternpost", "ttft_ratio_best_peer"],
    )
    assert 0.04 == found["peer", "ttft_p50"]
