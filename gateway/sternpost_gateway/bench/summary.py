"""What all units together show: figures with intervals, and ratios to a baseline; all of it pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from sternpost_gateway.bench.sample import Sample, Unit, summed
from sternpost_gateway.bench.stats import (
    Estimate,
    estimate,
    estimate_paired,
    mean,
    mean_ratio,
    percentile,
    percentile_ratio,
)

SEED: Final = 9
"""Of the bootstrap, so that the same units always give the same intervals."""

MEMORY: Final = "process_resident_memory_bytes"
KV_CACHE: Final = "vllm:kv_cache_usage_perc"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """
    One workload at one target: times in seconds, tokens as means over requests, shares of prompt tokens.

    `answers_per_second` is over the units' whole length. The peaks are None where no engine told them, and
    `counted` is how much the engines' own counters grew, requests that are not measured included.
    """

    workload: str
    target: str
    requests: int
    failed: int
    ttft_mean: Estimate
    ttft_p50: Estimate
    ttft_p95: Estimate
    total_p50: Estimate
    between_p50: Estimate | None
    prompt_tokens: float
    computed_tokens: Estimate
    prefix_share: float
    suffix_share: float
    answers_per_second: float
    memory_peak: float | None
    kv_cache_peak: float | None
    counted: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """
    One target over another on the same requests.

    `identical` is the share of requests whose greedy answers were the same text.
    """

    workload: str
    target: str
    baseline: str
    ttft_p50: Estimate
    total_p50: Estimate
    total_mean: Estimate
    computed_tokens: Estimate
    identical: Estimate


Key = tuple[int, str, int]
"""Repetition, session, turn: what pairs the samples of two targets."""


def figures_of(units: Sequence[Unit]) -> list[Figures]:
    """Return the figures of each workload at each target that answered anything, in the units' order."""
    return [found for group in grouped(units).values() if (found := _figures(group)) is not None]


def ratios_of(units: Sequence[Unit], baseline: str) -> list[Ratios]:
    """Return the ratios of every other target to the baseline, where both answered the same requests."""
    groups = grouped(units)
    found: list[Ratios] = []
    for (workload, target), group in groups.items():
        if target == baseline or (workload, baseline) not in groups:
            continue
        if ratios := paired_ratios(workload, target, baseline, group, groups[workload, baseline]):
            found.append(ratios)
    return found


def grouped(units: Sequence[Unit]) -> dict[tuple[str, str], list[Unit]]:
    """Return the units by workload and target."""
    groups: dict[tuple[str, str], list[Unit]] = {}
    for unit in units:
        groups.setdefault((unit.workload, unit.target), []).append(unit)
    return groups


def answered(units: Sequence[Unit]) -> dict[Key, Sample]:
    """Return the measured samples without an error."""
    return {
        (unit.repeat, *sample.key): sample
        for unit in units
        for sample in unit.samples
        if sample.measured and not sample.error
    }


def paired_ratios(
    workload: str, target: str, baseline: str, candidate_units: Sequence[Unit], baseline_units: Sequence[Unit]
) -> Ratios | None:
    """Return a target's ratios to a baseline; None where no request was answered by both."""
    ours, theirs = answered(candidate_units), answered(baseline_units)
    keys = [key for key in theirs if key in ours]
    if not keys:
        return None
    candidate, base = [ours[key] for key in keys], [theirs[key] for key in keys]
    same = [float(one.answer == other.answer) for one, other in zip(candidate, base, strict=True)]
    return Ratios(
        workload=workload,
        target=target,
        baseline=baseline,
        ttft_p50=_ratio(candidate, base, _ttft, _p50_ratio),
        total_p50=_ratio(candidate, base, _total, _p50_ratio),
        total_mean=_ratio(candidate, base, _total, mean_ratio),
        computed_tokens=_ratio(candidate, base, _computed, mean_ratio),
        identical=estimate(same, mean, Random(SEED)),
    )


def rows_of(figures: Sequence[Figures], ratios: Sequence[Ratios]) -> Iterator[dict[str, Any]]:
    """Yield every figure as a row: workload, target, metric, value, unit, n, and the interval's ends."""
    for one in figures:
        for metric, figure, unit in (
            ("ttft_mean", one.ttft_mean, "s"),
            ("ttft_p50", one.ttft_p50, "s"),
            ("ttft_p95", one.ttft_p95, "s"),
            ("end_to_end_p50", one.total_p50, "s"),
            ("inter_token_p50", one.between_p50, "s"),
            ("computed_tokens", one.computed_tokens, "tokens"),
        ):
            if figure is not None:
                yield _row(one.workload, one.target, metric, figure, unit)
        for metric, value, unit in (
            ("prompt_tokens", one.prompt_tokens, "tokens"),
            ("prefix_share", one.prefix_share, "1"),
            ("suffix_share", one.suffix_share, "1"),
            ("answers_per_second", one.answers_per_second, "1/s"),
            ("failed", float(one.failed), "1"),
            ("memory_peak", one.memory_peak, "B"),
            ("kv_cache_peak", one.kv_cache_peak, "1"),
            *((name, grown, "1") for name, grown in one.counted.items()),
        ):
            if value is not None:
                yield _plain_row(one, metric, value, unit)
    for ratio in ratios:
        for metric, figure in (
            ("ttft_p50_ratio", ratio.ttft_p50),
            ("end_to_end_p50_ratio", ratio.total_p50),
            ("end_to_end_mean_ratio", ratio.total_mean),
            ("computed_tokens_ratio", ratio.computed_tokens),
            ("identical_answers", ratio.identical),
        ):
            yield {**_row(ratio.workload, ratio.target, metric, figure, "1"), "baseline": ratio.baseline}


def _figures(units: Sequence[Unit]) -> Figures | None:
    samples = list(answered(units).values())
    if not samples:
        return None
    prompt = sum(sample.prompt_tokens for sample in samples) or 1
    between = [sample.between for sample in samples if sample.between is not None]
    every = [sample for unit in units for sample in unit.samples]
    return Figures(
        workload=units[0].workload,
        target=units[0].target,
        requests=len(samples),
        failed=sum(1 for sample in every if sample.error),
        ttft_mean=estimate([_ttft(sample) for sample in samples], mean, Random(SEED)),
        ttft_p50=estimate([_ttft(sample) for sample in samples], _p50, Random(SEED)),
        ttft_p95=estimate([_ttft(sample) for sample in samples], _p95, Random(SEED)),
        total_p50=estimate([_total(sample) for sample in samples], _p50, Random(SEED)),
        between_p50=estimate(between, _p50, Random(SEED)) if between else None,
        prompt_tokens=prompt / len(samples),
        computed_tokens=estimate([_computed(sample) for sample in samples], mean, Random(SEED)),
        prefix_share=sum(sample.prefix_tokens for sample in samples) / prompt,
        suffix_share=sum(sample.suffix_tokens for sample in samples) / prompt,
        answers_per_second=sum(1 for one in every if not one.error) / sum(unit.seconds for unit in units),
        memory_peak=_peak(units, MEMORY),
        kv_cache_peak=_peak(units, KV_CACHE),
        counted=summed(unit.counted for unit in units),
    )


def _peak(units: Sequence[Unit], name: str) -> float | None:
    return max((unit.peak[name] for unit in units if name in unit.peak), default=None)


def _ratio(
    candidate: Sequence[Sample],
    baseline: Sequence[Sample],
    read: Callable[[Sample], float],
    statistic: Callable[[Sequence[float], Sequence[float]], float],
) -> Estimate:
    def guarded(ours: Sequence[float], theirs: Sequence[float]) -> float:
        # A baseline that computed nothing at all cannot be divided by.
        return statistic(ours, theirs) if any(theirs) else 1.0

    return estimate_paired(list(map(read, candidate)), list(map(read, baseline)), guarded, Random(SEED))


def _row(workload: str, target: str, metric: str, figure: Estimate, unit: str) -> dict[str, Any]:
    return {
        "workload": workload,
        "target": target,
        "metric": metric,
        "value": round(figure.value, 5),
        "unit": unit,
        "n": figure.count,
        "low": round(figure.low, 5),
        "high": round(figure.high, 5),
    }


def _plain_row(one: Figures, metric: str, value: float, unit: str) -> dict[str, Any]:
    return {
        "workload": one.workload,
        "target": one.target,
        "metric": metric,
        "value": round(value, 5),
        "unit": unit,
        "n": one.requests,
        "low": None,
        "high": None,
    }


def _ttft(sample: Sample) -> float:
    return sample.ttft


def _total(sample: Sample) -> float:
    return sample.total


def _computed(sample: Sample) -> float:
    return float(sample.computed_tokens)


def _p50(values: Sequence[float]) -> float:
    return percentile(values, 0.5)


def _p95(values: Sequence[float]) -> float:
    return percentile(values, 0.95)


def _p50_ratio(candidate: Sequence[float], baseline: Sequence[float]) -> float:
    return percentile_ratio(candidate, baseline, 0.5)


Rows = Sequence[Mapping[str, Any]]
"""What `rows_of` yields, or a file holds."""
