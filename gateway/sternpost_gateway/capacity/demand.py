"""What a log's requests leave to compute, today and under a policy, by lint's simulation of caches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sternpost_core.policy import Policy
from sternpost_gateway.capacity.speed import Work
from sternpost_gateway.lint.log import LineCounts, Log
from sternpost_gateway.lint.prompt import Prompts
from sternpost_gateway.lint.simulate import CacheShape, Scenario, Simulation


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """
    Requests as an engine meets them.

    `prompt_tokens` and `computed_tokens` are one number for each request, in the log's order; what a cache
    holds at the end is `prefix_tokens` in blocks and `tail_tokens` in the suffix store.
    """

    prompt_tokens: tuple[int, ...]
    computed_tokens: tuple[int, ...]
    prefix_tokens: int
    tail_tokens: int

    @property
    def works(self) -> tuple[Work, ...]:
        """Return what each request takes."""
        return tuple(map(Work, self.computed_tokens, self.prompt_tokens))

    @property
    def reuse(self) -> float:
        """Return the share of prompt tokens, from 0 to 1, that need not be computed."""
        return 1 - sum(self.computed_tokens) / sum(self.prompt_tokens)


@dataclass(slots=True)
class _Arm:
    """One scenario, and its totals after each request."""

    scenario: Scenario
    prompt: list[int]
    computed: list[int]

    def take(self) -> None:
        tally = self.scenario.tally
        self.prompt.append(tally.prompt_tokens)
        self.computed.append(tally.computed_tokens)

    def demand(self) -> Demand:
        # A request that the template refuses adds nothing, and asks for nothing.
        pairs = zip(_steps(self.prompt), _steps(self.computed), strict=True)
        kept = [(prompt, computed) for prompt, computed in pairs if prompt]
        return Demand(
            prompt_tokens=tuple(prompt for prompt, _ in kept),
            computed_tokens=tuple(computed for _, computed in kept),
            prefix_tokens=self.scenario.prefix_tokens,
            tail_tokens=self.scenario.stored_tail_tokens,
        )


def demands(
    log: Log, prompts: Prompts, shape: CacheShape, policy: Policy | None, advance: Callable[[int], None]
) -> tuple[Demand, Demand]:
    """
    Return the demand as things are and under a policy; without one, both are the same.

    All engines together are taken for one cache, which is kinder to the arm without a policy than a round
    robin would be.

    Raises:
        OperatingError: a file of the log cannot be read.
    """
    simulation = Simulation([None, policy], prompts, shape)
    arms = [_Arm(scenario, [], []) for scenario in simulation.scenarios]
    for _, request in log.requests(LineCounts(), advance):
        simulation.observe(request)
        for arm in arms:
            arm.take()
    today, fixed = (arm.demand() for arm in arms)
    return today, fixed


def _steps(totals: Sequence[int]) -> list[int]:
    return [now - before for before, now in pairwise([0, *totals])]
