"""The pipeline by itself: what a failure in any of its parts means for the request."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.types import Message, Scope

from sternpost_fakes.garbage import left_to_the_collector
from sternpost_fakes.gateway_parts import ENGINE, FakeUpstream, make_parts
from sternpost_gateway.errors import ConnectFailed, Disconnected, FirstByteTimeout
from sternpost_gateway.fleet import FAILURES_MAX
from sternpost_gateway.pipeline import Parts, Pipeline
from sternpost_gateway.route import Candidate, Choice, Demand, LeastLoaded
from sternpost_gateway.router import Strategies

SECRET_TEXT = "text of a user"
BODY = json.dumps({"model": "qwen", "messages": [{"role": "user", "content": SECRET_TEXT}]}).encode()


async def post(parts: Parts, body: bytes = BODY, path: str = "/v1/chat/completions") -> httpx.Response:
    """Send one request through a pipeline."""
    transport = httpx.ASGITransport(Pipeline(parts))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        return await client.post(path, content=body)


def fail(*_: object) -> NoReturn:
    """Fail as a part of ours might, with the user's text in the error."""
    raise KeyError(SECRET_TEXT)


class FailingStrategy:
    """A strategy that is broken."""

    def choose(self, candidates: Sequence[Candidate], demand: Demand) -> Choice:
        """Fail."""
        fail()


def fail_always(chance: random.Random) -> Strategies:
    """Return strategies of which none works."""
    return Strategies(affinity=FailingStrategy(), least_loaded=FailingStrategy())


def fail_at_affinity(chance: random.Random) -> Strategies:
    """Return strategies of which only the last resort works."""
    return Strategies(affinity=FailingStrategy(), least_loaded=LeastLoaded(chance))


async def test_failing_decision_passes_the_request_plainly(caplog: pytest.LogCaptureFixture) -> None:
    """An error of ours while deciding costs no request, changes no byte, and tells no one the user's text."""
    upstream, registry = FakeUpstream(), CollectorRegistry()
    parts = replace(make_parts(upstream, registry), policies=fail)
    with caplog.at_level(logging.DEBUG):
        response = await post(parts)

    assert (200, BODY) == (response.status_code, upstream.sent[0].body)
    assert 1 == registry.get_sample_value("sternpost_gateway_fallthroughs_total")
    assert "KeyError" in caplog.text and SECRET_TEXT not in caplog.text


async def test_failing_part_is_answered_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    """An error of ours elsewhere is a 500 in OpenAI's shape, and frees what was held."""
    upstream, registry = FakeUpstream(), CollectorRegistry()
    parts = make_parts(upstream, registry, fail_always)
    response = await post(parts)

    assert (500, "internal_error") == (response.status_code, response.json()["error"]["code"])
    assert SECRET_TEXT not in response.text + caplog.text
    assert (0, 0) == (parts.admission.in_flight, parts.admission.body_bytes)


async def test_failing_score_is_least_loaded(caplog: pytest.LogCaptureFixture) -> None:
    """An error of ours while engines are scored costs affinity, no request, and tells no one the text."""
    response = await post(make_parts(FakeUpstream(), CollectorRegistry(), fail_at_affinity))

    assert (200, True) == (response.status_code, "scoring failed: KeyError" in caplog.text)
    assert SECRET_TEXT not in caplog.text


async def test_answer_is_closed_at_its_end() -> None:
    """The connection goes back to its pool when the answer has been relayed."""
    upstream = FakeUpstream()
    response = await post(make_parts(upstream, CollectorRegistry()))

    assert (b"{}", [True]) == (response.content, [answer.closed for answer in upstream.responses])


@pytest.mark.parametrize(
    ("error", "attempts"),
    [
        pytest.param(ConnectFailed("x"), 1, id="refused-by-the-only-engine"),
        pytest.param(FirstByteTimeout("x"), 1, id="no-answer"),
    ],
)
async def test_failure_is_final_without_another_engine(error: Exception, attempts: int) -> None:
    """Where there is nothing else to try, nothing is tried twice."""
    upstream = FakeUpstream(error=error)
    response = await post(make_parts(upstream, CollectorRegistry()))

    assert attempts == len(upstream.sent)
    assert response.status_code in (502, 504)


async def test_failures_in_a_row_eject_the_engine() -> None:
    """After so many failures requests are refused at once, without another attempt."""
    upstream = FakeUpstream(error=ConnectFailed("x"))
    parts = make_parts(upstream, CollectorRegistry())
    statuses = [(await post(parts)).status_code for _ in range(FAILURES_MAX + 1)]

    assert [502] * FAILURES_MAX + [503] == statuses
    assert not parts.fleet.is_ready(ENGINE)


async def test_refusal_before_reading_frees_what_was_held() -> None:
    """A body that is no JSON leaves no trace in the counts."""
    upstream, registry = FakeUpstream(), CollectorRegistry()
    parts = make_parts(upstream, registry)
    response = await post(parts, b"{")

    assert (400, []) == (response.status_code, upstream.sent)
    assert (0, 0) == (parts.admission.in_flight, parts.admission.body_bytes)
    assert 1 == registry.get_sample_value(
        "sternpost_gateway_requests_total", {"policy": "", "arm": "all", "outcome": "invalid_json"}
    )


SCOPE: Scope = {
    "type": "http",
    "method": "POST",
    "path": "/v1/chat/completions",
    "query_string": b"",
    "headers": [(b"content-length", str(len(BODY)).encode())],
}


async def exchange(pipeline: Pipeline) -> None:
    """Serve one request whose client stays to the end, with nothing between it and the pipeline."""
    body: list[Message] = [{"type": "http.request", "body": BODY, "more_body": False}]

    async def receive() -> Message:
        if not body:
            await asyncio.Event().wait()
        return body.pop()

    async def send(message: Message) -> None:
        pass

    await pipeline(dict(SCOPE), receive, send)


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(None, id="answered"),
        pytest.param(ConnectFailed("gone"), id="no-connection"),
        pytest.param(Disconnected("gone"), id="disconnected"),
        pytest.param(FirstByteTimeout("late"), id="no-answer"),
        pytest.param(RuntimeError("broken"), id="an-error-of-ours"),
    ],
)
async def test_an_exchange_leaves_nothing_to_the_garbage_collector(error: Exception | None) -> None:
    """It is looked for rarely: a cycle would keep a body for long after its request."""
    pipeline = Pipeline(make_parts(FakeUpstream(error), CollectorRegistry()))
    await exchange(pipeline)
    with left_to_the_collector("sternpost") as left:
        await exchange(pipeline)
        # What the exchange has cancelled ends in the loop's next turns.
        await asyncio.sleep(0.0)
        await asyncio.sleep(0.0)
        if error is not None:
            # It is raised again and again here, and would keep all frames that it came through.
            error.with_traceback(None)

    assert set() == left
