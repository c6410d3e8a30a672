"""One request of the demonstration, and what is read from its answer."""

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import httpx2
import pytest

from bench.demo.client import ANSWER_TOKENS_MAX, Asker, tokenize
from bench.demo.progress import Progress
from bench.demo.rows import Answer, Arm, Phase, Row
from bench.demo.workload import Question, Turn, Workload
from sternpost_fakes.clock import FakeClock
from sternpost_fakes.demo_api import chunk, make_target, report, stream, usage_chunk

QUESTION = Question("where", (Turn("user", "Where is it?"),))
WORKLOAD = Workload("Be brief.", (QUESTION,))
DETAILS = report(prefix=128, suffix=900, computed=72, engine="engine-a")


def make_asker(clock: FakeClock, rows: list[Row]) -> Asker:
    """Return an asker that began 5 s ago and notes its rows."""
    clock.advance(5.0)
    return Asker(WORKLOAD, Progress(clock, clock.monotonic() - 5.0, io.StringIO()), rows.append)


async def ask(response: httpx2.Response, *, seconds: float = 0.25) -> Row:
    """Ask once, of a server that takes `seconds`."""
    clock = FakeClock()

    def handler(request: httpx2.Request) -> httpx2.Response:
        clock.advance(seconds)
        return response

    rows: list[Row] = []
    row = await make_asker(clock, rows).ask(make_target(Arm.STERNPOST, handler), Phase.MEASURED, QUESTION)
    assert [row] == rows, "a row is recorded as it is returned"
    return row


async def test_request_is_what_an_agent_sends() -> None:
    """The request is streamed and greedy, asks for its usage, and carries nothing of Sternpost's own."""
    seen: list[dict[str, Any]] = []

    def handler(request: httpx2.Request) -> httpx2.Response:
        seen.append(json.loads(request.content))
        return stream([chunk("Here.", "stop"), usage_chunk(1100, DETAILS)])

    await make_asker(FakeClock(), []).ask(make_target(Arm.BASELINE, handler), Phase.MEASURED, QUESTION)

    expected = {
        "model": "small",
        "messages": [
            {"role": "user", "content": "Where is it?"},
            {"role": "system", "content": "Be brief."},
        ],
        "max_tokens": ANSWER_TOKENS_MAX,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert [expected] == seen


async def test_answer_carries_times_text_and_the_engines_count() -> None:
    """A row holds when the request began, what it took, what came, and where its tokens came from."""
    row = await ask(stream([chunk("He"), chunk("re."), chunk("", "stop"), usage_chunk(1100, DETAILS)]))

    expected = Row(
        phase=Phase.MEASURED,
        arm=Arm.STERNPOST,
        question="where",
        started_seconds=5.0,
        answer=Answer(
            ttft_seconds=0.25,
            total_seconds=0.25,
            prompt_tokens=1100,
            prefix_tokens=128,
            suffix_tokens=900,
            computed_tokens=72,
            reason="hit",
            engine="engine-a",
            text="Here.",
        ),
    )
    assert expected == row


@pytest.mark.parametrize(
    ("details", "expected"),
    [
        pytest.param({"cached_tokens": 128}, (128, 972), id="prefix-cache-alone"),
        pytest.param({"cached_tokens": None}, (0, 1100), id="nothing-cached"),
        pytest.param(None, (0, 1100), id="no-details"),
    ],
)
async def test_engine_without_the_plugin_is_counted_too(
    details: Mapping[str, Any] | None, expected: tuple[int, int]
) -> None:
    """Without a report, what is not cached was computed, and nothing came from the suffix store."""
    row = await ask(stream([chunk("Here.", "stop"), usage_chunk(1100, details)]))

    assert row.answer is not None
    assert (*expected, 0, "unreported") == (
        row.answer.prefix_tokens,
        row.answer.computed_tokens,
        row.answer.suffix_tokens,
        row.answer.reason,
    )


async def test_empty_answer_is_an_answer() -> None:
    """A model may end at once; its end is then the first thing that came."""
    row = await ask(stream([chunk("", "stop"), usage_chunk(1100, DETAILS)]))

    assert row.answer is not None
    assert ("", 0.25) == (row.answer.text, row.answer.ttft_seconds)


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param([], id="nothing"),
        pytest.param([chunk("Here."), usage_chunk(1100, DETAILS)], id="no-finish"),
        pytest.param([chunk("Here.", "stop")], id="no-usage"),
        pytest.param([usage_chunk(1100, DETAILS)], id="no-content"),
    ],
)
async def test_stream_that_stops_early_is_a_failure(chunks: Sequence[Mapping[str, Any]]) -> None:
    """Only an answer that has content, an end and its usage came whole."""
    row = await ask(stream(chunks))

    assert (None, "the stream ended before the answer did") == (row.answer, row.error)


@pytest.mark.parametrize(
    ("response", "error"),
    [
        pytest.param(
            httpx2.Response(503, json={"error": {"code": "no_engine"}}), "InternalServerError", id="503"
        ),
        pytest.param(
            httpx2.Response(429, json={"error": {"code": "gateway_overloaded"}}), "RateLimitError", id="429"
        ),
        pytest.param(
            httpx2.Response(
                200,
                headers={"content-type": "text/event-stream"},
                text='data: {"error": {"message": "cut", "code": "upstream_cut"}}\n\n',
            ),
            "APIError",
            id="error-in-the-stream",
        ),
    ],
)
async def test_error_is_a_row(response: httpx2.Response, error: str) -> None:
    """An error ends nothing: it is a row that names it."""
    row = await ask(response)

    assert (None, error) == (row.answer, row.error.partition(":")[0])


async def test_failed_request_is_not_tried_again() -> None:
    """What fails is counted, so it must not be hidden by a second try."""
    requests: list[httpx2.Request] = []

    def handler(request: httpx2.Request) -> httpx2.Response:
        requests.append(request)
        raise httpx2.ConnectError("refused")

    row = await make_asker(FakeClock(), []).ask(make_target(Arm.BASELINE, handler), Phase.LOAD, QUESTION)

    assert (1, True) == (len(requests), row.error.startswith("APIConnectionError"))


async def test_tokens_are_the_engines_own() -> None:
    """An answer's tokens come from the engine, without any that it would add to a prompt."""
    seen: list[dict[str, Any]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(json.loads(request.content))
        return httpx.Response(200, json={"count": 2, "tokens": [3, 4]})

    async with httpx.AsyncClient(transport=httpx.MockTransport(handler)) as http:
        tokens = await tokenize(http, "http://engine.test", "small", "Here.")

    assert (3, 4) == tokens
    assert [{"model": "small", "prompt": "Here.", "add_special_tokens": False}] == seen
