"""All batches as figures, and the bounds beside the founding article's figures; all of it pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from bench.common.results import Bound, Row, find_row, row_of
from bench.engine.asking import Sample
from sternpost_core.errors import OperatingError
from sternpost_core.hint import Reason
from sternpost_gateway.bench.stats import (
    Estimate,
    estimate,
    estimate_paired,
    mean,
    mean_ratio,
    percentile,
    percentile_ratio,
)

SEED: Final = 11
"""Of the bootstrap, so that the same samples always give the same intervals."""

TURN_FROM: Final = 2
"""The first turn, counted from 0, whose reuse counts in a session with tools: the third."""

BATCHES_MIN: Final = 3
"""Fewer give a throughput, but no interval of it."""


@dataclass(frozen=True, slots=True)
class BatchPair:
    """One batch on both engines: seconds from its first request to its last answer, and its samples."""

    plain_seconds: float
    patched_seconds: float
    plain: tuple[Sample, ...]
    patched: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """One measured request on both engines."""

    plain: Sample
    patched: Sample


@dataclass(frozen=True, slots=True)
class Claim:
    """A bound, what the founding article says of the same figure, and what to know where it is missed."""

    bound: Bound
    article: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Judged:
    """A claim with its figure, None where this run has none."""

    claim: Claim
    row: Row | None

    @property
    def holds(self) -> bool:
        """Tell whether the figure is there and reaches the bound."""
        return self.row is not None and self.claim.bound.holds(self.row.value)


FIXED_COST: Final = (
    "A small model's forward on one CPU core has a fixed cost, and its rows of few tokens compute slower per "
    "token than one long row: compare with computed_ratio, the floor by token count."
)

NOISE: Final = (
    "Both engines do the same work here, so the interval shows what this machine can resolve; a bound within "
    "it is neither shown nor refuted."
)

FEW_TOKENS: Final = (
    "An answer of 16 tokens is decoded by both engines alike, and on one core decoding is a large part of "
    "the whole answer."
)

CLAIMS: Final = (
    Claim(Bound(workload="fixed_tail", metric="ttft_ratio", limit=0.146), "0.146", FIXED_COST),
    Claim(Bound(workload="tool_turns", metric="reuse_share_from_turn_3", limit=0.90, at_most=False), "0.80"),
    Claim(Bound(workload="tool_turns", metric="latency_ratio", limit=0.5), "0.55", FEW_TOKENS),
    Claim(
        Bound(workload="tool_turns_8", metric="throughput_ratio", limit=2, at_most=False),
        "about 2",
        FEW_TOKENS,
    ),
    Claim(Bound(workload="regenerate", metric="hit_share", limit=0.99, at_most=False), "0.95"),
    Claim(Bound(workload="regenerate", metric="ttft_ratio_to_full_prefill", limit=0.10), "none", FIXED_COST),
    Claim(Bound(workload="long_session", metric="computed_share", limit=0.20), "0.20"),
    Claim(Bound(workload="no_reuse", metric="ttft_ratio", limit=1.01), "1.05 to 1.08", NOISE),
    Claim(
        Bound(workload="no_reuse_8", metric="throughput_ratio", limit=0.99, at_most=False),
        "0.92 to 0.95",
        NOISE,
    ),
    Claim(Bound(workload="short_chat", metric="ttft_ratio", limit=1.01), "1.05 to 1.08", NOISE),
    Claim(
        Bound(workload="short_chat_8", metric="throughput_ratio", limit=0.99, at_most=False),
        "0.92 to 0.95",
        NOISE,
    ),
)


def workload_rows(workload: str, batches: Sequence[BatchPair]) -> list[Row]:
    """
    Return the figures of one scenario at one number of sessions at once.

    Raises:
        OperatingError: no measured request was answered by both engines.
    """
    pairs = pairs_of(batches)
    if not pairs:
        raise OperatingError(f"{workload}: no request was answered by both engines")
    plain, patched = [pair.plain for pair in pairs], [pair.patched for pair in pairs]
    rows = [
        _median(workload, "plain_ttft_p50", plain, lambda sample: sample.ttft),
        _median(workload, "patched_ttft_p50", patched, lambda sample: sample.ttft),
        row_of(workload, "ttft_ratio", _p50_ratio(pairs, lambda sample: sample.ttft)),
        row_of(workload, "latency_ratio", _p50_ratio(pairs, lambda sample: sample.total)),
        row_of(workload, "computed_ratio", _mean_ratio(pairs, lambda sample: sample.computed_tokens)),
        row_of(workload, "plain_computed_share", _computed_share(plain)),
        row_of(workload, "computed_share", _computed_share(patched)),
        row_of(workload, "reuse_share", _reuse_share(patched)),
        row_of(workload, "hit_share", _hit_share(patched)),
        _mean_row(workload, "prompt_tokens", patched, lambda sample: sample.prompt_tokens),
        _mean_row(workload, "plain_computed_tokens", plain, lambda sample: sample.computed_tokens),
        _mean_row(workload, "computed_tokens", patched, lambda sample: sample.computed_tokens),
        _throughput(workload, batches),
    ]
    late = [sample for sample in patched if sample.turn >= TURN_FROM]
    if late:
        rows.append(row_of(workload, "reuse_share_from_turn_3", _reuse_share(late)))
    return rows + _full_prefill_rows(workload, batches, patched)


def pairs_of(batches: Sequence[BatchPair]) -> list[Pair]:
    """Return the measured requests that both engines answered, in the plain engine's order."""
    patched = {sample.key: sample for batch in batches for sample in batch.patched}
    return [
        Pair(sample, patched[sample.key])
        for batch in batches
        for sample in batch.plain
        if sample.measured and sample.key in patched
    ]


def reasons_of(batches: Sequence[BatchPair]) -> Counter[str]:
    """Return what the plugin's store did for the measured requests."""
    return Counter(pair.patched.reason for pair in pairs_of(batches))


def memory_rows(records: Mapping[str, Mapping[str, float]]) -> list[Row]:
    """Return what both engines held at the end of the run, and their ratio."""
    plain, patched = records["plain"], records["patched"]
    rows = [
        Row(workload="memory", metric="plain_bytes", value=plain["bytes"], unit="B"),
        Row(workload="memory", metric="patched_bytes", value=patched["bytes"], unit="B"),
        Row(workload="memory", metric="suffix_pool_bytes", value=patched["pool_bytes"], unit="B"),
    ]
    if plain["bytes"] > 0:
        ratio = patched["bytes"] / plain["bytes"]
        rows.append(Row(workload="memory", metric="memory_ratio", value=ratio))
    return rows


def judge(rows: Sequence[Row]) -> tuple[Judged, ...]:
    """Hold the figures to all bounds."""
    return tuple(Judged(claim, find_row(rows, claim.bound.workload, claim.bound.metric)) for claim in CLAIMS)


Read = Callable[[Sample], float]


def _p50_ratio(pairs: Sequence[Pair], read: Read) -> Estimate:
    return _paired(pairs, read, lambda one, two: percentile_ratio(one, two, 0.5))


def _mean_ratio(pairs: Sequence[Pair], read: Read) -> Estimate:
    return _paired(pairs, read, mean_ratio)


def _paired(
    pairs: Sequence[Pair], read: Read, statistic: Callable[[Sequence[float], Sequence[float]], float]
) -> Estimate:
    candidate = [read(pair.patched) for pair in pairs]
    return estimate_paired(candidate, [read(pair.plain) for pair in pairs], statistic, Random(SEED))


def _computed_share(samples: Sequence[Sample]) -> Estimate:
    computed = [float(sample.computed_tokens) for sample in samples]
    return estimate_paired(
        computed, [float(sample.prompt_tokens) for sample in samples], mean_ratio, Random(SEED)
    )


def _reuse_share(samples: Sequence[Sample]) -> Estimate:
    reused = [float(sample.prefix_tokens + sample.suffix_tokens) for sample in samples]
    return estimate_paired(
        reused, [float(sample.prompt_tokens) for sample in samples], mean_ratio, Random(SEED)
    )


def _hit_share(samples: Sequence[Sample]) -> Estimate:
    """Return the share of requests whose tail was read; `_reuse_share` is that of their tokens."""
    return estimate([float(sample.reason == Reason.HIT.value) for sample in samples], mean, Random(SEED))


def _median(workload: str, metric: str, samples: Sequence[Sample], read: Read) -> Row:
    figure = estimate(
        [read(sample) for sample in samples], lambda values: percentile(values, 0.5), Random(SEED)
    )
    return row_of(workload, metric, figure, "s")


def _mean_row(workload: str, metric: str, samples: Sequence[Sample], read: Read) -> Row:
    return Row(
        workload=workload, metric=metric, value=mean([read(sample) for sample in samples]), n=len(samples)
    )


def _throughput(workload: str, batches: Sequence[BatchPair]) -> Row:
    """Return requests per second, patched over plain: both answered the same ones, so seconds decide."""
    plain = [batch.plain_seconds for batch in batches]
    patched = [batch.patched_seconds for batch in batches]
    figure = estimate_paired(plain, patched, mean_ratio, Random(SEED))
    known = len(batches) >= BATCHES_MIN
    return Row(
        workload=workload,
        metric="throughput_ratio",
        value=figure.value,
        n=len(batches),
        low=figure.low if known else None,
        high=figure.high if known else None,
    )


def _full_prefill_rows(workload: str, batches: Sequence[BatchPair], patched: Sequence[Sample]) -> list[Row]:
    """Where a session's first request is not measured: the others over plain vLLM's time for that one."""
    first = [sample.ttft for batch in batches for sample in batch.plain if not sample.measured]
    if len(first) != len(patched):
        return []
    figure = estimate_paired(
        [sample.ttft for sample in patched],
        first,
        lambda one, two: percentile_ratio(one, two, 0.5),
        Random(SEED),
    )
    return [row_of(workload, "ttft_ratio_to_full_prefill", figure)]
