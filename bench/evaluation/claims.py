"""The bounds of the evaluation, and the figure that each one is about; all of it pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bench.common.results import Bound
from bench.evaluation.targets import ANY_ENGINE, HOP, NO_CACHE, OWN, PLAIN, STERNPOST
from sternpost_gateway.bench.sample import Sample, Unit
from sternpost_gateway.bench.stats import Estimate, mean, percentile
from sternpost_gateway.bench.summary import Ratios, answered, grouped, paired_ratios

BEST_PEER: Final = "the best peer"

Groups = Mapping[tuple[str, str], Sequence[Unit]]
"""Units by workload and target."""

STATISTICS: Final[Mapping[str, Callable[[Sequence[Sample]], float]]] = {
    "ttft_p50": lambda samples: percentile([sample.ttft for sample in samples], 0.5),
    "total_mean": lambda samples: mean([sample.total for sample in samples]),
    "computed_tokens": lambda samples: mean([sample.computed_tokens for sample in samples]),
}
"""The figures of claims, by which the best peer is found."""


@dataclass(frozen=True, slots=True)
class Claim:
    """
    A bound on one of this project's targets over another target.

    `against` is a target's name, or the best peer: the target of others with the least of the same figure.
    """

    target: str
    bound: Bound
    against: str
    says: str


@dataclass(frozen=True, slots=True)
class Judged:
    """A claim, what it was measured against, and its figure; None where this run has none."""

    claim: Claim
    against: str
    figure: Estimate | None

    @property
    def holds(self) -> bool:
        """Tell whether the figure is there and reaches the bound."""
        return self.figure is not None and self.claim.bound.holds(self.figure.value)


def _claim(
    workload: str, metric: str, limit: float, against: str, says: str, target: str = STERNPOST
) -> Claim:
    return Claim(target, Bound(workload=workload, metric=metric, limit=limit), against, says)


CLAIMS: Final = (
    _claim("agent_unstable", "computed_tokens", 0.5, BEST_PEER, "half of the best peer's computed tokens"),
    _claim("agent_unstable", "ttft_p50", 0.5, BEST_PEER, "half of the best peer's time to first token"),
    _claim(
        "agent_unstable",
        "computed_tokens",
        0.5,
        BEST_PEER,
        "the same without the engines' plugin",
        ANY_ENGINE,
    ),
    _claim("agent_unstable", "ttft_p50", 0.5, BEST_PEER, "the same without the engines' plugin", ANY_ENGINE),
    _claim("clean_shared", "ttft_p50", 1.03, BEST_PEER, "within 3% of the best on clean, shared prefixes"),
    _claim("fixed_tail", "ttft_p50", 0.146, PLAIN, "the founding article's ratio for a fixed tail"),
    _claim("long_reasoning", "total_mean", 0.5, NO_CACHE, "twice as fast end to end, as the article says"),
    _claim("no_reuse", "ttft_p50", 1.01, HOP, "no more than 1% over the same hop where nothing repeats"),
    _claim("short_chat", "total_mean", 1.01, PLAIN, "no more than 1% over plain vLLM in short chats"),
)


def judge(units: Sequence[Unit]) -> list[Judged]:
    """Return every claim with its figure."""
    groups = grouped(units)
    return [_judge(claim, groups) for claim in CLAIMS]


def _judge(claim: Claim, groups: Groups) -> Judged:
    workload = claim.bound.workload
    against = best_peer(groups, workload, claim.bound.metric) if claim.against == BEST_PEER else claim.against
    if against is None or not {(workload, against), (workload, claim.target)} <= set(groups):
        return Judged(claim, against or BEST_PEER, None)
    ratios = paired_ratios(
        workload, claim.target, against, groups[workload, claim.target], groups[workload, against]
    )
    figure = figure_of(ratios, claim.bound.metric) if ratios is not None else None
    return Judged(claim, against, figure)


def best_peer(groups: Groups, workload: str, metric: str) -> str | None:
    """Return the target of others that has the least of a figure; None where no other target answered."""
    found = {
        target: STATISTICS[metric](list(answered(units).values()))
        for (name, target), units in groups.items()
        if name == workload and target not in OWN and answered(units)
    }
    return min(found, key=lambda target: found[target], default=None)


def figure_of(ratios: Ratios, metric: str) -> Estimate:
    """Return the figure of a claim's metric."""
    found: Estimate = getattr(ratios, metric)
    return found
