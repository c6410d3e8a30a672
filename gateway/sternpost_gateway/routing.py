"""Putting the routing together: what the router is made of, and who is told when an engine changes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sternpost_core.clock import Clock
from sternpost_gateway.block_index import BlockIndex
from sternpost_gateway.cold_gate import ColdGate, OnOutcome
from sternpost_gateway.cold_limiter import ColdLimits
from sternpost_gateway.ejection import Ejections
from sternpost_gateway.elsewhere import Elsewhere
from sternpost_gateway.estimates import Estimates
from sternpost_gateway.fleet import Engine, Fleet
from sternpost_gateway.prefill_budget import BUILD_SHARE, SHADOW_SHARE, PrefillBudget
from sternpost_gateway.recent import Recent
from sternpost_gateway.route import LeastCost, LeastLoaded
from sternpost_gateway.router import Router, Strategies
from sternpost_gateway.slow_start import SlowStart
from sternpost_gateway.tails import Tails


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """The fleet, and everything that is believed about its engines."""

    fleet: Fleet
    index: BlockIndex
    estimates: Estimates
    ejections: Ejections
    slow_start: SlowStart
    router: Router
    gate: ColdGate
    budget: PrefillBudget
    shadow_budget: PrefillBudget


DEFAULT_COLD_LIMITS: Final = ColdLimits()
"""For engines that run with vLLM's own defaults."""


def by_least_cost(chance: random.Random) -> Strategies:
    """Return the strategies that a gateway uses."""
    return Strategies(affinity=LeastCost(chance), least_loaded=LeastLoaded(chance))


def make_routing(
    engines: Sequence[Engine],
    tails: Tails,
    clock: Clock,
    chance: random.Random,
    *,
    strategies: Callable[[random.Random], Strategies] = by_least_cost,
    cold: ColdLimits = DEFAULT_COLD_LIMITS,
    budget_share: float = 1.0,
    shadow_share: float = SHADOW_SHARE,
    on_outcome: OnOutcome = lambda outcome, seconds: None,
) -> Routing:
    """
    Make the routing of a gateway, by least cost unless other strategies are given.

    `budget_share` is the part of the budgets for builds and replays that this process may spend,
    `shadow_share` that of the prefill rate for replays.
    """
    gate = ColdGate(cold, clock, chance, on_outcome)
    index = BlockIndex(clock)
    estimates = Estimates()
    ejections = Ejections(clock, chance)
    slow_start = SlowStart(clock)
    recent = Recent(clock)

    def void(engine: Engine) -> None:
        tails.forget_engine(engine)
        index.forget(engine)
        estimates.forget(engine)
        ejections.forget(engine)

    def on_batch(engine: Engine) -> None:
        void(engine)
        slow_start.began(engine)

    def on_gone(engine: Engine) -> None:
        void(engine)
        slow_start.forget(engine)
        recent.forget(engine)
        gate.forget(engine)

    fleet = Fleet(engines, on_batch, on_ready=slow_start.began, on_gone=on_gone, monotonic=clock.monotonic)
    router = Router(
        fleet=fleet,
        tails=tails,
        index=index,
        estimates=estimates,
        ejections=ejections,
        slow_start=slow_start,
        recent=recent,
        elsewhere=Elsewhere(),
        strategies=strategies(chance),
    )

    def prefill_rate() -> float:
        return budget_share * router.prefill_rate()

    return Routing(
        fleet=fleet,
        index=index,
        estimates=estimates,
        ejections=ejections,
        slow_start=slow_start,
        router=router,
        gate=gate,
        budget=PrefillBudget(clock, prefill_rate, BUILD_SHARE),
        shadow_budget=PrefillBudget(clock, prefill_rate, shadow_share),
    )
