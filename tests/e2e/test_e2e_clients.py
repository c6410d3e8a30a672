"""Common clients before gateway and real engine: each behaves as it does before the engine alone."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any, Final

import openai
import pytest

from sternpost_running.other_clients import use_client
from sternpost_running.up import RunningUp

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

MESSAGES: Final[list[Any]] = [{"role": "user", "content": "Name two colours."}]
TOKENS: Final = 8

TOOL: Final[Any] = {
    "type": "function",
    "function": {
        "name": "paint",
        "description": "Paint the ship.",
        "parameters": {
            "type": "object",
            "properties": {"colour": {"type": "string", "enum": ["red", "blue"]}},
            "required": ["colour"],
            "additionalProperties": False,
        },
    },
}
SCHEMA: Final[Any] = {
    "type": "json_schema",
    "json_schema": {"name": "answer", "strict": True, "schema": TOOL["function"]["parameters"]},
}


def _chat(client: openai.OpenAI, model: str) -> object:
    answer = client.chat.completions.create(
        model=model, messages=MESSAGES, temperature=0, max_tokens=TOKENS, n=1
    )
    assert answer.usage is not None
    return answer.choices[0].message.content, answer.usage.prompt_tokens, answer.choices[0].finish_reason


def _stream(client: openai.OpenAI, model: str) -> object:
    stream = client.chat.completions.create(
        model=model,
        messages=MESSAGES,
        temperature=0,
        max_tokens=TOKENS,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    usages = [chunk.usage.prompt_tokens for chunk in chunks if chunk.usage]
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices), usages


def _stream_helper(client: openai.OpenAI, model: str) -> object:
    events: list[tuple[str, object]] = []
    helper = client.chat.completions.stream(model=model, messages=MESSAGES, temperature=0, max_tokens=TOKENS)
    # The helper takes an answer that ends at the number of tokens allowed for an error.
    with contextlib.suppress(openai.LengthFinishReasonError), helper as stream:
        for event in stream:
            events.append((event.type, getattr(event, "delta", None)))
    return [event for event in events if event[0] != "chunk"]


def _tool(client: openai.OpenAI, model: str) -> object:
    answer = client.chat.completions.create(
        model=model,
        messages=MESSAGES,
        temperature=0,
        max_tokens=24,
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "paint"}},
    )
    calls = answer.choices[0].message.tool_calls
    assert calls is not None and 1 == len(calls)
    call = calls[0]
    assert call.type == "function"
    return call.function.name, json.loads(call.function.arguments)


def _structured(client: openai.OpenAI, model: str) -> object:
    answer = client.chat.completions.create(
        model=model, messages=MESSAGES, temperature=0, max_tokens=24, response_format=SCHEMA
    )
    return json.loads(answer.choices[0].message.content or "")


def _response(client: openai.OpenAI, model: str) -> object:
    answer = client.responses.create(
        model=model, input="Name two colours.", temperature=0, max_output_tokens=TOKENS, store=False
    )
    return answer.output_text, answer.status


def _response_stream(client: openai.OpenAI, model: str) -> object:
    stream = client.responses.create(
        model=model,
        input="Name two colours.",
        temperature=0,
        max_output_tokens=TOKENS,
        store=False,
        stream=True,
    )
    return [event.type for event in stream]


def _raw(client: openai.OpenAI, model: str) -> object:
    raw = client.chat.completions.with_raw_response.create(
        model=model, messages=MESSAGES, temperature=0, max_tokens=TOKENS
    )
    return raw.status_code, raw.headers["content-type"], raw.parse().choices[0].message.content


def _streaming_response(client: openai.OpenAI, model: str) -> object:
    with client.chat.completions.with_streaming_response.create(
        model=model, messages=MESSAGES, temperature=0, max_tokens=TOKENS, stream=True
    ) as response:
        lines = [line for line in response.iter_lines() if line]
    return response.status_code, len(lines), lines[-1]


def _completion(client: openai.OpenAI, model: str) -> object:
    answer = client.completions.create(model=model, prompt="One, two,", temperature=0, max_tokens=TOKENS)
    return answer.choices[0].text


def _models(client: openai.OpenAI, model: str) -> object:
    return [found.id for found in client.models.list()]


def _unknown_model(client: openai.OpenAI, model: str) -> object:
    with pytest.raises(openai.NotFoundError) as raised:
        client.chat.completions.create(model="no-such-model", messages=MESSAGES)
    return raised.value.code, raised.value.message


def _timeout(client: openai.OpenAI, model: str) -> object:
    with pytest.raises(openai.APITimeoutError) as raised:
        client.with_options(timeout=0.02).chat.completions.create(
            model=model, messages=MESSAGES, max_tokens=200
        )
    return type(raised.value).__name__


BEHAVIOURS: Final = (
    _chat,
    _stream,
    _stream_helper,
    _tool,
    _structured,
    _response,
    _response_stream,
    _raw,
    _streaming_response,
    _completion,
    _models,
    _unknown_model,
    _timeout,
)


@pytest.mark.parametrize("behave", BEHAVIOURS, ids=lambda behave: behave.__name__.strip("_"))
def test_official_client_behaves_as_before_the_engine(
    up: RunningUp, behave: Callable[[openai.OpenAI, str], object]
) -> None:
    """Under a policy that matches, the official client gets the same answers, events and errors."""

    def through(base_url: str) -> object:
        with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
            try:
                return behave(client, up.model)
            except openai.APIStatusError as error:
                return type(error).__name__, error.status_code, error.body

    assert through(f"{up.engine_url}/v1") == through(up.base_url)


async def test_asynchronous_client_behaves_as_before_the_engine(up: RunningUp) -> None:
    """Whole and streamed, several at once."""

    async def through(base_url: str) -> object:
        async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
            whole = await client.chat.completions.create(
                model=up.model, messages=MESSAGES, temperature=0, max_tokens=TOKENS
            )
            stream = await client.chat.completions.create(
                model=up.model, messages=MESSAGES, temperature=0, max_tokens=TOKENS, stream=True
            )
            pieces = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
            return whole.choices[0].message.content, "".join(pieces)

    assert await through(f"{up.engine_url}/v1") == await through(up.base_url)


@pytest.mark.parametrize("script", ["use_litellm.py", "use_langchain.py"])
def test_other_clients_behave_as_before_the_engine(up: RunningUp, script: str) -> None:
    """LiteLLM and LangChain get the same from the gateway as from the engine, errors included."""
    direct = use_client(script, f"{up.engine_url}/v1", up.model)
    through = use_client(script, up.base_url, up.model)

    assert direct == through
    assert through["whole"] and through["whole"] == through["stream"] == through["async"]
    # LangChain has a class of its own for models, which OpenAI's is the base of.
    assert through["error"].endswith("NotFoundError")
