"""All batches of the engine's benchmark as figures, and the bounds."""

from dataclasses import replace

import pytest

from bench.common.results import Row, find_row
from bench.engine.asking import Sample
from bench.engine.report import bounds_table, report
from bench.engine.summary import CLAIMS, BatchPair, judge, memory_rows, pairs_of, reasons_of, workload_rows
from sternpost_core.errors import OperatingError
from sternpost_fakes.bench_machine import MACHINE, NOON


def sample(
    session: str, *, ttft: float, computed: int, prefix: int = 0, turn: int = 0, measured: bool = True
) -> Sample:
    """Return a request of 100 tokens that took twice its TTFT."""
    return Sample(
        session=session,
        turn=turn,
        measured=measured,
        ttft=ttft,
        total=2 * ttft,
        prompt_tokens=100,
        prefix_tokens=prefix,
        suffix_tokens=100 - prefix - computed,
        computed_tokens=computed,
        reason="hit",
    )


def batch(number: int, plain_seconds: float = 4.0) -> BatchPair:
    """Return a batch of one request that reuse makes eight times as fast."""
    return BatchPair(
        plain_seconds,
        1.0,
        (sample(f"s{number}", ttft=0.8, computed=100),),
        (sample(f"s{number}", ttft=0.1, computed=10, prefix=20),),
    )


def value(rows: list[Row], metric: str) -> float:
    """Return a figure of the workload."""
    row = find_row(rows, "w", metric)
    assert row is not None, metric
    return row.value


def test_ratios_are_the_patched_engine_over_the_plain_one() -> None:
    """Throughput alone is the other way round: more is better."""
    rows = workload_rows("w", [batch(number) for number in range(3)])

    assert pytest.approx(0.125) == value(rows, "ttft_ratio") == value(rows, "latency_ratio")
    assert pytest.approx((0.1, 1.0, 0.1, 0.9)) == tuple(
        value(rows, metric)
        for metric in ("computed_ratio", "plain_computed_share", "computed_share", "reuse_share")
    )
    assert pytest.approx(4.0) == value(rows, "throughput_ratio")


@pytest.mark.parametrize(("batches", "known"), [(1, False), (2, False), (3, True)])
def test_a_throughput_of_few_batches_has_no_interval(batches: int, known: bool) -> None:
    """One figure says nothing of its own spread."""
    row = find_row(workload_rows("w", [batch(number) for number in range(batches)]), "w", "throughput_ratio")

    assert row is not None
    assert (batches, known) == (row.n, row.low is not None)


def test_what_is_not_measured_or_not_answered_twice_is_left_out() -> None:
    """Pairs are made by session and turn."""
    mixed = BatchPair(
        1.0,
        1.0,
        (
            sample("a", ttft=1, computed=100, measured=False),
            sample("a", ttft=1, computed=100, turn=1),
            sample("b", ttft=1, computed=100),
        ),
        (
            sample("a", ttft=1, computed=10, measured=False),
            sample("a", ttft=1, computed=10, turn=1),
        ),
    )

    assert [("a", 1)] == [pair.plain.key for pair in pairs_of([mixed])]
    assert {"hit": 1} == reasons_of([mixed])


def test_hits_are_requests_and_reuse_is_tokens() -> None:
    """A request that computes its tail is no hit, whatever else of it was found."""
    missed = replace(sample("t", ttft=1, computed=40, prefix=60), reason="not_built")
    pair = batch(0)
    rows = workload_rows(
        "w",
        [
            pair,
            replace(pair, plain=(sample("t", ttft=1, computed=100),), patched=(missed,)),
        ],
    )

    assert pytest.approx((0.5, 0.75)) == (value(rows, "hit_share"), value(rows, "reuse_share"))


def test_late_turns_have_a_reuse_of_their_own() -> None:
    """From the third turn on; a scenario of fewer turns has none."""
    turns = BatchPair(
        1.0,
        1.0,
        tuple(sample("s", ttft=1, computed=100, turn=turn) for turn in range(4)),
        tuple(sample("s", ttft=1, computed=40 if turn < 2 else 5, turn=turn) for turn in range(4)),
    )

    assert pytest.approx(0.95) == value(workload_rows("w", [turns]), "reuse_share_from_turn_3")
    assert find_row(workload_rows("w", [batch(0)]), "w", "reuse_share_from_turn_3") is None


def test_a_regenerated_answer_is_held_to_plain_vllms_first_one_too() -> None:
    """Plain vLLM's own second answer is fast as well, so both ratios are told."""
    again = BatchPair(
        1.0,
        1.0,
        (sample("s", ttft=2.0, computed=100, measured=False), sample("s", ttft=0.2, computed=10, turn=1)),
        (sample("s", ttft=0.3, computed=10, measured=False), sample("s", ttft=0.1, computed=10, turn=1)),
    )

    rows = workload_rows("w", [again])

    assert pytest.approx((0.5, 0.05)) == (
        value(rows, "ttft_ratio"),
        value(rows, "ttft_ratio_to_full_prefill"),
    )


def test_a_workload_without_pairs_is_an_error() -> None:
    """There is nothing to compare."""
    with pytest.raises(OperatingError, match="w: no request"):
        workload_rows("w", [BatchPair(1.0, 1.0, (), ())])


def test_memory_is_told_for_both_engines() -> None:
    """A machine that tells no memory gives no ratio."""
    known = memory_rows(
        {"plain": {"bytes": 100, "pool_bytes": 0}, "patched": {"bytes": 110, "pool_bytes": 7}}
    )
    unknown = memory_rows({"plain": {"bytes": 0, "pool_bytes": 0}, "patched": {"bytes": 0, "pool_bytes": 7}})

    assert [100, 110, 7, 1.1] == [row.value for row in known]
    assert ["plain_bytes", "patched_bytes", "suffix_pool_bytes"] == [row.metric for row in unknown]


def test_every_bound_is_judged_and_what_was_not_run_does_not_hold() -> None:
    """A bound without a figure is neither passed nor forgotten."""
    rows = [Row(workload="fixed_tail", metric="ttft_ratio", value=0.146)]

    judged = judge(rows)

    assert len(CLAIMS) == len(judged)
    assert ["fixed_tail"] == [item.claim.bound.workload for item in judged if item.holds]


@pytest.mark.parametrize(
    ("figure", "words"),
    [
        pytest.param(0.14, "passed", id="reached"),
        pytest.param(0.15, "**missed**", id="missed"),
        pytest.param(None, "not run", id="not run"),
    ],
)
def test_the_bounds_table_says_what_happened(figure: float | None, words: str) -> None:
    """Each bound stands beside the founding article's figure."""
    rows = [] if figure is None else [Row(workload="fixed_tail", metric="ttft_ratio", value=figure)]

    line = next(line for line in bounds_table(judge(rows)).split("\n") if "fixed_tail" in line)

    assert words in line
    assert 2 == line.count("0.146")


def test_the_report_explains_what_was_missed_and_only_that() -> None:
    """The reason stands once, behind the names of the bounds."""
    rows = workload_rows("fixed_tail", [batch(0, plain_seconds=1.0)])
    slow = [*rows, Row(workload="no_reuse", metric="ttft_ratio", value=1.3)]

    text = report(slow, judge(slow), {"fixed_tail": {"hit": 1}}, MACHINE, NOON, "a model")

    assert "`no_reuse` ttft_ratio: Both engines do the same work" in text
    assert "floor by token count.\n\n## Figures" not in text
    assert "Not recorded." in text
