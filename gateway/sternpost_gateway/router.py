"""
Routing one request after the other: gather what is believed, let the strategy decide, remember the decision.

Whatever fails while engines are scored costs affinity, and never a request: the least loaded engine gets it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from sternpost_core.hint import Report
from sternpost_gateway.block_index import BlockIndex
from sternpost_gateway.ejection import Ejections
from sternpost_gateway.eligible import eligible
from sternpost_gateway.elsewhere import Elsewhere, goes_on
from sternpost_gateway.estimates import Estimates, Sample
from sternpost_gateway.fleet import Engine, Fleet, View
from sternpost_gateway.plan import Planned
from sternpost_gateway.prompt_blocks import (
    BLOCK_BYTES,
    NO_BLOCKS,
    BlockHash,
    PromptBlocks,
    blocks_of,
    held_bytes,
)
from sternpost_gateway.recent import Recent
from sternpost_gateway.route import Affinity, Candidate, Demand, Strategy, require_candidates
from sternpost_gateway.slow_start import SlowStart
from sternpost_gateway.tails import Tails, TailState
from sternpost_gateway.tokens import TailFacts

logger = logging.getLogger(__name__)

SHORTFALL_BLOCKS_MAX: Final = 2
"""By which an engine may find less than was predicted: its blocks are cut by tokens, ours by bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """
    Where a request goes, and what was predicted there.

    `reuse_tokens` of about `prompt_tokens` are predicted to be reused, `held_blocks` first blocks among them;
    `confirmed_blocks` of those had been computed for certain. `queued_tokens` were in flight and uncached on
    the engine beforehand.
    """

    engine: Engine
    affinity: Affinity
    blocks: PromptBlocks = NO_BLOCKS
    prompt_tokens: float = 0.0
    reuse_tokens: float = 0.0
    confirmed_blocks: int = 0
    held_blocks: int = 0
    queued_tokens: float = 0.0
    prefill_rate: float = 1.0

    @property
    def uncached_tokens(self) -> float:
        """Return how many tokens the engine is predicted to compute."""
        return max(0.0, self.prompt_tokens - self.reuse_tokens)

    @property
    def expected_blocks(self) -> Sequence[BlockHash]:
        """Return the blocks that other requests are still to leave on the engine."""
        return self.blocks.hashes[self.confirmed_blocks : self.held_blocks]

    @property
    def expected_tokens(self) -> float:
        """Return how many tokens of the predicted reuse other requests are still to leave on the engine."""
        share = len(self.expected_blocks) * BLOCK_BYTES / max(1, self.blocks.prompt_bytes)
        return share * self.prompt_tokens

    @property
    def prefill_seconds(self) -> float:
        """Return how long the engine is predicted to take to the first token."""
        return (self.queued_tokens + self.uncached_tokens) / self.prefill_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """
    What an answer says: our own report, or what any engine's usage has; each is None where it does not say.

    `first_token_seconds` passed from the sending to the first byte of a stream.
    """

    first_token_seconds: float | None = None
    report: Report | None = None
    cached_tokens: int | None = None
    prompt_tokens: int | None = None

    @property
    def reused(self) -> int | None:
        """Return the tokens that the prefix cache held."""
        return self.cached_tokens if self.report is None else self.report.prefix_tokens

    @property
    def computed(self) -> int | None:
        """Return the tokens that were computed."""
        if self.report is not None:
            return self.report.computed_tokens
        if self.prompt_tokens is None or self.cached_tokens is None:
            return None
        return max(0, self.prompt_tokens - self.cached_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategies:
    """How engines are chosen: for a request that has a conversation key, and for all others."""

    affinity: Strategy
    least_loaded: Strategy


class Router:
    """Chooses engines, and learns from what they answer."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        tails: Tails,
        index: BlockIndex,
        estimates: Estimates,
        ejections: Ejections,
        slow_start: SlowStart,
        recent: Recent,
        elsewhere: Elsewhere,
        strategies: Strategies,
    ) -> None:
        self._fleet = fleet
        self._tails = tails
        self._index = index
        self._estimates = estimates
        self._ejections = ejections
        self._slow_start = slow_start
        self._recent = recent
        self._elsewhere = elsewhere
        self._strategies = strategies

    def views(self) -> tuple[View, ...]:
        """Return the engines that may get requests; where all ready ones are ejected, all ready ones."""
        ready = self._fleet.ready_views()
        return tuple(view for view in ready if not self._ejections.is_ejected(view.engine)) or ready

    def prefill_rate(self) -> float:
        """Return the prefill rate of all engines together that may get requests, in tokens per second."""
        return sum(self._estimates.prefill_rate(view.engine) for view in self.views())

    def route(self, planned: Planned, tried: Collection[Engine] = ()) -> Routed:
        """
        Choose an engine, preferably one not tried yet.

        Raises:
            NoEngine: none is ready.
        """
        views = eligible(self.views(), planned.policy, planned.identified.model)
        fresh = tuple(view for view in views if view.engine not in tried) or views
        routed = self._choose(planned, fresh)
        self._recent.add(routed.engine)
        return routed

    def _choose(self, planned: Planned, fresh: Sequence[View]) -> Routed:
        try:
            return self._by_score(planned, fresh)
        except Exception as error:  # noqa: BLE001
            # Affinity is an extra: no request may be lost to it. Without candidates the next line raises.
            if fresh:
                logger.error("an engine is chosen by load alone, scoring failed: %s", type(error).__name__)
            return self._by_load(fresh)

    def sent(self, routed: Routed) -> None:
        """Remember that a request is on its way to an engine, which will hold its prompt."""
        if routed.blocks.hashes:
            self._index.expect(routed.engine, routed.blocks.hashes)

    def began(self, routed: Routed) -> None:
        """Note that an engine has computed a request's prompt: its answer has begun, and is no error."""
        if routed.blocks.hashes:
            self._index.confirm(routed.engine, routed.blocks.hashes)

    def succeeded(self, routed: Routed, lesson: Lesson) -> None:
        """Learn from a whole answer."""
        self._ejections.succeeded(routed.engine)
        if lesson.prompt_tokens is not None:
            self._estimates.learn_length(routed.blocks.prompt_bytes, lesson.prompt_tokens)
        tokens_per_block = self._estimates.tokens(BLOCK_BYTES)
        sample = Sample(
            queued_tokens=routed.queued_tokens,
            computed_tokens=routed.uncached_tokens if lesson.computed is None else lesson.computed,
            first_token_seconds=lesson.first_token_seconds,
            # The last confirmed block may lie over the end of what the engine's own blocks can hold.
            predicted_tokens=max(0.0, (routed.confirmed_blocks - 1) * tokens_per_block),
            reused_tokens=lesson.reused,
        )
        self._estimates.learn(routed.engine, sample)
        if lesson.reused is not None:
            self._correct(routed, int(lesson.reused / tokens_per_block))

    def failed(self, routed: Routed) -> bool:
        """Note that an engine failed a request; return whether it is ejected by that."""
        self._index.withdraw(routed.engine, routed.blocks.hashes)
        return self._ejections.failed(routed.engine, self._fleet.engines)

    def refused(self, routed: Routed) -> None:
        """Note that an engine refused a request, which says nothing against the engine."""
        self._index.withdraw(routed.engine, routed.blocks.hashes)
        self._ejections.succeeded(routed.engine)

    def _correct(self, routed: Routed, found_blocks: int) -> None:
        """Take back what the engine has evicted; what it has just computed it holds again."""
        if found_blocks + SHORTFALL_BLOCKS_MAX < routed.confirmed_blocks:
            hashes = routed.blocks.hashes
            self._index.missed(routed.engine, hashes[found_blocks : routed.confirmed_blocks])
            self._index.confirm(routed.engine, hashes)

    def _by_score(self, planned: Planned, views: Sequence[View]) -> Routed:
        blocks = blocks_of(planned)
        held = self._index.match(blocks.hashes)
        if planned.conversation is not None:
            self._elsewhere.note(planned.conversation, goes_on=goes_on(planned))
        prompt_tokens = self._estimates.tokens(blocks.prompt_bytes)
        demand = Demand(planned.conversation, prompt_tokens, self._elsewhere.is_alone)
        weights = self._slow_start.weights([view.engine for view in views])
        candidates = [
            self._candidate(planned, view, held_bytes(held.get(view.engine, 0), blocks), weight)
            for view, weight in zip(views, weights, strict=True)
        ]
        strategy = self._strategies.affinity if planned.conversation else self._strategies.least_loaded
        choice = strategy.choose(require_candidates(candidates), demand)
        chosen = next(candidate for candidate in candidates if candidate.engine == choice.engine)
        return Routed(
            engine=chosen.engine,
            affinity=choice.affinity,
            blocks=blocks,
            prompt_tokens=demand.prompt_tokens,
            reuse_tokens=chosen.reuse_tokens,
            confirmed_blocks=self._index.confirmed(chosen.engine, blocks.hashes),
            held_blocks=held.get(chosen.engine, 0),
            queued_tokens=chosen.ahead_tokens,
            prefill_rate=chosen.prefill_rate,
        )

    def _by_load(self, views: Sequence[View]) -> Routed:
        candidates = [Candidate(view.engine, view.in_flight) for view in views]
        choice = self._strategies.least_loaded.choose(require_candidates(candidates), Demand(None))
        return Routed(engine=choice.engine, affinity=choice.affinity)

    def _candidate(self, planned: Planned, view: View, held: int, weight: float) -> Candidate:
        engine = view.engine
        rate = self._estimates.prefill_rate(engine)
        reuse = self._estimates.tokens(held) * self._estimates.trust(engine)
        return Candidate(
            engine=engine,
            in_flight=view.in_flight,
            reuse_tokens=reuse + self._tail_tokens(planned, engine),
            ahead_tokens=view.ahead_tokens(rate),
            recent=self._recent.count(engine),
            prefill_rate=rate,
            weight=weight,
        )

    def _tail_tokens(self, planned: Planned, engine: Engine) -> int:
        """Return how many tokens of the tail the engine's suffix store is expected to spare it."""
        wish, policy = planned.wish, planned.policy
        if wish is None or policy is None or policy.suffix_cache is None:
            return 0
        if self._tails.state(engine, wish.key) is not TailState.BUILT:
            return 0
        facts = self._tails.facts(wish.template.template_id)
        if not isinstance(facts, TailFacts):
            return 0
        recompute = policy.suffix_cache.recompute
        return max(0, len(facts.tail) - recompute.head - recompute.last)
