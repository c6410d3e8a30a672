"""What all rows together show, and the conditions that the demonstration must meet; all of it pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from bench.demo.kill import KillRun
from bench.demo.rows import Answer, Arm, Phase, Row
from sternpost_core.errors import OperatingError
from sternpost_gateway.bench.stats import (
    Estimate,
    common_share,
    estimate,
    estimate_paired,
    mean,
    mean_ratio,
    percentile,
    percentile_ratio,
)

TTFT_RATIO_MAX: Final = 0.35
"""The small model's fixed costs weigh: a larger model's ratio is lower."""

LAST_READ_SECONDS_MAX: Final = 1.0
"""After the kill switch has answered, no request that begins later than that may read the suffix store."""

SEED: Final = 20
"""Of the bootstrap, so that the same rows always give the same intervals."""

Tokens = Mapping[str, tuple[int, ...]]
"""The tokens of each answer's text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmFigures:
    """One arm in the measured phase; times in seconds, tokens as means over its requests."""

    ttft_p50: float
    ttft_p95: float
    total_p50: float
    prompt_tokens: float
    computed_tokens: float
    prefix_share: float
    suffix_share: float
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """Sternpost over the baseline."""

    ttft_p50: Estimate
    ttft_p95: Estimate
    total_p50: Estimate
    computed_tokens: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How far the two arms' greedy answers agree: the share of equal ones, and of equal leading tokens."""

    identical: Estimate
    common: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class KillFigures:
    """
    The kill switch under load; times in seconds.

    `last_read` is from the API's answer to the start of the last request that read the suffix store, below
    zero when that began before the answer, None when none ever did. `returned` is from the answer to taking
    the level back to the start of the first request that read again, None when none did.
    """

    requests: int
    failed: int
    answer: float
    last_read: float | None
    reads_after: int
    ttft_p50_before: float
    ttft_p50_after: float
    reused_before: int
    returned: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Everything that the report says."""

    questions: int
    pairs: int
    reused: int
    arms: Mapping[Arm, ArmFigures]
    ratios: Ratios
    agreement: Agreement
    kill: KillFigures


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that the demonstration must show, and whether it did."""

    text: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Pair:
    """One question's answers from both arms."""

    baseline: Answer
    sternpost: Answer


def summarize(rows: Sequence[Row], tokens: Tokens, kill: KillRun) -> Summary:
    """
    Return the summary of the measured rows and the kill switch's.

    Raises:
        OperatingError: no question was answered by both arms, or none on both sides of the kill switch.
    """
    measured = [row for row in rows if row.phase is Phase.MEASURED]
    pairs = paired(measured)
    if not pairs:
        raise OperatingError("no question was answered by both arms, so there is nothing to compare")
    sternpost = [row for row in measured if row.arm is Arm.STERNPOST]
    return Summary(
        questions=len(sternpost),
        pairs=len(pairs),
        reused=sum(1 for row in sternpost if row.suffix_tokens),
        arms={arm: _arm_figures([row for row in measured if row.arm is arm]) for arm in Arm},
        ratios=_ratios(pairs),
        agreement=_agreement(pairs, tokens),
        kill=kill_figures(kill),
    )


def paired(rows: Sequence[Row]) -> list[Pair]:
    """Return the questions that both arms answered, in the order of the baseline's rows."""
    sternpost = {row.question: row.answer for row in rows if row.arm is Arm.STERNPOST}
    pairs: list[Pair] = []
    for row in rows:
        other = sternpost.get(row.question)
        if row.arm is Arm.BASELINE and row.answer and other:
            pairs.append(Pair(row.answer, other))
    return pairs


def kill_figures(run: KillRun) -> KillFigures:
    """
    Return what the kill switch did.

    Raises:
        OperatingError: no request was answered before, or none after.
    """
    load = [row for row in run.rows if row.phase is Phase.LOAD]
    before = [row for row in load if row.started_seconds < run.engaged]
    after = [row for row in load if row.started_seconds >= run.answered]
    reads = [row.started_seconds for row in load if row.suffix_tokens]
    return KillFigures(
        requests=len(load),
        failed=sum(1 for row in run.rows if row.error),
        answer=run.answered - run.engaged,
        last_read=max(reads) - run.answered if reads else None,
        reads_after=sum(1 for started in reads if started > run.answered),
        ttft_p50_before=_ttft_p50(before, "before"),
        ttft_p50_after=_ttft_p50(after, "after"),
        reused_before=sum(1 for row in before if row.suffix_tokens),
        returned=_returned(run),
    )


def conditions(summary: Summary) -> tuple[Condition, ...]:
    """Return what must hold, for the exit status."""
    ratio = summary.ratios.ttft_p50.value
    failed = sum(arm.failed for arm in summary.arms.values())
    kill = summary.kill
    last_read = kill.last_read if kill.last_read is not None else 0.0
    return (
        Condition(f"TTFT p50 ratio {ratio:.3f} <= {TTFT_RATIO_MAX}", ratio <= TTFT_RATIO_MAX),
        Condition(f"failed requests while measuring: {failed} = 0", failed == 0),
        Condition(f"failed requests under load: {kill.failed} = 0", kill.failed == 0),
        Condition(
            f"requests through Sternpost that reused the rules: {summary.reused} of {summary.questions}",
            summary.reused == summary.questions,
        ),
        Condition(
            f"last suffix read began {last_read:+.3f} s from the kill switch's answer, "
            f"at most {LAST_READ_SECONDS_MAX:+.0f} s",
            last_read <= LAST_READ_SECONDS_MAX,
        ),
        Condition("suffix reads under load before the kill switch", kill.reused_before > 0),
        Condition("suffix reads returned once it was taken back", kill.returned is not None),
    )


def _arm_figures(rows: Sequence[Row]) -> ArmFigures:
    answers = [row.answer for row in rows if row.answer]
    prompt = sum(answer.prompt_tokens for answer in answers)
    return ArmFigures(
        ttft_p50=percentile([answer.ttft_seconds for answer in answers], 0.5),
        ttft_p95=percentile([answer.ttft_seconds for answer in answers], 0.95),
        total_p50=percentile([answer.total_seconds for answer in answers], 0.5),
        prompt_tokens=prompt / len(answers),
        computed_tokens=mean([answer.computed_tokens for answer in answers]),
        prefix_share=sum(answer.prefix_tokens for answer in answers) / prompt,
        suffix_share=sum(answer.suffix_tokens for answer in answers) / prompt,
        failed=sum(1 for row in rows if row.error),
    )


def _ratios(pairs: Sequence[Pair]) -> Ratios:
    def ratio(
        read: Callable[[Answer], float], statistic: Callable[[Sequence[float], Sequence[float]], float]
    ) -> Estimate:
        candidate = [read(pair.sternpost) for pair in pairs]
        baseline = [read(pair.baseline) for pair in pairs]
        return estimate_paired(candidate, baseline, statistic, Random(SEED))

    def p50(candidate: Sequence[float], baseline: Sequence[float]) -> float:
        return percentile_ratio(candidate, baseline, 0.5)

    def p95(candidate: Sequence[float], baseline: Sequence[float]) -> float:
        return percentile_ratio(candidate, baseline, 0.95)

    return Ratios(
        ttft_p50=ratio(lambda answer: answer.ttft_seconds, p50),
        ttft_p95=ratio(lambda answer: answer.ttft_seconds, p95),
        total_p50=ratio(lambda answer: answer.total_seconds, p50),
        computed_tokens=ratio(lambda answer: answer.computed_tokens, mean_ratio),
    )


def _agreement(pairs: Sequence[Pair], tokens: Tokens) -> Agreement:
    identical = [float(pair.baseline.text == pair.sternpost.text) for pair in pairs]
    common = [common_share(tokens[pair.baseline.text], tokens[pair.sternpost.text]) for pair in pairs]
    return Agreement(
        identical=estimate(identical, mean, Random(SEED)), common=estimate(common, mean, Random(SEED))
    )


def _ttft_p50(rows: Sequence[Row], side: str) -> float:
    values = [row.answer.ttft_seconds for row in rows if row.answer]
    if not values:
        raise OperatingError(f"no request was answered {side} the kill switch was engaged")
    return percentile(values, 0.5)


def _returned(run: KillRun) -> float | None:
    reads = [row.started_seconds for row in run.rows if row.phase is Phase.RETURN and row.suffix_tokens]
    return min(reads) - run.cleared if reads else None
