"""A gateway's answers without a network, for the `openai` client of the demonstration."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import httpx2
import openai

from bench.demo.client import Target
from bench.demo.rows import Arm

Handler = (
    Callable[[httpx2.Request], httpx2.Response]
    | Callable[[httpx2.Request], Coroutine[None, None, httpx2.Response]]
)


def chunk(content: str | None, finish_reason: str | None = None) -> dict[str, Any]:
    """Return a chunk with one choice."""
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish_reason}
    return {**_envelope(), "choices": [choice]}


def usage_chunk(prompt_tokens: int, details: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the last chunk, with the usage."""
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": 2, "total_tokens": prompt_tokens + 2}
    return {**_envelope(), "choices": [], "usage": {**usage, "prompt_tokens_details": details}}


def report(*, prefix: int, suffix: int, computed: int, engine: str, reason: str = "hit") -> dict[str, Any]:
    """Return the details of the usage with an engine's report."""
    found = {"v": 1, "prefix_tokens": prefix, "suffix_tokens": suffix, "computed_tokens": computed}
    return {"cached_tokens": prefix + suffix, "sternpost": {**found, "reason": reason, "engine": engine}}


def stream(chunks: Sequence[Mapping[str, Any]]) -> httpx2.Response:
    """Return chunks as an event stream that ends as it should."""
    events = [f"data: {json.dumps(item)}\n\n" for item in chunks]
    return httpx2.Response(
        200, headers={"content-type": "text/event-stream"}, text="".join([*events, "data: [DONE]\n\n"])
    )


def answered(*, suffix: int, computed: int = 100, engine: str = "engine-a") -> httpx2.Response:
    """Return a short answer with an engine's report."""
    details = report(
        prefix=0, suffix=suffix, computed=computed, engine=engine, reason="hit" if suffix else "off"
    )
    return stream([chunk("Hello."), chunk("", "stop"), usage_chunk(suffix + computed, details)])


def make_target(arm: Arm, handler: Handler) -> Target:
    """Return a target whose requests `handler` answers."""
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(handler))
    client = openai.AsyncOpenAI(
        base_url="http://gateway.test/v1", api_key="unused", max_retries=0, http_client=http
    )
    return Target(arm, client, "small")


def _envelope() -> dict[str, Any]:
    return {"id": "chat-1", "object": "chat.completion.chunk", "created": 1, "model": "small"}
