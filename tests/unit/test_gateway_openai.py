"""OpenAI's own client, synchronous and asynchronous, sees nothing of the gateway."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from sternpost_fakes.engine import FakeEngine, running_engine
from sternpost_fakes.fake_http import Reply
from sternpost_fakes.gateway import RunningGateway, eventually, running_gateway

TAIL = " ".join(f"rule{number}" for number in range(300))
MESSAGES: list[Any] = [
    {"role": "system", "content": "You help ."},
    {"role": "user", "content": "hi"},
    {"role": "system", "content": TAIL},
]
HEADERS = {"x-tenant-id": "acme"}


def client_of(gateway: RunningGateway) -> openai.AsyncOpenAI:
    """Return an asynchronous client that tries nothing twice."""
    return openai.AsyncOpenAI(
        base_url=gateway.url + "/v1", api_key="k", max_retries=0, default_headers=HEADERS
    )


async def warm(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    """Ask until the tail is built."""
    await client.chat.completions.create(model="qwen", messages=MESSAGES)
    await eventually(lambda: bool(engine.built))


async def test_synchronous_client_chats(tmp_path: Path) -> None:
    """The synchronous client gets its answer and its usage."""

    def chat(url: str) -> Any:
        with openai.OpenAI(base_url=url + "/v1", api_key="k", max_retries=0) as client:
            return client.chat.completions.create(model="qwen", messages=MESSAGES)

    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        answer = await asyncio.to_thread(chat, gateway.url)

        assert ("ship ahoy sailor", True) == (
            answer.choices[0].message.content,
            answer.usage.prompt_tokens > 300,
        )


@pytest.mark.parametrize(
    ("options", "usages"),
    [
        pytest.param({}, 0, id="usage-not-asked"),
        pytest.param({"stream_options": {"include_usage": False}}, 0, id="usage-declined"),
        pytest.param({"stream_options": {"include_usage": True}}, 1, id="usage-asked"),
    ],
)
async def test_asynchronous_client_streams(tmp_path: Path, options: Any, usages: int) -> None:
    """A stream has the usage chunk if and only if it was asked for; usage is counted in any case."""
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url]) as gateway,
        client_of(gateway) as client,
    ):
        await warm(client, engine)
        stream = await client.chat.completions.create(model="qwen", messages=MESSAGES, stream=True, **options)
        chunks = [chunk async for chunk in stream]

        assert "ship ahoy sailor " == "".join(
            chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices
        )
        assert usages == len([chunk for chunk in chunks if not chunk.choices])
        assert json.loads(engine.chats[-1].body)["stream_options"]["include_usage"]
        assert (
            gateway.metric("sternpost_gateway_prompt_tokens_total", policy="agents/support", source="suffix")
            > 0
        )
        assert 1 == gateway.metric(
            "sternpost_gateway_ttft_seconds_count", policy="agents/support", path="suffix"
        )


async def test_dropping_the_usage_chunk_changes_no_other_byte(tmp_path: Path) -> None:
    """The stream is the one that the engine would have sent to who did not ask for usage."""
    body = {"model": "qwen", "messages": MESSAGES, "stream": True}
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url]) as gateway,
        client_of(gateway) as client,
    ):
        await warm(client, engine)
        through = await gateway.client.post("/v1/chat/completions", json=body, headers=HEADERS)
        direct = await gateway.client.post(engine.url + "/v1/chat/completions", json=body)

        assert direct.content == through.content
        assert "identity" == engine.chats[-2].header("accept-encoding")


async def test_tool_call_deltas_arrive_as_sent(tmp_path: Path) -> None:
    """Parallel tool calls keep their indices and their empty pieces."""
    deltas = [
        {
            "tool_calls": [
                {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}
            ]
        },
        {
            "tool_calls": [
                {"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"q":'}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"17"}'}}]},
    ]
    engine = FakeEngine(deltas=tuple(deltas))
    async with (
        running_engine(engine),
        running_gateway(tmp_path, [engine.url]) as gateway,
        client_of(gateway) as client,
    ):
        stream = await client.chat.completions.create(model="qwen", messages=MESSAGES, stream=True)
        arguments = {0: "", 1: ""}
        async for chunk in stream:
            for call in chunk.choices[0].delta.tool_calls or ():
                arguments[call.index] += (call.function and call.function.arguments) or ""

        assert {0: '{"q":"17"}', 1: "{}"} == arguments


async def test_completions_and_models_work(tmp_path: Path) -> None:
    """Plain completions are served, with the policy's salt and without a hint."""
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url]) as gateway,
        client_of(gateway) as client,
    ):
        answer = await client.completions.create(model="qwen", prompt="hi")
        sent = json.loads(engine.posts("/v1/completions")[-1].body)

        assert "ship ahoy sailor" == answer.choices[0].text
        assert ("cache_salt" in sent, "kv_transfer_params" in sent) == (True, False)


async def test_errors_are_the_clients_own(tmp_path: Path) -> None:
    """The client raises its own exception, with our code in it."""
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url]) as gateway,
        client_of(gateway) as client,
    ):
        engine.faults.unhealthy = True
        await eventually(lambda: gateway.metric("sternpost_gateway_engines_ready") == 0)
        with pytest.raises(openai.InternalServerError) as raised:
            await client.chat.completions.create(model="qwen", messages=MESSAGES)

        assert "no_engine" == raised.value.code


async def test_client_tries_again_what_the_engine_refuses(tmp_path: Path) -> None:
    """Refusals with `Retry-After` pass unchanged, so that the client's own retries end in an answer."""
    refusal = Reply(status=503, headers=(("retry-after", "0"),), pieces=(b'{"error":{"message":"later"}}',))
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url]) as gateway,
        client_of(gateway) as client,
    ):
        engine.faults.reply = refusal
        asking = asyncio.ensure_future(
            client.with_options(max_retries=3).chat.completions.create(model="qwen", messages=MESSAGES)
        )
        await eventually(lambda: 2 == len(engine.chats))
        engine.faults.reply = None
        answer = await asking

    assert "ship ahoy sailor" == answer.choices[0].message.content
    assert ["0", "1"] == [seen.header("x-stainless-retry-count") for seen in engine.chats[:2]]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_client_that_times_out_ends_its_request(tmp_path: Path, stream: bool) -> None:
    """The client raises its own exception, and the engine learns at once that nobody waits."""
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url]) as gateway,
        client_of(gateway) as client,
    ):
        engine.faults.hang = True
        with pytest.raises(openai.APITimeoutError):
            await client.with_options(timeout=0.3).chat.completions.create(
                model="qwen", messages=MESSAGES, stream=stream
            )

        await eventually(lambda: 1 == engine.server.aborts)
        await eventually(lambda: 0 == gateway.metric("sternpost_gateway_in_flight"))


async def test_streaming_helper_and_raw_responses_work(tmp_path: Path) -> None:
    """The client's events are those of the engine's stream; raw responses have status, headers and lines."""
    async with (
        running_engine() as engine,
        running_gateway(tmp_path, [engine.url]) as gateway,
        client_of(gateway) as client,
    ):
        async with client.chat.completions.stream(model="qwen", messages=MESSAGES) as stream:
            words = [event.delta async for event in stream if event.type == "content.delta"]
        raw = await client.chat.completions.with_raw_response.create(
            model="qwen", messages=MESSAGES, extra_headers={"x-request-id": "req-17"}
        )
        streaming = client.chat.completions.with_streaming_response
        async with streaming.create(model="qwen", messages=MESSAGES, stream=True) as response:
            lines = [line async for line in response.iter_lines() if line]

    assert ["ship ", "ahoy ", "sailor "] == words
    assert (200, "req-17") == (raw.status_code, raw.headers["x-request-id"])
    assert "ship ahoy sailor" == raw.parse().choices[0].message.content
    assert "data: [DONE]" == lines[-1]


async def test_structured_outputs_are_read_as_sent(tmp_path: Path) -> None:
    """The schema reaches the engine as it is, and what comes back is the client's own type."""

    class Colour(BaseModel):
        colour: str

    async with (
        running_engine(FakeEngine(words=('{"colour":', '"red"}'))) as engine,
        running_gateway(tmp_path, [engine.url]) as gateway,
        client_of(gateway) as client,
    ):
        answer = await client.chat.completions.parse(model="qwen", messages=MESSAGES, response_format=Colour)
        sent = json.loads(engine.chats[-1].body)["response_format"]["json_schema"]

    assert Colour(colour="red") == answer.choices[0].message.parsed
    assert ("Colour", True) == (sent["name"], sent["strict"])
