"""Tokens of segments: as the engine counts them, an estimate until then."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from sternpost_core.errors import OperatingError, SettingsError
from sternpost_fakes.chat_tokenizer import ChatTokenizer
from sternpost_fakes.clock import FakeClock
from sternpost_fakes.engine import running_engine
from sternpost_fakes.gateway import running_gateway
from sternpost_fakes.gateway_scene import SYSTEM, TAIL, USER, Scene
from sternpost_gateway.engine_api import EngineApi
from sternpost_gateway.fleet import Engine
from sternpost_gateway.lint.encoders import EstimateEncoder
from sternpost_gateway.prompts import encoder_of
from sternpost_gateway.receive import RESPONSES_PATH
from sternpost_gateway.rendering import Fixed
from sternpost_gateway.segment_tokens import ENGINE_SOURCE, FAILED_SECONDS, SegmentTokens, TokenCount
from sternpost_gateway.settings import Settings, TokenEstimate

ENGINE = Engine("http://engine")
OLD_LOADER = "ignore:open_binary is deprecated:DeprecationWarning"
"""What the package of the encodings is still told off for."""

SECRET_WORDS = "Where is my order?"


def rendered(body: dict[str, Any]) -> str:
    """Render a conversation as ChatML."""
    text = str(body.get("tools", ""))
    text += "".join(f"<{one['role']}>{one['content']}</>" for one in body["messages"])
    return text + ("<assistant>" if body["add_generation_prompt"] else "")


def counting(answer: Callable[[httpx.Request], httpx.Response], clock: FakeClock) -> SegmentTokens:
    """Return counts that ask an engine which answers so."""
    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    settings = Settings(policies=Path("policies"), engines=(ENGINE.url,))
    return SegmentTokens(EngineApi(client, settings.timeouts), EstimateEncoder(), clock)


def tokenizer(asked: list[dict[str, Any]]) -> Callable[[httpx.Request], httpx.Response]:
    """Return an engine that takes each character for a token; what it is asked is noted."""

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        return httpx.Response(200, json={"tokens": ChatTokenizer().encode(rendered(asked[-1]))})

    return answer


def meet(counts: SegmentTokens, parts: Fixed) -> SegmentTokens:
    """Let the parts come for the first time."""
    counts.want(ENGINE, parts)
    return counts


def fixed(path: str = "/v1/chat/completions", **fields: Any) -> Fixed:
    """Return the fixed parts of a prompt."""
    body = fields or {"messages": [SYSTEM, {**USER, "content": SECRET_WORDS}, TAIL]}
    planned = Scene(body={"model": "qwen", **body}, path=path).plan()
    document, chat = planned.segmented.canonicalized.document, planned.segmented.chat
    assert document is not None and chat is not None
    return Fixed(document, chat)


async def test_engine_counts_each_segment_once() -> None:
    """Prefix and tail are counted apart, from made-up conversations, and never again."""
    asked: list[dict[str, Any]] = []
    parts = fixed()
    counts = meet(counting(tokenizer(asked), FakeClock()), parts)
    for _ in range(3):
        counts.want(ENGINE, parts)
        await counts.idle()
    prefix, tail = parts.ids

    assert TokenCount(len("^<system>You help .</><user>"), ENGINE_SOURCE) == counts.of(prefix)
    assert TokenCount(len("<system>rules</><assistant>"), ENGINE_SOURCE) == counts.of(tail)
    assert 4 == len(asked) and SECRET_WORDS not in json.dumps(asked)


async def test_what_comes_once_is_not_counted() -> None:
    """Of a prompt that begins anew each time, only the tail that it shares with others is asked for."""
    asked: list[dict[str, Any]] = []
    counts = counting(tokenizer(asked), FakeClock())
    prompts = [
        fixed(messages=[{**SYSTEM, "content": f"It is {hour} o'clock ."}, USER, TAIL]) for hour in range(4)
    ]
    for parts in prompts:
        counts.want(ENGINE, parts)
        await counts.idle()

    assert [None] * 4 == [counts.of(parts.ids[0]) for parts in prompts]
    assert {counts.of(parts.ids[1]) is not None for parts in prompts} == {True}
    assert 2 == len(asked)


async def test_estimate_stands_until_the_engine_answers() -> None:
    """An engine without /tokenize leaves the estimate, says so, and is asked again later."""
    clock = FakeClock()
    asked: list[httpx.Request] = []

    def missing(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(404)

    parts = fixed()
    counts = meet(counting(missing, clock), parts)
    for seconds in (0.0, 0.0, FAILED_SECONDS):
        clock.advance(seconds)
        counts.want(ENGINE, parts)
        await counts.idle()
    known = counts.of(parts.ids[0])

    assert known == TokenCount(-(-len(json.dumps(SYSTEM)) // 4), "estimate, 4 bytes to a token")
    assert 2 == len(asked)


async def test_responses_are_counted_as_the_chats_they_stand_for() -> None:
    """Instructions count as a system message."""
    asked: list[dict[str, Any]] = []
    parts = fixed(RESPONSES_PATH, instructions="You help .", input=SECRET_WORDS)
    counts = meet(counting(tokenizer(asked), FakeClock()), parts)
    counts.want(ENGINE, parts)
    await counts.idle()

    assert TokenCount(len("^<system>You help .</><user>"), ENGINE_SOURCE) == counts.of(parts.ids[0])


async def test_counts_are_shown_with_the_versions(tmp_path: Path) -> None:
    """People see how long each version is, and who says so."""
    body = {"model": "qwen", "messages": [SYSTEM, USER, TAIL]}
    tokens = ["<start>", "system", "rules", "<end>", "<start>", "assistant"]
    async with running_engine() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        async with asyncio.timeout(5):
            shown: dict[str, Any] = {"tokensFrom": None}
            while shown["tokensFrom"] != ENGINE_SOURCE:
                await gateway.client.post("/v1/chat/completions", json=body)
                answer = await gateway.client.get("/sternpost/v1/templates")
                shown = answer.json()["policies"][0]["versions"]["tail"][0]

    assert ("v1", len(tokens)) == (shown["version"], shown["tokens"])


@pytest.mark.filterwarnings(OLD_LOADER)
@pytest.mark.parametrize(
    ("estimate", "label", "tokens"),
    [
        pytest.param(None, "estimate, 4 bytes to a token", 3, id="bytes"),
        pytest.param(TokenEstimate(encoding="cl100k_base"), "cl100k_base", 2, id="encoding"),
    ],
)
def test_estimate_is_what_was_asked_for(estimate: TokenEstimate | None, label: str, tokens: int) -> None:
    """Four bytes to a token, unless ranks were asked for; the label says which."""
    encoder = encoder_of(estimate)

    assert (label, tokens) == (encoder.label, len(encoder.encode("hello world")) // 4)


@pytest.mark.filterwarnings(OLD_LOADER)
def test_ranks_come_from_a_file(tmp_path: Path) -> None:
    """A file of ranks is read as it is; what is none is refused with its name."""
    ranks = tmp_path / "little.tiktoken"
    ranks.write_text("".join(f"{base64.b64encode(bytes([one])).decode()} {one}\n" for one in range(256)))
    broken = tmp_path / "broken"
    broken.write_text("x")

    assert "ranks of little.tiktoken" == encoder_of(TokenEstimate(ranks=ranks)).label
    with pytest.raises(SettingsError, match="--ranks"):
        encoder_of(TokenEstimate(ranks=broken))
    with pytest.raises(OperatingError, match="cannot be read"):
        encoder_of(TokenEstimate(ranks=tmp_path / "missing"))
    with pytest.raises(SettingsError, match="--encoding"):
        encoder_of(TokenEstimate(encoding="no_such"))
