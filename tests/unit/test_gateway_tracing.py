"""One span a request: its stages, its attributes, its context to the engine, and never a word of a prompt."""

from __future__ import annotations

import asyncio
import itertools
import re
from pathlib import Path
from typing import Any, Final

import httpx
import opentelemetry.semconv._incubating.attributes.gen_ai_attributes as conventions
import pytest
from opentelemetry.trace import SpanKind, StatusCode

from sternpost_fakes.engine import FakeEngine, running_engine
from sternpost_fakes.fake_http import Reply
from sternpost_fakes.gateway import WAIT_SECONDS_MAX, RunningGateway, eventually, running_gateway
from sternpost_fakes.traces import RecordedTracing, facts_of
from sternpost_gateway import trace_facts
from sternpost_gateway.tracing import NO_TRACE, NO_TRACING, Stage

WORD: Final = "confidential"
TAIL: Final = " ".join(f"{WORD} rule {number}" for number in range(100))
PARENT: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
STAGES: Final = [stage.value for stage in Stage]


def body(*, stream: bool = True, model: str = "qwen") -> dict[str, Any]:
    """Return a chat that the policy matches."""
    return {
        "model": model,
        "stream": stream,
        "messages": [{"role": "user", "content": f"{WORD} question"}, {"role": "system", "content": TAIL}],
    }


async def ask(
    gateway: RunningGateway, sent: dict[str, Any], path: str = "/v1/chat/completions", **headers: str
) -> httpx.Response:
    """Send a chat, and read the whole of its answer."""
    return await gateway.client.post(path, json=sent, headers={"x-request-id": "r-1", **headers})


async def ask_until_read(gateway: RunningGateway) -> int:
    """Ask until a tail is read; return how often."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        for count in itertools.count(1):
            if "x-sternpost-bypass" not in (await ask(gateway, body())).headers:
                return count
            await asyncio.sleep(0.02)
    raise AssertionError("the loop ends by its return only")


async def ended(tracing: RecordedTracing, count: int = 1) -> None:
    """Wait until spans have ended, which is after the client has read its answer."""
    await eventually(lambda: len(tracing.spans) >= count)


async def test_a_request_is_one_span_with_its_stages(tmp_path: Path) -> None:
    """In their order, with what is known at each, and with the conventions' names where they have one."""
    tracing = RecordedTracing()
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], tracing=tracing) as gateway,
    ):
        asked = await ask_until_read(gateway)
        await ended(tracing, asked)

    span = tracing.spans[-1]
    facts = facts_of(span)
    assert ("chat qwen", SpanKind.SERVER, STAGES) == (
        span.name,
        span.kind,
        [event.name for event in span.events],
    )
    assert ("chat", "vllm", "qwen", True) == tuple(
        facts[name]
        for name in (
            "gen_ai.operation.name",
            "gen_ai.provider.name",
            "gen_ai.request.model",
            "gen_ai.request.stream",
        )
    )
    assert ("r-1", "agents/support", "all", "None") == tuple(
        facts[f"sternpost.{name}"] for name in ("request_id", "policy", "arm", "kill_level")
    )
    assert (engine.url, 200) == (facts["server.address"], facts["http.response.status_code"])
    assert facts["gen_ai.usage.input_tokens"] == sum(
        facts[f"sternpost.tokens.{source}"] for source in ("prefix", "suffix", "computed")
    )
    assert 0 < facts["gen_ai.response.time_to_first_chunk"] < 5
    assert StatusCode.UNSET is span.status.status_code


async def test_no_span_holds_a_word_of_a_prompt_or_of_an_answer(tmp_path: Path) -> None:
    """Nor does the span of a request that fails."""
    tracing, engine = RecordedTracing(), FakeEngine(words=(WORD,))
    async with running_engine(engine), running_gateway(tmp_path, [engine.url], tracing=tracing) as gateway:
        await ask(gateway, body(), **{"x-session-id": WORD, "x-tenant-id": WORD})
        await ask(gateway, {"messages": WORD})
        engine.faults.reply = Reply(status=500, pieces=(WORD.encode(),))
        await ask(gateway, body())
        await ended(tracing, 3)

    assert WORD not in "".join(span.to_json() for span in tracing.spans)


@pytest.mark.parametrize(
    ("headers", "parent"),
    [
        pytest.param({}, None, id="a client without a trace"),
        pytest.param({"traceparent": PARENT, "tracestate": "a=b"}, PARENT, id="a client's trace"),
        pytest.param({"traceparent": "00-zz"}, None, id="what is no trace"),
    ],
)
async def test_the_engine_gets_the_gateways_context(
    headers: dict[str, str], parent: str | None, tmp_path: Path
) -> None:
    """So that the engine's spans are beneath the gateway's, and that is beneath the client's."""
    tracing = RecordedTracing()
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], tracing=tracing) as gateway,
    ):
        await ask(gateway, body(), **headers)
        await ended(tracing)

    span = tracing.only()
    assert span.context is not None
    sent = [value for name, value in engine.chats[0].headers if name.lower() == "traceparent"]
    # The last bit says that it is sampled; the one before, that the id is random.
    assert [f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}"] == [
        value.rpartition("-")[0] for value in sent if value[-1] in "13"
    ]
    if parent is None:
        assert span.parent is None
    else:
        assert span.parent is not None
        assert parent == f"00-{span.parent.trace_id:032x}-{span.parent.span_id:016x}-01"
        assert "a=b" == engine.chats[0].header("tracestate")


@pytest.mark.parametrize(
    ("sent", "path", "reply", "status", "error"),
    [
        pytest.param({"model": 1}, "/v1/chat/completions", None, 200, None, id="an engine's to judge"),
        pytest.param([], "/v1/chat/completions", None, 400, None, id="a client's fault"),
        pytest.param(body(), "/v1/chat/completions", Reply(status=503), 503, "503", id="an engine's failure"),
        pytest.param(
            body(), "/v1/chat/completions", Reply(cut=True, pieces=(b"{",)), 200, "upstream_cut", id="a cut"
        ),
        pytest.param({}, "/v1/files/a", None, 200, None, id="a path that is passed through"),
    ],
)
async def test_a_span_says_how_its_request_ended(
    sent: Any, path: str, reply: Reply | None, status: int, error: str | None, tmp_path: Path
) -> None:
    """Whose fault it is, too: a client's is no error of this server."""
    tracing, engine = RecordedTracing(), FakeEngine()
    async with running_engine(engine), running_gateway(tmp_path, [engine.url], tracing=tracing) as gateway:
        engine.faults.reply = reply
        try:
            await ask(gateway, sent, path)
        except httpx.RemoteProtocolError:
            assert error == "upstream_cut"
        await ended(tracing)

    facts = facts_of(tracing.only())
    assert (status, error) == (facts["http.response.status_code"], facts.get("error.type"))
    assert (error is not None) is (tracing.only().status.status_code is StatusCode.ERROR)


async def test_histograms_keep_trace_ids_for_those_who_can_read_them(tmp_path: Path) -> None:
    """Exemplars are in OpenMetrics only; the text format has no place for them."""
    tracing = RecordedTracing()
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url], tracing=tracing) as gateway,
    ):
        await ask(gateway, body())
        await ended(tracing)
        openmetrics = await gateway.client.get(
            "/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"}
        )
        text = await gateway.client.get("/metrics")

    span = tracing.only()
    assert span.context is not None
    found = re.findall(r'sternpost_gateway_ttft_seconds_bucket.* # \{trace_id="(\w+)"\}', openmetrics.text)
    assert {f"{span.context.trace_id:032x}"} == set(found)
    assert openmetrics.text.endswith("# EOF\n") and "trace_id" not in text.text


async def test_without_tracing_a_clients_context_passes_as_it_is(tmp_path: Path) -> None:
    """And nothing is kept."""
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        await ask(gateway, body(), traceparent=PARENT)

    assert PARENT == engine.chats[0].header("traceparent")


def test_without_tracing_every_request_shares_one_trace() -> None:
    """So that it costs nothing to speak of: nothing is made for a request."""
    with NO_TRACING.request("POST", "/", ()) as one, NO_TRACING.request("POST", "/", ()) as other:
        assert one is other is NO_TRACE

    assert (False, "", None) == (NO_TRACE.is_recording, NO_TRACE.trace_id, NO_TRACE.exemplar)


def test_names_are_those_of_the_conventions() -> None:
    """All that begin as theirs do."""
    ours = {value for value in vars(trace_facts).values() if str(value).startswith("gen_ai.")}

    assert 8 == len(ours)
    assert set() == ours - _strings(conventions)


def _strings(module: Any) -> set[str]:
    return {value for value in vars(module).values() if isinstance(value, str)}
