"""The comparison of routers: the mock engines, the oracle, what clients note, and which bounds hold."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace

import aiohttp
import pytest
from aiohttp import ClientConnectorError

from bench.gateway.ports import free_ports
from bench.routing.cache import BLOCK_TOKENS, BlockCache, chain_of, oracle
from bench.routing.drive import Client, Ended, Outcome, Reading, Turn
from bench.routing.mock_engines import HOST, WORDS_OUT, Pool
from bench.routing.real_engines import computed_tokens
from bench.routing.report import rows, table, verdicts
from bench.routing.workloads import TOKENS_PER_WORD, WORKLOADS, Size

GOOD = Turn(ended=Ended.WHOLE, seconds=0.02, prompt_tokens=100, cached_tokens=90, oracle_tokens=91)


def outcome(turn: Turn = GOOD, *, imbalance: float = 1.1, router_share: float = 0.1) -> Outcome:
    """Return what forty conversations of two equal turns come to."""
    return Outcome(conversations=[[turn, turn]] * 40, imbalance=imbalance, router_share=router_share)


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

    assert make(random.Random(3), Size()) == make(random.Random(3), Size()) != make(random.Random(4), Size())


def test_smaller_workload_has_shorter_prompts_in_the_same_shape() -> None:
    """Real engines on a few cores get as much as they can do."""
    size = Size(count=0.25, tokens=0.1, seconds=3.0)
    small, whole = (
        WORKLOADS["sessions"](random.Random(3), size),
        WORKLOADS["sessions"](random.Random(3), Size()),
    )

    assert (9, 36) == (len(small.conversations), len(whole.conversations))
    assert 60 / TOKENS_PER_WORD == len(small.conversations[0].system.split())
    assert {5} == {len(one.turns) for one in small.conversations}


def event(*, content: str = "", usage: dict[str, object] | None = None) -> bytes:
    """Return a line of a stream."""
    choices = [{"delta": {"content": content}}] if content else []
    return b"data: " + json.dumps({"choices": choices, "usage": usage}).encode() + b"\n"


USAGE = {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 90, "oracle_tokens": 91}}
DONE = b"data: [DONE]\n"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param([event(content="a"), event(usage=USAGE), DONE], GOOD, id="whole"),
        pytest.param([event(content="a")], Turn(ended=Ended.CUT, seconds=0.02), id="cut"),
        pytest.param([b'data: {"error": {}}\n'], Turn(ended=Ended.FAILED), id="error-before-a-token"),
        pytest.param([], Turn(ended=Ended.FAILED), id="nothing"),
    ],
)
def test_client_tells_a_cut_answer_from_a_request_that_failed(lines: list[bytes], expected: Turn) -> None:
    """Only the second might have been asked of another engine."""
    reading = Reading(accepted=True)
    for line in lines:
        reading.take(line, 0.02)

    assert expected == reading.turn()


async def test_engine_that_dies_takes_its_connections_along_and_comes_back_empty() -> None:
    """As a process does that is killed: requests end cut, and nobody listens any more."""
    (port,) = free_ports(1)
    pool = Pool([port])
    (engine,) = pool.engines.values()
    await pool.start(engine)
    prompt = [{"role": "user", "content": "north " * 400}]
    async with aiohttp.ClientSession() as session:
        client = Client(session, f"http://{HOST}:{port}", "mock")
        first, _ = await client.ask("a", prompt)
        second, text = await client.ask("a", prompt)
        third = asyncio.ensure_future(client.ask("a", prompt))
        await asyncio.sleep(0.05)
        await pool.die(engine)
        cut, _ = await third
        with pytest.raises(ClientConnectorError):
            await session.get(f"http://{HOST}:{port}/health")
        await pool.start(engine)
        again, _ = await client.ask("a", prompt)
        await pool.die(engine)

    assert [Ended.WHOLE, Ended.WHOLE, Ended.CUT, Ended.WHOLE] == [
        turn.ended for turn in (first, second, cut, again)
    ]
    assert [0, 0] == [first.cached_tokens, again.cached_tokens]
    assert second.cached_tokens == second.oracle_tokens > 0.9 * second.prompt_tokens
    assert WORDS_OUT == len(text.split())


def test_computed_tokens_of_a_real_engine_are_what_its_store_did_not_have() -> None:
    """Of all its start's models together."""
    page = (
        'vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1200.0\n'
        'vllm:prefix_cache_hits_total{engine="0",model_name="m"} 1.0e+03\n'
        'vllm:prefix_cache_hits_created{engine="0",model_name="m"} 7.0\n'
    )

    assert 200.0 == computed_tokens(page)


@pytest.mark.parametrize(
    ("ours", "missed"),
    [
        pytest.param(outcome(), [], id="good"),
        pytest.param(outcome(replace(GOOD, oracle_tokens=94)), ["from the oracle"], id="far-from-the-oracle"),
        pytest.param(outcome(imbalance=1.4), ["imbalance"], id="uneven"),
        pytest.param(outcome(replace(GOOD, seconds=0.03)), ["median", "95th"], id="slow"),
        pytest.param(
            outcome(replace(GOOD, cached_tokens=88, oracle_tokens=88)), ["reuse"], id="below-a-peer"
        ),
        pytest.param(outcome(router_share=0.6), ["busy for 60%"], id="own-queue"),
        pytest.param(replace(outcome(), lateness=0.02), ["20.0 ms late"], id="busy-machine"),
    ],
)
def test_bound_that_is_missed_is_told(ours: Outcome, missed: list[str]) -> None:
    """Each bound is judged by itself."""
    results = {"sessions": {"sternpost": ours, "peer": outcome(replace(GOOD, seconds=0.025))}}
    found = [one.text for one in verdicts(results, ["peer"]) if not one.holds]

    assert len(missed) == len(found), found
    assert all(text in verdict for text, verdict in zip(missed, found, strict=True))


def test_without_this_projects_router_only_doubts_are_told() -> None:
    """Some routers may be run alone; whether their figures mean anything is said all the same."""
    late = Outcome(conversations=[[GOOD]], imbalance=1.0, lateness=1.0)

    assert ["sessions: smg ran while timers were 1000.0 ms late"] == [
        one.text for one in verdicts({"sessions": {"smg": late}}, ["smg"])
    ]


def test_request_that_fails_before_an_answer_is_told_and_one_that_is_cut_is_not() -> None:
    """Nobody may ask another engine for the rest of an answer."""
    turns = [[GOOD, replace(GOOD, ended=Ended.CUT)], [GOOD, Turn(ended=Ended.FAILED)]]
    results = {"pod_dies": {"sternpost": Outcome(conversations=turns, imbalance=1.0)}}

    assert ["pod_dies: 1 of 4 failed before an answer, none may"] == [
        one.text for one in verdicts(results, []) if not one.holds
    ]


def test_difference_that_chance_explains_is_none() -> None:
    """One slow conversation of forty does not make a router slower than another."""
    slow = replace(GOOD, seconds=0.5)
    ours = replace(outcome(), conversations=[[slow, slow], *[[GOOD, GOOD]] * 39])
    results = {"sessions": {"sternpost": ours, "peer": outcome()}}

    assert [] == [one.text for one in verdicts(results, ["peer"]) if not one.holds]


def test_without_reuse_the_mark_is_least_loaded() -> None:
    """What affinity costs where it finds nothing."""
    turn = replace(GOOD, cached_tokens=0, oracle_tokens=0)
    results = {
        "no_reuse": {
            "sternpost": outcome(replace(turn, seconds=0.021)),
            "least_loaded": outcome(replace(turn, seconds=0.02)),
        }
    }

    assert ["no_reuse: 1.050 (1.050 to 1.050) of least-loaded's median, at most 1.03"] == [
        one.text for one in verdicts(results, []) if not one.holds
    ]


def test_rows_have_intervals_and_name_other_routers() -> None:
    """The result file has every figure, and the ratio to the best peer."""
    results = {"sessions": {"sternpost": outcome(), "peer": outcome(replace(GOOD, seconds=0.04))}}
    found = {row.metric: row for row in rows(results, ["peer"])}

    assert (0.01, 0.01, 0.01) == tuple(
        round(item or 0.0, 6)
        for item in (
            found["reuse_gap_to_oracle"].value,
            found["reuse_gap_to_oracle"].low,
            found["reuse_gap_to_oracle"].high,
        )
    )
    assert (0.5, 0.04) == (found["ttft_ratio_best_peer"].value, found["peer_ttft_p50"].value)


def test_table_shows_each_router_of_each_workload() -> None:
    """With how busy it was, so that a reader can tell whose queue is measured."""
    lines = list(table({"sessions": {"sternpost": outcome(router_share=0.12), "peer": outcome()}}))

    assert ["sternpost", "peer"] == [line.split()[1] for line in lines[1:]]
    assert "0.12" in lines[1]
