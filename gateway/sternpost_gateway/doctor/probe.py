"""One probe: a streamed chat through a gateway, and what is seen of it from outside."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx

from sternpost_core.clock import Clock
from sternpost_core.errors import OperatingError
from sternpost_core.hint import Report
from sternpost_gateway.engine_api import report_of
from sternpost_gateway.record import cached_tokens_of
from sternpost_gateway.sse import EventSplitter, data_of, usage_of

EVENT_BYTES_MAX: Final = 1024 * 1024

CHATS: Final = "/v1/chat/completions"
MODELS: Final = "/v1/models"

ANSWER_TOKENS: Final = 2
"""A probe asks for as few tokens as make a stream: only its prompt is of interest."""

PREFIX: Final = " ".join(
    f"Note {number}: the harbour's pier {number * 13 % 89} is open." for number in range(60)
)
TAIL: Final = " ".join(f"Rule {number}: do not speak of pier {number * 7 % 83}." for number in range(100))
"""Made up, so that nobody's words are sent anywhere; long enough to be worth a place in a store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """
    What one probe showed: the gateway's headers, the engine's usage, and the seconds to the first byte.

    `predicted` is what the gateway says that it expects of the suffix store, in tokens; None where it says
    nothing.
    """

    status: int
    first_token_seconds: float
    policy: str | None = None
    predicted: int | None = None
    bypass: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    report: Report | None = None


def made_up_chat(model: str) -> dict[str, Any]:
    """Return a chat with a fixed prefix and a fixed tail."""
    return {
        "model": model,
        "messages": [
            {"role": "system", "content": PREFIX},
            {"role": "user", "content": "Which pier is open?"},
            {"role": "system", "content": TAIL},
        ],
    }


def numbered(chat: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return a chat that asks something else than the others do, between the same prefix and tail."""
    messages = [dict(message) for message in chat["messages"]]
    for message in messages:
        if message["role"] == "user" and isinstance(message.get("content"), str):
            message["content"] = f"Probe {number}. {message['content']}"
            break
    streamed = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": ANSWER_TOKENS}
    return {**chat, "messages": messages, **streamed}


async def first_model(client: httpx.AsyncClient) -> str:
    """
    Return the first model that the gateway's engines serve.

    Raises:
        OperatingError: the gateway does not answer, or names none.
    """
    try:
        answer = await client.get(MODELS)
        name = answer.json()["data"][0]["id"]
    except httpx.HTTPError as error:
        raise OperatingError(f"the gateway does not answer: {str(error) or type(error).__name__}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise OperatingError("the gateway names no model at /v1/models; say --model") from error
    return str(name)


async def probe(client: httpx.AsyncClient, chat: Mapping[str, Any], clock: Clock) -> Seen:
    """
    Send one chat, and read its answer to the end.

    Raises:
        OperatingError: the gateway does not answer, or breaks off.
    """
    began = clock.monotonic()
    try:
        async with client.stream("POST", CHATS, json=dict(chat)) as response:
            first, usage = None, None
            events = EventSplitter(EVENT_BYTES_MAX)
            async for chunk in response.aiter_bytes():
                first = clock.monotonic() if first is None else first
                for event in events.feed(chunk):
                    usage = usage_of(event) or _final_usage(event) or usage
            return _seen(response, (first or clock.monotonic()) - began, usage)
    except httpx.HTTPError as error:
        raise OperatingError(f"the gateway does not answer: {str(error) or type(error).__name__}") from error


def _final_usage(event: bytes) -> dict[str, Any] | None:
    """Return the usage that stands in a chunk with choices, as some engines send it."""
    try:
        chunk = json.loads(data_of(event))
    except ValueError:
        return None
    usage = chunk.get("usage") if isinstance(chunk, dict) else None
    return usage if isinstance(usage, dict) else None


def _seen(response: httpx.Response, seconds: float, usage: dict[str, Any] | None) -> Seen:
    predicted = response.headers.get("x-sternpost-reuse")
    prompt = usage.get("prompt_tokens") if usage else None
    return Seen(
        status=response.status_code,
        first_token_seconds=seconds,
        policy=response.headers.get("x-sternpost-policy"),
        predicted=int(predicted) if predicted is not None and predicted.isdecimal() else None,
        bypass=response.headers.get("x-sternpost-bypass"),
        prompt_tokens=prompt if isinstance(prompt, int) else None,
        cached_tokens=cached_tokens_of(usage),
        report=report_of(usage),
    )
