"""The report on its way from the engine's output to the usage of an answer."""

import json
import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from sternpost_core.hint import Reason, Report, parse_report
from sternpost_engine.reporting import ReportedCount, carry_reports, details_with_report, install_reports

REPORT = Report(
    prefix_tokens=8, suffix_tokens=16, computed_tokens=10, reason=Reason.HIT, engine="e1"
).to_mapping()


def output(params: dict[str, Any] | None = None, cached: int | None = 24) -> SimpleNamespace:
    """Return an engine's output; `cached` is None when it is not a request's first."""
    stats = None if cached is None else SimpleNamespace(num_cached_tokens=cached)
    return SimpleNamespace(kv_transfer_params=params, prefill_stats=stats)


class FakeProcessor:
    """Stands for `OutputProcessor`: sees the outputs after they were carried."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def process_outputs(self, engine_core_outputs: list[Any], timestamp: float, *, stats: Any = None) -> str:
        """Keep what it is given."""
        self.seen.append((engine_core_outputs, timestamp, stats))
        return "processed"


class FakeDetails:
    """Stands for `PromptTokenUsageInfo`: keeps extra fields, as vLLM's protocol does."""

    def __init__(self, **details: Any) -> None:
        self.details = details


@pytest.fixture
def installed() -> tuple[type[FakeProcessor], type[FakeDetails]]:
    """Return classes of this test's own, with the reports installed."""
    processor = type("Processor", (FakeProcessor,), {"process_outputs": FakeProcessor.process_outputs})
    details = type("Details", (FakeDetails,), {"__init__": FakeDetails.__init__})
    install_reports(processor, details)
    return processor, details


def test_report_comes_out_in_the_details(installed: tuple[type[FakeProcessor], type[FakeDetails]]) -> None:
    """From the scheduler's output, through the count, into the answer's usage."""
    processor, details = installed
    first = output({"sternpost": REPORT})

    assert "processed" == processor().process_outputs([first], 1.5, stats="s")

    answer = details(cached_tokens=first.prefill_stats.num_cached_tokens).details
    assert {"cached_tokens": 24, "sternpost": REPORT} == json.loads(json.dumps(answer))
    assert int is type(answer["cached_tokens"])
    assert Reason.HIT is getattr(parse_report(answer["sternpost"]), "reason", None)


def test_arguments_pass_through(installed: tuple[type[FakeProcessor], type[FakeDetails]]) -> None:
    """vLLM's own method gets what it was called with."""
    processor = installed[0]()
    outputs = [output()]

    processor.process_outputs(outputs, 1.5, stats="s")

    assert [(outputs, 1.5, "s")] == processor.seen


def test_installing_twice_does_nothing_more(
    installed: tuple[type[FakeProcessor], type[FakeDetails]],
) -> None:
    """vLLM may load a plugin several times in one process."""
    before = [installed[0].process_outputs, installed[1].__init__]

    install_reports(*installed)

    assert before == [installed[0].process_outputs, installed[1].__init__]


@pytest.mark.parametrize(
    ("params", "rest"),
    [
        pytest.param({"sternpost": REPORT}, None, id="report-alone"),
        pytest.param({"sternpost": REPORT, "remote_port": 1}, {"remote_port": 1}, id="anothers-params-stay"),
        pytest.param({"remote_port": 1}, {"remote_port": 1}, id="no-report"),
        pytest.param({}, {}, id="empty"),
        pytest.param(None, None, id="none"),
    ],
)
def test_report_is_taken_out_of_the_params(
    params: dict[str, Any] | None, rest: dict[str, Any] | None
) -> None:
    """A client does not see it twice, and nothing else is lost."""
    first = output(params)

    carry_reports([first])

    assert rest == first.kv_transfer_params
    assert (params is not None and "sternpost" in params) == isinstance(
        first.prefill_stats.num_cached_tokens, ReportedCount
    )


def test_later_output_carries_nothing() -> None:
    """It has no counts; its report is dropped."""
    later = output({"sternpost": REPORT}, cached=None)

    carry_reports([later])

    assert (None, None) == (later.kv_transfer_params, later.prefill_stats)


def test_each_output_keeps_its_own_report() -> None:
    """Outputs of many requests come together."""
    outputs = [output({"sternpost": {**REPORT, "suffix_tokens": number}}) for number in range(3)]

    carry_reports(outputs)

    assert [0, 1, 2] == [one.prefill_stats.num_cached_tokens.report["suffix_tokens"] for one in outputs]


@pytest.mark.parametrize(
    "details",
    [
        pytest.param({"cached_tokens": 24}, id="plain-count"),
        pytest.param({"cached_tokens": None}, id="no-count"),
        pytest.param({}, id="nothing"),
    ],
)
def test_details_without_a_report_stay(details: dict[str, Any]) -> None:
    """Other requests' answers are as vLLM makes them."""
    assert details == details_with_report(details)


def test_count_is_still_a_number() -> None:
    """vLLM counts with it and writes it; only the usage looks for the report."""
    count = ReportedCount.of(24, REPORT)

    assert 24 == count
    assert 25 == count + 1
    assert int is type(count + 1)
    assert "24" == json.dumps(count) == str(count)
    assert count
    assert not ReportedCount.of(0, REPORT)


def test_count_survives_another_process() -> None:
    """It may be sent from one process of the API server to another."""
    count = pickle.loads(pickle.dumps(ReportedCount.of(24, REPORT)))

    assert (24, REPORT) == (count, count.report)
