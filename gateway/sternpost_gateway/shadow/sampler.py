"""
The shadow sampler: replays some of the requests that reused a tail, when their engine has little to do.

Whatever limits it has, it keeps to by not replaying: a sample that finds no place, no quiet moment or no
budget is dropped and counted. A sample lives until it is replayed or dropped, in memory only.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sternpost_core.hint import Operation, Reason, Report
from sternpost_core.keys import CACHE_SALT_PREFIX
from sternpost_core.policy import Policy
from sternpost_core.policy_match import PolicySet
from sternpost_gateway.background import BackgroundWork
from sternpost_gateway.cold_limiter import ColdLimits
from sternpost_gateway.compose import Composed
from sternpost_gateway.dialogue import raw_member
from sternpost_gateway.engine_api import ControlFailed, ControlRefused, EngineApi, report_of
from sternpost_gateway.fleet import Engine, Fleet
from sternpost_gateway.kills import READS_OFF, KillTable
from sternpost_gateway.metrics import Metrics
from sternpost_gateway.plan import tail_version_of
from sternpost_gateway.prefill_budget import PrefillBudget
from sternpost_gateway.receive import CHAT_PATH, COMPLETIONS_PATH
from sternpost_gateway.shadow.bodies import (
    ANSWER_TOKENS,
    Unreadable,
    exact_body,
    read_exact,
    read_reused,
    reused_body,
)
from sternpost_gateway.shadow.comparison import Comparison, compare
from sternpost_gateway.shadow.verdicts import TailVersion, Verdicts

logger = logging.getLogger(__name__)

QUEUE_MAX: Final = 8
SAMPLE_BYTES_MAX: Final = 256 * 1024
"""Samples that wait, and the body of each: 2 MiB of memory together."""

PROMPT_TOKENS_MAX: Final = 4096
"""Of a prompt that is replayed: its engine holds logits for each of them that one of its steps computes."""

LOAD_SHARE_MAX: Final = 0.25
"""Of what an engine takes on at once, in requests and in uncached tokens, up to which it has little to do."""

WAIT_SECONDS: Final = 1.0
WAITS_MAX: Final = 60
"""Between two looks at whether a sample may be replayed, and how many there are before it is dropped."""

SALT_BITS: Final = 128
"""Of a replay's own cache salt, under which nothing is found and nothing will be."""


class Outcome(StrEnum):
    """What became of a sample; the values are metric labels."""

    COMPARED = "compared"
    FAILED = "failed"
    UNREADABLE = "unreadable"
    NOT_REUSED = "not_reused"
    NOT_EXACT = "not_exact"
    OUTDATED = "outdated"
    BUSY = "busy"
    QUEUE_FULL = "queue_full"
    TOO_LARGE = "too_large"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A request that reused a tail: all that its replay needs. `batch` is its engine's batch id."""

    tail: TailVersion
    policy: Policy
    epoch: int
    engine: Engine
    batch: str
    path: str
    model: bytes
    body: bytes
    prompt_tokens: int

    @property
    def cost_tokens(self) -> int:
        """Return how many tokens the replay has computed, about."""
        return self.prompt_tokens + 2 * ANSWER_TOKENS


@dataclass(frozen=True, slots=True)
class Live:
    """Returns what counts now."""

    policies: Callable[[], PolicySet]
    kills: Callable[[], KillTable]


class ShadowSampler:
    """Keeps samples and replays them, one at a time."""

    def __init__(
        self,
        api: EngineApi,
        fleet: Fleet,
        verdicts: Verdicts,
        budget: PrefillBudget,
        metrics: Metrics,
        chance: random.Random,
        limits: ColdLimits,
        live: Live,
    ) -> None:
        self._api = api
        self._fleet = fleet
        self._verdicts = verdicts
        self._budget = budget
        self._metrics = metrics
        self._chance = chance
        self._limits = limits
        self._live = live
        self._queue: deque[Sample] = deque()
        self._replaying = False
        self._work = BackgroundWork()

    def offer(self, composed: Composed, report: Report | None) -> None:
        """Take an exchange that is over; what reused a tail is sampled at its policy's rate."""
        if report is None or report.reason is not Reason.HIT or not self._is_drawn(composed):
            return
        sample = _sample(composed, report)
        if sample is None or len(sample.body) > SAMPLE_BYTES_MAX or sample.prompt_tokens > PROMPT_TOKENS_MAX:
            self._count(composed, Outcome.TOO_LARGE)
        elif len(self._queue) >= QUEUE_MAX:
            self._count(composed, Outcome.QUEUE_FULL)
        else:
            self._queue.append(sample)
            self._start()

    async def idle(self) -> None:
        """Wait until no sample is left."""
        await self._work.idle()

    async def close(self) -> None:
        """Drop all samples."""
        self._queue.clear()
        await self._work.close()

    def _is_drawn(self, composed: Composed) -> bool:
        policy = composed.planned.policy
        if policy is None or policy.shadow.sample_rate <= 0.0:
            return False
        if composed.planned.identified.tenant in policy.shadow.exclude_tenants:
            return False
        return self._chance.random() < policy.shadow.sample_rate

    def _start(self) -> None:
        if not self._replaying:
            self._replaying = True
            self._work.start(self._replay_all())

    async def _replay_all(self) -> None:
        try:
            while self._queue:
                sample = self._queue.popleft()
                outcome = await self._settle(sample)
                self._metrics.shadow_replays.labels(sample.policy.full_name, outcome.value).inc()
        finally:
            self._replaying = False

    async def _settle(self, sample: Sample) -> Outcome:
        """Replay a sample as soon as its engine has little to do and the budget allows, or drop it."""
        for _ in range(WAITS_MAX):
            if not self._is_current(sample):
                return Outcome.OUTDATED
            if self._has_little_to_do(sample.engine) and self._budget.take(sample.cost_tokens):
                return await self._replay(sample)
            await asyncio.sleep(WAIT_SECONDS)
        return Outcome.BUSY

    def _is_current(self, sample: Sample) -> bool:
        """Say whether what the sample tells of is still read, and on the same start of its engine."""
        name, kills = sample.policy.full_name, self._live.kills()
        return (
            sample.policy in self._live.policies().policies
            and kills.level(name) not in READS_OFF
            and kills.epoch(name) == sample.epoch
            and self._fleet.info(sample.engine).batch == sample.batch
            and not self._verdicts.is_demoted(sample.tail, sample.policy, sample.epoch)
        )

    def _has_little_to_do(self, engine: Engine) -> bool:
        view = next((view for view in self._fleet.ready_views() if view.engine == engine), None)
        return (
            view is not None
            and view.in_flight <= LOAD_SHARE_MAX * self._limits.sequences
            and view.uncached_tokens <= LOAD_SHARE_MAX * self._limits.batched_tokens
        )

    async def _replay(self, sample: Sample) -> Outcome:
        # While it lasts, a replay loads its engine like any prompt.
        with self._fleet.flight(sample.engine, sample.cost_tokens) as flight:
            flight.sent()
            try:
                found = await self._ask(sample)
            except (ControlFailed, ControlRefused) as error:
                logger.warning("a shadow replay failed: %s", error)
                return Outcome.FAILED
            except Unreadable as error:
                logger.warning("a shadow replay says nothing: %s", error)
                return Outcome.UNREADABLE
        if isinstance(found, Outcome):
            return found
        self._compared(sample, found)
        return Outcome.COMPARED

    async def _ask(self, sample: Sample) -> Comparison | Outcome:
        """Have a sample answered on reused KV, and that answer judged by the exact path."""
        body = reused_body(sample.body, sample.path)
        answer = await self._api.complete(sample.engine, sample.path, body)
        report = report_of(answer.get("usage"))
        if report is None or report.reason is not Reason.HIT:
            return Outcome.NOT_REUSED
        answered = read_reused(answer, sample.path)
        tokens = (*answered.prompt, *answered.answer)
        salt = f"{CACHE_SALT_PREFIX}shadow-{self._chance.getrandbits(SALT_BITS):x}"
        body = exact_body(sample.model, tokens, salt, sample.epoch)
        exact = await self._api.complete(sample.engine, COMPLETIONS_PATH, body)
        report = report_of(exact.get("usage"))
        if report is None or report.suffix_tokens or report.prefix_tokens:
            return Outcome.NOT_EXACT
        return compare(read_exact(exact, answered), answered.candidates)

    def _compared(self, sample: Sample, comparison: Comparison) -> None:
        metrics, policy = self._metrics, sample.policy.full_name
        metrics.shadow_tokens.labels(policy).inc(comparison.tokens)
        metrics.shadow_agreed_tokens.labels(policy).inc(comparison.agreed)
        metrics.shadow_kl_nats.labels(policy).inc(comparison.nats)
        self._verdicts.observe(sample.tail, sample.policy, sample.epoch, comparison)

    def _count(self, composed: Composed, outcome: Outcome) -> None:
        policy = composed.planned.policy
        assert policy is not None, "only a policy's requests are sampled"
        self._metrics.shadow_replays.labels(policy.full_name, outcome.value).inc()


def _sample(composed: Composed, report: Report) -> Sample | None:
    """Return what a replay of an exchange needs, None where its path or its answer's form has none."""
    planned, hint = composed.planned, composed.outlook.hint
    tail, document = tail_version_of(planned.segmented), planned.segmented.canonicalized.document
    path = planned.identified.received.path
    if planned.policy is None or tail is None or document is None or composed.body is None:
        return None
    if hint is None or hint.op is not Operation.READ or path not in (CHAT_PATH, COMPLETIONS_PATH):
        return None
    return Sample(
        tail=tail,
        policy=planned.policy,
        epoch=hint.epoch,
        engine=composed.engine,
        batch=report.engine,
        path=path,
        model=raw_member(document, "model") or b"null",
        body=composed.body,
        prompt_tokens=report.prefix_tokens + report.suffix_tokens + report.computed_tokens,
    )
