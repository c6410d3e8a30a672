"""
A mock engine that costs next to nothing: `python -m bench.gateway.upstream PORT HOLDING_PORT`.

It answers chats with canned bytes, or with a stream of events at a fixed pace, and knows just enough of the
plugin's interface for the gateway's whole pipeline to run. On the second port a stream stops after its first
event and stays open, which is for measuring what an idle stream holds.
"""

from __future__ import annotations

import asyncio
import functools
import json
import re
import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import httptools
import uvloop

from sternpost_core.hint import HINT_FIELD, Reason, Report

HOST: Final = "127.0.0.1"
MODEL: Final = "bench"
EVENTS: Final = 200
EVENT_SECONDS: Final = 0.002
"""Between two events of a stream: 500 tokens a second, faster than any engine answers one user."""

BATCH: Final = "mock-1"
EPOCH: Final = 0
BYTES_PER_TOKEN: Final = 4
ANSWER_TOKENS: Final = 16
QUESTION_TOKENS: Final = 40
SUFFIX_TOKENS: Final = 280
"""Of a prompt, computed and read from the suffix store; all before them is found in the prefix cache."""

GRAIN_TOKENS: Final = 64
BLOCK_TOKENS: Final = 16
TAIL_TOKENS_MIN: Final = 16
TAIL_TOKENS_MAX: Final = 8192
BACKLOG: Final = 2048

STREAM: Final = re.compile(rb'"stream"\s*:\s*true')
WORD: Final = re.compile(r"\S+")
CHAT_PATH: Final = "/v1/chat/completions"


def usage_of(reason: Reason, prompt_tokens: int) -> dict[str, Any]:
    """Return an answer's usage, with what the plugin would report."""
    suffix = SUFFIX_TOKENS if reason is Reason.HIT else 0
    report = Report(
        prefix_tokens=max(0, prompt_tokens - suffix - QUESTION_TOKENS),
        suffix_tokens=suffix,
        computed_tokens=min(prompt_tokens - suffix, QUESTION_TOKENS),
        reason=reason,
        engine=BATCH,
    )
    cached = report.prefix_tokens + report.suffix_tokens
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": ANSWER_TOKENS,
        "total_tokens": prompt_tokens + ANSWER_TOKENS,
        "prompt_tokens_details": {"cached_tokens": cached, HINT_FIELD: report.to_mapping()},
    }


@functools.cache
def usage_event(prompt_tokens: int) -> bytes:
    """Return the event that carries a stream's usage, and the stream's end."""
    return event_of([], usage=usage_of(Reason.HIT, prompt_tokens)) + STREAM_END


@functools.cache
def chat(prompt_tokens: int) -> bytes:
    """Return the answer to a chat whose prompt has so many tokens."""
    return whole(chat_of(Reason.HIT, prompt_tokens))


def prompt_tokens_of(body: bytes) -> int:
    """Return about how many tokens a prompt has, of few different numbers, so that answers are made once."""
    return max(1, len(body) // BYTES_PER_TOKEN // GRAIN_TOKENS) * GRAIN_TOKENS + SUFFIX_TOKENS


def chat_of(reason: Reason, prompt_tokens: int) -> dict[str, Any]:
    """Return a whole answer, to a chat or to a build."""
    message = {"role": "assistant", "content": "ship ahoy " * (ANSWER_TOKENS // 2)}
    choice = {"index": 0, "message": message, "text": "ship", "finish_reason": "stop", "logprobs": None}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": MODEL}
    return {**head, "choices": [choice], "usage": usage_of(reason, prompt_tokens)}


def event_of(choices: list[Any], **more: Any) -> bytes:
    """Return one event of a stream, framed as a chunk."""
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
    event = b"data: " + json.dumps({**head, "choices": choices, **more}).encode() + b"\n\n"
    return _framed(event)


def whole(body: Mapping[str, Any], status: int = 200) -> bytes:
    """Return a response with a JSON body."""
    raw = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} OK\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n"
    return head.encode() + raw


def _framed(piece: bytes) -> bytes:
    return f"{len(piece):x}\r\n".encode() + piece + b"\r\n"


BUILT: Final = whole(chat_of(Reason.BUILT, SUFFIX_TOKENS))
HEALTHY: Final = whole({})
MODELS: Final = whole({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "bench"}]})
INFO: Final = whole(
    {
        "v": 1,
        "version": "0.1.0",
        "engine": BATCH,
        "supported": True,
        "reason": None,
        "epoch": EPOCH,
        "block_size": BLOCK_TOKENS,
        "tail_tokens_min": TAIL_TOKENS_MIN,
        "tail_tokens_max": TAIL_TOKENS_MAX,
    }
)
STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
EVENT: Final = event_of([{"index": 0, "delta": {"content": "ahoy "}, "finish_reason": None}])
STREAM_END: Final = _framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"

CANNED: Final[Mapping[str, bytes]] = {
    "/v1/completions": BUILT,
    "/v1/models": MODELS,
    "/sternpost/v1/info": INFO,
}
"""What is answered whatever the body says; every other path is healthy."""


def tokenized(body: Mapping[str, Any]) -> bytes:
    """Return the tokens of a conversation, one for each word: what comes later changes nothing before it."""
    words: list[str] = []
    for message in body.get("messages", ()):
        words += ["<start>", message["role"], *WORD.findall(str(message.get("content"))), "<end>"]
    if body.get("add_generation_prompt", True):
        words += ["<start>", "assistant"]
    tokens = [zlib.crc32(word.encode()) & 0xFFFF for word in words]
    return whole({"count": len(tokens), "max_model_len": 32768, "tokens": tokens})


@dataclass(slots=True)
class Stream:
    """A stream that is being written: when its last event was due, and how many are left but `end`."""

    loop: asyncio.AbstractEventLoop
    end: bytes
    due: float
    left: int = EVENTS

    def plan(self, go_on: Callable[[Stream], None]) -> None:
        """Plan the next event by when this one was due, so that a late one delays no others."""
        self.due += EVENT_SECONDS
        self.left -= 1
        self.loop.call_at(self.due, go_on, self)


class Connection(asyncio.Protocol):
    """One connection; requests on it are answered one after the other."""

    def __init__(self, *, holds: bool) -> None:
        self._holds = holds
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._target = ""
        self._pieces: list[bytes] = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Keep the transport."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Hand what has come to the parser."""
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the stream that may be running."""
        self._transport = None

    def on_url(self, url: bytes) -> None:
        """Begin a request."""
        self._target = url.decode("latin-1").partition("?")[0]
        self._pieces.clear()

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body."""
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        """Answer."""
        body = b"".join(self._pieces)
        if self._target == CHAT_PATH and STREAM.search(body):
            self._begin_stream(prompt_tokens_of(body))
        elif self._target == CHAT_PATH:
            self._write(chat(prompt_tokens_of(body)))
        elif self._target == "/tokenize":
            self._write(tokenized(json.loads(body)))
        else:
            self._write(CANNED.get(self._target, HEALTHY))

    def _begin_stream(self, prompt_tokens: int) -> None:
        self._write(STREAM_HEAD + EVENT)
        if not self._holds:
            loop = asyncio.get_running_loop()
            stream = Stream(loop, usage_event(prompt_tokens), loop.time())
            stream.plan(self._go_on)

    def _go_on(self, stream: Stream) -> None:
        if self._transport is None:
            return
        if stream.left:
            self._write(EVENT)
            stream.plan(self._go_on)
        else:
            self._write(stream.end)

    def _write(self, raw: bytes) -> None:
        if self._transport is not None:
            self._transport.write(raw)


async def serve(port: int, holding_port: int) -> None:
    """Serve until the process is told to end."""
    loop = asyncio.get_running_loop()

    def factory(*, holds: bool) -> Callable[[], Connection]:
        return lambda: Connection(holds=holds)

    await loop.create_server(factory(holds=False), HOST, port, backlog=BACKLOG)
    await loop.create_server(factory(holds=True), HOST, holding_port, backlog=BACKLOG)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))
