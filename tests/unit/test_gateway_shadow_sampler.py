"""What is sampled, when it is replayed, and what bounds that."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from sternpost_core.hint import Reason, Report
from sternpost_core.kill import KillLevel
from sternpost_core.policy import Policy
from sternpost_core.policy_match import PolicySet
from sternpost_fakes.clock import FakeClock
from sternpost_fakes.engine import usage_of
from sternpost_fakes.gateway_scene import CHAT, ENGINE, READY, Scene, learned, policy
from sternpost_fakes.replays import with_candidates
from sternpost_fakes.virtual_time import VirtualClock, run_virtual
from sternpost_gateway.cold_limiter import ColdLimits
from sternpost_gateway.compose import Composed
from sternpost_gateway.engine_api import EngineApi
from sternpost_gateway.fleet import Fleet, Health
from sternpost_gateway.kills import KillTable
from sternpost_gateway.metrics import Metrics
from sternpost_gateway.prefill_budget import PrefillBudget
from sternpost_gateway.settings import Timeouts
from sternpost_gateway.shadow.sampler import (
    PROMPT_TOKENS_MAX,
    QUEUE_MAX,
    SAMPLE_BYTES_MAX,
    WAIT_SECONDS,
    WAITS_MAX,
    Live,
    Outcome,
    ShadowSampler,
)
from sternpost_gateway.shadow.verdicts import Verdicts

SAMPLED = policy(shadow={"sampleRate": 1})
EPOCH = 7
HIT = Report(prefix_tokens=0, suffix_tokens=200, computed_tokens=100, reason=Reason.HIT, engine=READY.batch)
OFF = Report(prefix_tokens=0, suffix_tokens=0, computed_tokens=303, reason=Reason.OFF, engine=READY.batch)
LIMITS = ColdLimits(batched_tokens=1000, sequences=8)


def composed(chosen: Policy = SAMPLED, **fields: Any) -> Composed:
    """Return a request that reads a tail."""
    scene = Scene(body={**CHAT, **fields}, policy=chosen)
    return scene.compose(learned(scene.plan()))


@dataclass(slots=True)
class Stage:
    """A sampler before one engine that answers as `reports` say, and what belongs to it."""

    reused: Report = HIT
    exact: Report = OFF
    rate: float = 1e6
    live: tuple[Policy, ...] = (SAMPLED,)
    kills: KillTable = field(default_factory=lambda: KillTable(epochs={SAMPLED.full_name: EPOCH}))
    asked: list[dict[str, Any]] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    fleet: Fleet = field(default_factory=lambda: Fleet([ENGINE], lambda engine: None))
    sampler: ShadowSampler = field(init=False)

    def __post_init__(self) -> None:
        self.fleet.probed(ENGINE, Health.UP)
        self.fleet.learned(ENGINE, READY)
        client = httpx.AsyncClient(transport=httpx.MockTransport(self.answer))
        self.sampler = ShadowSampler(
            api=EngineApi(client, Timeouts()),
            fleet=self.fleet,
            verdicts=Verdicts(FakeClock(), None),
            budget=PrefillBudget(FakeClock(), lambda: self.rate, 1.0),
            metrics=Metrics(self.registry),
            chance=random.Random(1),
            limits=LIMITS,
            live=Live(lambda: PolicySet(self.live), lambda: self.kills),
        )

    def answer(self, request: httpx.Request) -> httpx.Response:
        """Answer a replay's request."""
        body = json.loads(request.content)
        self.asked.append(body)
        self.loads.append(self.fleet.views()[0].uncached_tokens)
        is_exact = "prompt_logprobs" in body
        report = self.exact if is_exact else self.reused
        kind = "text_completion" if is_exact else "chat.completion"
        answer = {"object": kind, "choices": [{}], "usage": usage_of(3, 1, report)}
        prompt = body["prompt"] if is_exact else [1, 2]
        return httpx.Response(200, json=with_candidates(answer, body, prompt, [3], wrong=False))

    def count(self, outcome: Outcome) -> float:
        """Return how many samples have come to an outcome."""
        name, labels = "sternpost_gateway_shadow_replays_total", {"policy": SAMPLED.full_name}
        return self.registry.get_sample_value(name, {**labels, "outcome": outcome.value}) or 0.0


def outcome_of(stage: Stage, *offers: Composed, report: Report = HIT) -> dict[str, float]:
    """Return what becomes of exchanges, in virtual time."""

    async def settle(clock: VirtualClock) -> None:
        for offer in offers:
            stage.sampler.offer(offer, report)
        await stage.sampler.idle()

    run_virtual(settle)
    counts = {outcome.value: stage.count(outcome) for outcome in Outcome}
    return {name: count for name, count in counts.items() if count}


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        pytest.param(Stage(), "compared", id="compared"),
        pytest.param(Stage(reused=replace(HIT, reason=Reason.NOT_BUILT)), "not_reused", id="tail-is-gone"),
        pytest.param(Stage(exact=replace(OFF, suffix_tokens=9)), "not_exact", id="tail-on-the-exact-path"),
        pytest.param(Stage(exact=replace(OFF, prefix_tokens=9)), "not_exact", id="prefix-on-the-exact-path"),
        pytest.param(Stage(live=()), "outdated", id="policy-is-gone"),
        pytest.param(
            Stage(kills=KillTable(levels={SAMPLED.full_name: KillLevel.NO_SUFFIX_READS})),
            "outdated",
            id="killed",
        ),
        pytest.param(Stage(kills=KillTable(first_epoch=EPOCH + 1)), "outdated", id="new-epoch"),
        pytest.param(Stage(rate=0.0), "compared", id="pool-of-unknown-rate"),
    ],
)
def test_sample_is_compared_only_where_that_says_something(stage: Stage, expected: str) -> None:
    """Each way that a replay may come to nothing has its own count."""
    assert {expected: 1.0} == outcome_of(stage, composed())


@pytest.mark.parametrize(
    "report",
    [
        pytest.param(None, id="none"),
        pytest.param(replace(HIT, reason=Reason.NOT_BUILT), id="miss"),
        pytest.param(replace(HIT, reason=Reason.OFF), id="off"),
    ],
)
def test_what_read_no_tail_is_not_sampled(report: Report) -> None:
    """There is nothing to compare."""
    stage = Stage()

    assert ({}, []) == (outcome_of(stage, composed(), report=report), stage.asked)


@pytest.mark.parametrize(
    ("offer", "report"),
    [
        pytest.param(composed(padding="x" * SAMPLE_BYTES_MAX), HIT, id="body"),
        pytest.param(composed(), replace(HIT, computed_tokens=PROMPT_TOKENS_MAX), id="prompt"),
    ],
)
def test_what_is_large_is_not_kept(offer: Composed, report: Report) -> None:
    """Memory and the engine's logits are bounded by what is sampled."""
    assert {"too_large": 1.0} == outcome_of(Stage(), offer, report=report)


def test_queue_is_bounded() -> None:
    """What comes while eight wait is dropped, and counted."""
    found = outcome_of(Stage(), *[composed()] * (QUEUE_MAX + 3))

    assert {"compared": float(QUEUE_MAX), "queue_full": 3.0} == found


def test_sample_rate_is_kept() -> None:
    """Of many hits the policy's share is replayed."""
    chosen = policy(shadow={"sampleRate": 0.25})
    stage = Stage(live=(chosen,))
    offered = composed(chosen)

    async def settle(clock: VirtualClock) -> None:
        for _ in range(400):
            stage.sampler.offer(offered, HIT)
            await stage.sampler.idle()

    run_virtual(settle)

    assert 70 <= stage.count(Outcome.COMPARED) <= 130


Load = Callable[[Stage, ExitStack], object]


@pytest.mark.parametrize(
    "load",
    [
        pytest.param(
            lambda stage, stack: stack.enter_context(stage.fleet.flight(ENGINE, 300.0)), id="tokens"
        ),
        pytest.param(
            lambda stage, stack: [stack.enter_context(stage.fleet.flight(ENGINE)) for _ in range(3)],
            id="requests",
        ),
        pytest.param(lambda stage, stack: stage.fleet.probed(ENGINE, Health.DOWN), id="not-ready"),
    ],
)
def test_busy_engine_is_left_alone(load: Load) -> None:
    """A sample waits for a minute at most, and an engine that is busy all the time replays nothing."""
    stage = Stage()
    with ExitStack() as stack:
        load(stage, stack)
        found = outcome_of(stage, composed())

    assert ({"busy": 1.0}, []) == (found, stage.asked)


def test_sample_is_replayed_when_its_engine_has_time() -> None:
    """What waits is replayed as soon as the load has gone."""
    stage = Stage()

    async def settle(clock: VirtualClock) -> float:
        with stage.fleet.flight(ENGINE, 900.0):
            stage.sampler.offer(composed(), HIT)
            await asyncio.sleep(WAIT_SECONDS * WAITS_MAX / 2)
            before = stage.count(Outcome.COMPARED)
        await stage.sampler.idle()
        return before

    assert (0.0, 1.0) == (run_virtual(settle), stage.count(Outcome.COMPARED))


def test_budget_is_kept() -> None:
    """When the budget is spent, samples wait, and in the end are dropped."""
    found = outcome_of(Stage(rate=10.0), *[composed()] * 3)

    assert {"compared": 1.0, "busy": 2.0} == found


def test_replay_counts_as_load_while_it_lasts() -> None:
    """Routing sees what a replay costs its engine, and sees it go."""
    stage = Stage()
    outcome_of(stage, composed())

    assert ([364.0, 364.0], 0.0) == (stage.loads, stage.fleet.views()[0].uncached_tokens)


def test_engine_that_has_started_anew_is_not_asked() -> None:
    """Its store is another one: what the sample tells of is gone."""
    stage = Stage()
    stage.fleet.learned(ENGINE, replace(READY, batch="b2"))

    assert {"outdated": 1.0} == outcome_of(stage, composed())
