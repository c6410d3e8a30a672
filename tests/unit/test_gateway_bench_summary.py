"""The bench's figures, ratios, files and comparisons."""

from dataclasses import replace
from pathlib import Path

import pytest

from sternpost_core.errors import OperatingError
from sternpost_gateway.bench.compare import compare, comparison_text, verdict
from sternpost_gateway.bench.plot import write_plot
from sternpost_gateway.bench.records import UNITS, Recorded, append_unit, read_records, write_head
from sternpost_gateway.bench.report import failures, report
from sternpost_gateway.bench.sample import Sample, Unit
from sternpost_gateway.bench.summary import figures_of, ratios_of, rows_of

HEAD = {
    "date": "2026-01-02",
    "machine": "a machine",
    "seed": 1,
    "repeats": 1,
    "versions": {"python": "3.11"},
    "baseline": "plain",
    "workloads": {"w": "what it stands for"},
}


def sample(number: int, ttft: float, *, computed: int = 100, answer: str = "x", error: str = "") -> Sample:
    """Return a sample of 100 prompt tokens."""
    return Sample(
        session=f"s{number}",
        turn=0,
        measured=True,
        started=0.0,
        ttft=ttft,
        total=ttft + 1.0,
        prompt_tokens=100,
        prefix_tokens=100 - computed,
        computed_tokens=computed,
        answer=answer,
        error=error,
    )


def unit(target: str, *samples: Sample, repeat: int = 0) -> Unit:
    """Return a unit that took ten seconds."""
    return Unit(
        workload="w",
        target=target,
        repeat=repeat,
        seconds=10.0,
        samples=samples,
        counted={"grown": 3.0},
        peak={"g": 2.0},
    )


PLAIN = unit("plain", *(sample(number, 1.0 + number / 100) for number in range(8)))
OURS = unit("ours", *(sample(number, 0.25 + number / 400, computed=20) for number in range(8)))


def test_figures_are_over_what_was_answered_and_measured() -> None:
    """A failure counts as failed, and as nothing else."""
    failed = unit("plain", sample(0, 1.0), sample(1, 3.0), sample(2, 99.0, error="boom"))
    (figures,) = figures_of([failed])

    assert (2, 1, 2.0) == (figures.requests, figures.failed, figures.ttft_p50.value)
    assert 0.2 == figures.answers_per_second
    assert ["plain: 1, the first: boom"] == failures([failed])


def test_ratios_pair_the_same_requests() -> None:
    """A quarter of the time, a fifth of the tokens, the same answers."""
    (ratios,) = ratios_of([PLAIN, OURS], "plain")

    assert ("w", "ours", "plain") == (ratios.workload, ratios.target, ratios.baseline)
    assert 0.25 == pytest.approx(ratios.ttft_p50.value)
    assert 0.2 == pytest.approx(ratios.computed_tokens.value)
    assert 1.0 == ratios.identical.value
    assert ratios.ttft_p50.low <= ratios.ttft_p50.value <= ratios.ttft_p50.high


def test_a_request_that_one_target_failed_is_in_no_ratio() -> None:
    """Else a target that fails its slow requests would look fast."""
    broken = unit("ours", sample(0, 0.5), sample(1, 0.1, error="boom"))
    (ratios,) = ratios_of([PLAIN, broken], "plain")

    assert 1 == ratios.ttft_p50.count
    assert [] == ratios_of([PLAIN, unit("ours", sample(0, 0.1, error="boom"))], "plain")
    assert [] == ratios_of([OURS], "plain")


def test_a_baseline_that_computed_nothing_is_not_divided_by() -> None:
    """Two that compute nothing are alike."""
    units = [unit("plain", sample(0, 1.0, computed=0)), unit("ours", sample(0, 1.0, computed=0))]

    assert 1.0 == ratios_of(units, "plain")[0].computed_tokens.value


def test_rows_name_workload_target_and_metric() -> None:
    """Ratios name their baseline, too."""
    rows = list(rows_of(figures_of([PLAIN, OURS]), ratios_of([PLAIN, OURS], "plain")))

    found = {(row["target"], row["metric"]): row for row in rows}
    assert 20.0 == found["ours", "computed_tokens"]["value"]
    assert 3.0 == found["ours", "grown"]["value"]
    assert "plain" == found["ours", "ttft_p50_ratio"]["baseline"]
    assert {"w"} == {row["workload"] for row in rows}


def test_rows_hold_everything_that_a_run_is_to_tell() -> None:
    """Times, tokens and their sources, throughput, memory, failures, and how far answers agree."""
    peaks = {"process_resident_memory_bytes": 2.0, "vllm:kv_cache_usage_perc": 0.5}
    ours = replace(OURS, peak=peaks, samples=tuple(replace(one, between=0.1) for one in OURS.samples))
    units = [PLAIN, ours]

    found = {
        row["metric"]
        for row in rows_of(figures_of(units), ratios_of(units, "plain"))
        if row["target"] == "ours"
    }

    assert {
        *("ttft_mean", "ttft_p50", "ttft_p95", "end_to_end_p50", "inter_token_p50", "answers_per_second"),
        *("prompt_tokens", "computed_tokens", "prefix_share", "suffix_share", "memory_peak", "kv_cache_peak"),
        *("failed", "grown", "ttft_p50_ratio", "end_to_end_p50_ratio", "end_to_end_mean_ratio"),
        *("computed_tokens_ratio", "identical_answers"),
    } == found


def test_a_run_s_file_reads_as_it_was_written(tmp_path: Path) -> None:
    """By its folder or by its name."""
    path = tmp_path / "run" / UNITS
    write_head(path, HEAD)
    for one in (PLAIN, OURS):
        append_unit(path, one)

    assert Recorded(HEAD, (PLAIN, OURS)) == read_records(path) == read_records(path.parent)


@pytest.mark.parametrize("text", ["", "{}\n", '{"head": {}}\n{"workload": "w"}\n', "no json\n"])
def test_another_file_is_refused(text: str, tmp_path: Path) -> None:
    """By its name, without a traceback."""
    path = tmp_path / "x.jsonl"
    path.write_text(text)

    with pytest.raises(OperatingError, match=r"x.jsonl is no file of `sternpost bench`"):
        read_records(path)


def test_a_run_that_is_not_there_is_named(tmp_path: Path) -> None:
    """It may be a typing error."""
    with pytest.raises(OperatingError, match="nothing cannot be read"):
        read_records(tmp_path / "nothing")


def test_two_runs_are_compared_request_by_request() -> None:
    """A change is told where the interval leaves 1 out; what only one run has is named."""
    before = Recorded(HEAD, (PLAIN, unit("gone", sample(0, 1.0))))
    after = Recorded(HEAD, (unit("plain", *OURS.samples),))

    found = compare(before, after)

    assert ["faster"] == [verdict(ratios) for ratios in found.ratios]
    assert ("w at gone",) == found.missing
    assert "In one of the runs only: w at gone." in comparison_text(found)
    assert ["slower"] == [verdict(ratios) for ratios in compare(after, before).ratios]
    assert ["no change shown"] == [verdict(ratios) for ratios in compare(before, before).ratios[:1]]


def test_runs_of_different_requests_are_not_compared() -> None:
    """Another seed makes other requests under the same names."""
    other = Recorded({**HEAD, "seed": 2}, (OURS,))

    with pytest.raises(OperatingError, match="the runs have seeds 1 and 2"):
        compare(Recorded(HEAD, (PLAIN,)), other)


def test_the_report_prints_versions_and_the_memory_that_is_known() -> None:
    """A target whose engines tell no memory has an empty cell."""
    told = replace(OURS, peak={"process_resident_memory_bytes": 3.0 * 2**30})
    text = report({**HEAD, "versions": {"vllm": "0.32.0", "python": "3.11"}}, figures_of([PLAIN, told]), [])

    assert "vllm 0.32.0, python 3.11." in text
    assert ["| 3072 | 0 |", "|  | 0 |"] == [
        line[-len(end) :]
        for target, end in (("ours", "| 3072 | 0 |"), ("plain", "|  | 0 |"))
        for line in text.split("\n")
        if line.startswith(f"| {target} ")
    ]


def test_the_report_says_what_was_compared_and_what_it_stands_for(tmp_path: Path) -> None:
    """One table of figures and one of ratios for each workload, and a picture of them."""
    figures = figures_of([PLAIN, OURS])
    text = report(HEAD, figures, ratios_of([PLAIN, OURS], "plain"))
    write_plot(figures, tmp_path / "plot.png")

    assert "## w\n\nwhat it stands for" in text
    assert "| ours | 0.25 (" in text
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
