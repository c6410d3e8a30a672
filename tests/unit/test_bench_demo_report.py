"""The demonstration's table, files and picture."""

import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bench.demo.plot import write_plot
from bench.demo.report import (
    Report,
    comparison,
    kill_table,
    result_rows,
    table,
    write_report,
    write_results,
    write_row,
)
from bench.demo.rows import Arm, Row
from bench.demo.summary import kill_figures, summarize
from sternpost_fakes.demo_rows import load_row, make_answer, make_kill_run, make_row, return_row
from sternpost_gateway.bench.machine import Machine, describe_machine, field

ROWS = [
    make_row(Arm.BASELINE, make_answer(ttft=1.0, total=2.0, computed=1000), question="a"),
    make_row(Arm.STERNPOST, make_answer(ttft=0.25, total=0.5, suffix=900, computed=100), question="a"),
]
SUMMARY = summarize(ROWS, {"Hello.": (1, 2)}, make_kill_run())
MACHINE = Machine(
    cores=2,
    cpu="Some CPU",
    memory_gib=24,
    system="Linux x86_64",
    python="3.11.7",
    versions={"sternpost": "0.1.0", "torch": "2.13.0"},
    commit="abc",
)
REPORT = Report(SUMMARY, MACHINE, datetime(2031, 5, 14, 12, 30, tzinfo=UTC))


def cells(line: str) -> list[str]:
    """Return a table line's cells without their padding."""
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_table_is_aligned_markdown() -> None:
    """Every line is equally long; the first column is to the left, the others to the right."""
    expected = "\n".join(["| name |  n |", "| ---- | -: |", "| long | 10 |", "| x    |  1 |"])

    assert expected == table([("name", "n"), ("long", "10"), ("x", "1")])


@pytest.mark.parametrize(
    "expected",
    [
        pytest.param(["TTFT p50", "1000 ms", "250 ms", "0.250", "0.250 to 0.250"], id="time"),
        pytest.param(["of them computed", "1000.0", "100.0", "0.100", "0.100 to 0.100"], id="tokens"),
        pytest.param(["reused from suffix", "0.0%", "90.0%", "", ""], id="share"),
        pytest.param(["identical answers", "", "100.0%", "", "100.0% to 100.0%"], id="agreement"),
        pytest.param(["failed requests", "0", "0", "", ""], id="failures"),
    ],
)
def test_comparison_has_a_line_for_each_figure(expected: list[str]) -> None:
    """Both arms stand side by side, with ratio and interval where there is one."""
    assert expected in [cells(line) for line in comparison(SUMMARY).splitlines()]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param((9.5, 900), "1000 ms before the answer", id="before"),
        pytest.param((11.0, 900), "500 ms after the answer", id="after"),
        pytest.param((9.5, 0), "never", id="never"),
    ],
)
def test_last_read_is_said_in_words(rows: tuple[float, int], expected: str) -> None:
    """A sign would be misread: the table says before or after."""
    started, suffix = rows
    figures = kill_figures(
        make_kill_run(load_row(8.0, suffix=0), load_row(started, suffix=suffix), load_row(12.0, suffix=0))
    )

    assert ["last suffix read began", expected] in [cells(line) for line in kill_table(figures).splitlines()]


@pytest.mark.parametrize(
    ("suffix", "expected"),
    [
        pytest.param(900, "500 ms after the answer", id="returned"),
        pytest.param(0, "never", id="not-returned"),
    ],
)
def test_return_of_reuse_is_said_in_words(suffix: int, expected: str) -> None:
    """Reuse that did not return is not left out."""
    run = make_kill_run(load_row(8.0, suffix=900), load_row(12.0, suffix=0), return_row(20.5, suffix=suffix))

    assert expected == cells(kill_table(kill_figures(run)).splitlines()[-1])[1]


def test_report_names_machine_versions_and_conditions(tmp_path: Path) -> None:
    """A reader learns what it ran on, and whether each condition held."""
    write_report(REPORT, tmp_path / "report.md")

    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    for expected in (
        "14 May 2031, commit abc, on 2 cores of Some CPU, 24 GiB, Linux x86_64.",
        "Python 3.11.7, sternpost 0.1.0, torch 2.13.0.",
        "- [x] TTFT p50 ratio 0.250 <= 0.35",
    ):
        assert expected in text


def test_rows_are_lines_of_json() -> None:
    """Each row is flat; a failed request has an error and no figures."""
    rows = [make_row(Arm.STERNPOST, make_answer(suffix=900), question="a"), make_row(Arm.BASELINE, None)]

    file = io.StringIO()

    for row in rows:
        write_row(row, file)

    first, second = (json.loads(line) for line in file.getvalue().splitlines())
    assert ("sternpost", "a", 900, "") == (
        first["arm"],
        first["question"],
        first["suffix_tokens"],
        first["error"],
    )
    assert ("baseline", "APIError: gone", False) == (
        second["arm"],
        second["error"],
        "ttft_seconds" in second,
    )


@pytest.mark.parametrize(
    "expected",
    [
        pytest.param(
            {"metric": "ttft_p50_ratio", "value": 0.25, "unit": "1", "n": 1, "low": 0.25, "high": 0.25},
            id="estimate",
        ),
        pytest.param(
            {"metric": "failed_requests", "value": 0, "unit": "1", "n": 4, "low": None, "high": None},
            id="count",
        ),
        pytest.param(
            {"metric": "kill_last_read_s", "value": -1.5, "unit": "s", "n": 2, "low": None, "high": None},
            id="time-of-one-event",
        ),
    ],
)
def test_results_have_value_interval_and_count(expected: dict[str, Any]) -> None:
    """Every row names its workload, and what has no interval says so."""
    assert {"workload": "support_agent", **expected} in result_rows(SUMMARY)


def test_results_say_where_they_come_from(tmp_path: Path) -> None:
    """Date, commit, machine and versions stand beside the rows."""
    path = tmp_path / "results" / "demo.json"

    write_results(REPORT, path)

    document = json.loads(path.read_text(encoding="utf-8"))
    assert {
        "name": "demo",
        "date": "2031-05-14T12:30:00+00:00",
        "commit": "abc",
        "machine": "2 cores of Some CPU, 24 GiB, Linux x86_64",
        "versions": {"python": "3.11.7", "sternpost": "0.1.0", "torch": "2.13.0"},
    } == {key: value for key, value in document.items() if key != "rows"}
    assert result_rows(SUMMARY) == document["rows"]


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(ROWS, id="both-arms"),
        pytest.param([*ROWS, make_row(Arm.STERNPOST, None, question="b")], id="with-a-failure"),
    ],
)
def test_picture_is_drawn(rows: list[Row], tmp_path: Path) -> None:
    """The picture is a PNG of at least 1,000 pixels in width."""
    write_plot(rows, make_kill_run(), tmp_path / "plot.png")

    data = (tmp_path / "plot.png").read_bytes()
    assert b"\x89PNG\r\n\x1a\n" == data[:8]
    assert int.from_bytes(data[16:20], "big") >= 1000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("processor\t: 0\nmodel name\t: Some CPU\nmodel name\t: Other\n", "Some CPU", id="first"),
        pytest.param("CPU implementer\t: 0x41\n", "", id="missing"),
        pytest.param("", "", id="no-file"),
    ],
)
def test_field_is_found_by_its_whole_name(text: str, expected: str) -> None:
    """The first line of that name counts; without one there is nothing."""
    assert expected == field(text, "model name")


def test_machine_is_described() -> None:
    """Here there are cores, and this distribution and torch have versions."""
    machine = describe_machine(Path(__file__).parent)

    assert machine.cores >= 1
    assert {"sternpost", "torch", "openai"} <= set(machine.versions)


def test_commit_outside_a_checkout_is_unknown(tmp_path: Path) -> None:
    """An unpacked archive has no commit to name."""
    assert "unknown" == describe_machine(tmp_path).commit
