"""What the benchmark says: figures with intervals, a table, and which bounds hold; all of it pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from bench.common.results import Row, row_of
from bench.routing.drive import Ended, Outcome, Turns, first_tokens, gap, reuse
from sternpost_gateway.bench.stats import Estimate, bootstrap

OURS: Final = "sternpost"
LEAST_LOADED: Final = "least_loaded"
RENDEZVOUS: Final = "rendezvous"
SEED: Final = 5
"""Of the bootstrap, so that the same runs always give the same intervals."""

GAP_MAX: Final = 0.03
IMBALANCE_MAX: Final = 1.3
NO_REUSE: Final = "no_reuse"
NO_REUSE_RATIO_MAX: Final = 1.03
"""The bounds that are set: reuse to the oracle, busiest engine to the mean, and latency without any reuse."""

REUSE_EQUAL: Final = 0.01
"""Shares of reuse that differ by less than a point are equal."""

ROUTER_SHARE_MAX: Final = 0.5
"""Of a core that a router may compute: with more, its own queue is measured rather than where requests go."""

LATENESS_MAX: Final = 0.005
"""Seconds that a timer may be late: on a machine that is busier, times to first token are the machine's."""

MEDIAN: Final = 0.5
SLOWEST: Final = 0.95

Results = Mapping[str, Mapping[str, Outcome]]
"""Outcomes by workload, then by router."""

Statistic = Callable[[Sequence[Turns]], float]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A bound, its figure in words, and whether it holds."""

    text: str
    holds: bool


def rows(results: Results, peers: Sequence[str]) -> list[Row]:
    """Return one row for each figure; this project's have no router in their names."""
    found: list[Row] = []
    for workload, outcomes in results.items():
        for router, one in outcomes.items():
            prefix = "" if router == OURS else f"{router}_"
            found += _rows(workload, prefix, one)
        known = [peer for peer in peers if peer in outcomes]
        if OURS in outcomes and known:
            fastest = min(known, key=lambda peer: first_tokens(outcomes[peer].conversations, MEDIAN))
            ratio = ttft_ratio(outcomes[OURS], outcomes[fastest], MEDIAN)
            found.append(row_of(workload, "ttft_ratio_best_peer", ratio))
    return found


def verdicts(results: Results, peers: Sequence[str]) -> list[Verdict]:
    """Return the bounds for this project's gateway, and whether the figures mean anything."""
    found: list[Verdict] = []
    for workload, outcomes in results.items():
        if OURS in outcomes:
            found += _bounds(workload, outcomes, peers)
        found += _doubts(workload, outcomes)
    return found


def _bounds(workload: str, outcomes: Mapping[str, Outcome], peers: Sequence[str]) -> Iterator[Verdict]:
    ours = outcomes[OURS]
    yield from _own(workload, ours)
    for peer in (*peers, RENDEZVOUS):
        if peer in outcomes:
            yield from _beside(f"{workload}: {peer}", ours, outcomes[peer])
    if workload == NO_REUSE and LEAST_LOADED in outcomes:
        ratio = ttft_ratio(ours, outcomes[LEAST_LOADED], MEDIAN)
        text = f"{workload}: {_shown(ratio)} of least-loaded's median, at most {NO_REUSE_RATIO_MAX}"
        yield Verdict(text, ratio.low <= NO_REUSE_RATIO_MAX)


def _doubts(workload: str, outcomes: Mapping[str, Outcome]) -> Iterator[Verdict]:
    for router, one in outcomes.items():
        if one.router_share > ROUTER_SHARE_MAX:
            yield Verdict(f"{workload}: {router} is busy for {one.router_share:.0%}", False)
        if one.lateness > LATENESS_MAX:
            text = f"{workload}: {router} ran while timers were {one.lateness * 1000:.1f} ms late"
            yield Verdict(text, False)


def ttft_ratio(ours: Outcome, theirs: Outcome, share: float) -> Estimate:
    """Return a percentile of our times to first token over theirs; conversations are drawn as pairs."""
    statistic = partial(first_tokens, share=share)
    return _paired(ours, theirs, lambda one, other: statistic(one) / statistic(other))


def reuse_difference(ours: Outcome, theirs: Outcome) -> Estimate:
    """Return our share of reuse less theirs; conversations are drawn as pairs."""
    return _paired(ours, theirs, lambda one, other: reuse(one) - reuse(other))


def table(results: Results) -> Iterator[str]:
    """Yield the lines of a table; the columns before the last are shares of one core."""
    columns = (
        "reuse",
        "gap",
        "imbal.",
        "p50 ms",
        "p95 ms",
        "cut",
        "failed",
        "router",
        "engines",
        "clients",
        "late ms",
    )
    yield f"{'workload':<14}{'router':<13}" + "".join(f"{column:>8}" for column in columns)
    for workload, outcomes in results.items():
        for router, one in outcomes.items():
            p50, p95 = (first_tokens(one.conversations, share) * 1000 for share in (MEDIAN, SLOWEST))
            yield (
                f"{workload:<14}{router:<13}{reuse(one.conversations):>8.3f}{gap(one.conversations):>8.3f}"
                f"{one.imbalance:>8.2f}{p50:>8.1f}{p95:>8.1f}{one.count(Ended.CUT):>8}"
                f"{one.count(Ended.FAILED):>8}{one.router_share:>8.2f}{one.engines_share:>8.2f}"
                f"{one.clients_share:>8.2f}{one.lateness * 1000:>8.1f}"
            )


def _rows(workload: str, prefix: str, one: Outcome) -> Iterator[Row]:
    figures: tuple[tuple[str, Statistic, str], ...] = (
        ("reuse_share", reuse, "1"),
        ("reuse_gap_to_oracle", gap, "1"),
        ("ttft_p50", partial(first_tokens, share=MEDIAN), "s"),
        ("ttft_p95", partial(first_tokens, share=SLOWEST), "s"),
    )
    for metric, statistic, unit in figures:
        yield row_of(workload, prefix + metric, _interval(one, statistic), unit)
    for metric, value in (
        ("imbalance", one.imbalance),
        ("cut", one.count(Ended.CUT)),
        ("failed", one.count(Ended.FAILED)),
        ("router_share", one.router_share),
        ("lateness_s", one.lateness),
    ):
        yield Row(workload=workload, metric=prefix + metric, value=value, n=one.requests)


def _own(workload: str, ours: Outcome) -> Iterator[Verdict]:
    missed, failed = gap(ours.conversations), ours.count(Ended.FAILED)
    yield Verdict(f"{workload}: reuse {missed:.3f} from the oracle, at most {GAP_MAX}", missed <= GAP_MAX)
    text = f"{workload}: imbalance {ours.imbalance:.2f}, at most {IMBALANCE_MAX}"
    yield Verdict(text, ours.imbalance <= IMBALANCE_MAX)
    yield Verdict(f"{workload}: {failed} of {ours.requests} failed before an answer, none may", failed == 0)


def _beside(name: str, ours: Outcome, theirs: Outcome) -> Iterator[Verdict]:
    """Yield whether we are as good as another router: not worse by more than chance explains."""
    difference = reuse_difference(ours, theirs)
    yield Verdict(f"{name}: reuse {_shown(difference)} above", difference.high >= -REUSE_EQUAL)
    for label, share in (("median", MEDIAN), ("95th percentile", SLOWEST)):
        ratio = ttft_ratio(ours, theirs, share)
        yield Verdict(f"{name}: {_shown(ratio)} of its {label} to first token", ratio.low <= 1.0)


def _interval(one: Outcome, statistic: Statistic) -> Estimate:
    turns = one.conversations
    return bootstrap(len(turns), lambda places: statistic([turns[place] for place in places]), Random(SEED))


def _paired(
    ours: Outcome, theirs: Outcome, statistic: Callable[[Sequence[Turns], Sequence[Turns]], float]
) -> Estimate:
    one, other = ours.conversations, theirs.conversations
    assert len(one) == len(other), "all routers get the same workload"
    return bootstrap(
        len(one),
        lambda places: statistic([one[place] for place in places], [other[place] for place in places]),
        Random(SEED),
    )


def _shown(figure: Estimate) -> str:
    return f"{figure.value:.3f} ({figure.low:.3f} to {figure.high:.3f})"
