"""What the benchmarks ask of an engine, and what they make of its answers."""

import httpx
import pytest

from bench.common.engine_api import metric_sum, report_of, transfer
from sternpost_core.errors import OperatingError
from sternpost_core.hint import Hint, Operation, Reason
from sternpost_fakes.bench_engine import FakeEngine, answer_with, usage_of

EXPOSITION = """\
# HELP sternpost_suffix_means Means.
sternpost_suffix_means{engine="0"} 4.0
sternpost_suffix_means{engine="1"} 2.0
sternpost_suffix_means_total{engine="0"} 90.0
plain 7
"""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("sternpost_suffix_means", 6.0, id="over all labels"),
        pytest.param("plain", 7.0, id="without labels"),
        pytest.param("missing", 0.0, id="not there"),
    ],
)
def test_a_metric_is_the_sum_of_its_samples(name: str, expected: float) -> None:
    """Another metric whose name begins alike does not count."""
    assert expected == metric_sum(EXPOSITION, name)


def test_a_hint_travels_in_the_field_that_the_gateway_uses() -> None:
    """No hint, no field."""
    hint = Hint(op=Operation.OFF)

    assert {"kv_transfer_params": {"sternpost": hint.to_mapping()}} == transfer(hint)
    assert {} == transfer(None)


def test_the_report_is_read_where_there_is_one() -> None:
    """A plain engine's usage has none."""
    report = report_of(usage_of(prefix=10, suffix=60, computed=30))

    assert report is not None
    assert (10, 60, 30, Reason.HIT) == (
        report.prefix_tokens,
        report.suffix_tokens,
        report.computed_tokens,
        report.reason,
    )
    assert report_of({"prompt_tokens": 3, "prompt_tokens_details": None}) is None


@pytest.mark.parametrize(
    ("response", "words"),
    [
        pytest.param(httpx.Response(400, text="too long"), "400 too long", id="refused"),
        pytest.param(httpx.Response(200, text="<html>"), "JSONDecodeError", id="no JSON"),
    ],
)
async def test_a_failed_request_names_engine_path_and_cause(response: httpx.Response, words: str) -> None:
    """A benchmark stops with a message that says what failed."""
    engine = FakeEngine({"/v1/completions": lambda body: response}).client("patched")

    with pytest.raises(OperatingError, match=f"patched: /v1/completions: {words}"):
        await engine.complete([1, 2], None)


async def test_a_completion_is_greedy_and_carries_the_hint() -> None:
    """The prompt goes out as token ids."""
    fake = FakeEngine({"/v1/completions": answer_with({"choices": []})})

    await fake.client().complete((1, 2), Hint(op=Operation.OFF), max_tokens=3)

    expected = {
        "model": "model",
        "prompt": [1, 2],
        "temperature": 0,
        "max_tokens": 3,
        **transfer(Hint(op=Operation.OFF)),
    }
    assert [("/v1/completions", expected)] == fake.asked
