"""
A scriptable engine: speaks what the gateway and an engine owe each other, and fails on command.

It renders chats as ChatML and takes each word for a token, so that a test can count tokens by reading.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from sternpost_core.errors import HintError
from sternpost_core.hint import HINT_FIELD, Operation, Reason, Report, parse_hint
from sternpost_core.keys import owner_of
from sternpost_fakes.fake_http import Drop, FakeServer, Reply, Seen
from sternpost_fakes.replays import with_candidates

EVENT_STREAM = (("content-type", "text/event-stream; charset=utf-8"),)
WORD = re.compile(r"\S+")


@dataclass(slots=True)
class Faults:
    """What goes wrong from now on; a test sets it at any time."""

    unhealthy: bool = False
    hang: bool = False
    drop: bool = False
    drop_times: int = 0
    cut: bool = False
    refuse_template: bool = False
    refuse_later_system: bool = False
    print_call_ids: bool = False
    refuse_build: bool = False
    wrong_tails: bool = False
    refuse_replays: bool = False
    foreign_tails: bool = False
    reply: Reply | None = None


@dataclass(slots=True)
class FakeEngine:
    """
    One engine; `words` are what it answers with, one event each, unless `deltas` are given.

    With `models` it says that it serves these. `plugin` False makes it an engine without the plugin,
    `supported` False one that the plugin refuses.
    """

    words: tuple[str, ...] = ("ship", "ahoy", "sailor")
    deltas: tuple[dict[str, Any], ...] = ()
    delay_seconds: float = 0.0
    first_delay_seconds: float = 0.0
    models: tuple[str, ...] = ()
    plugin: bool = True
    supported: bool = True
    batch: str = "batch-1"
    faults: Faults = field(default_factory=Faults)
    built: set[tuple[str, int, tuple[int, ...]]] = field(default_factory=set)
    build_seconds: float = 0.0
    server: FakeServer = field(init=False)
    _vocabulary: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.server = FakeServer(self.handle)

    @property
    def url(self) -> str:
        """Return the base URL."""
        return self.server.url

    @property
    def chats(self) -> list[Seen]:
        """Return the chat completions seen so far, without replays."""
        return [seen for seen in self.posts("/v1/chat/completions") if b"return_token_ids" not in seen.body]

    @property
    def replays(self) -> list[Seen]:
        """Return the requests of replays seen so far: each twice, on reused KV and on the exact path."""
        marks = (b'"return_token_ids"', b'"prompt_logprobs"')
        return [seen for seen in self.server.seen if any(mark in seen.body for mark in marks)]

    @property
    def builds(self) -> list[Seen]:
        """Return the builds seen so far."""
        return [seen for seen in self.posts("/v1/completions") if b'"build"' in seen.body]

    def posts(self, target: str) -> list[Seen]:
        """Return the requests for one target seen so far."""
        return [seen for seen in self.server.seen if seen.target == target]

    def restart(self, batch: str) -> None:
        """Forget everything that was built, under a new batch id."""
        self.batch = batch
        self.built.clear()

    async def handle(self, seen: Seen) -> Reply:
        """Answer one request."""
        path = seen.target.partition("?")[0]
        if path == "/health":
            return Reply(status=500 if self.faults.unhealthy else 200)
        if path == "/sternpost/v1/info":
            return self._info()
        if path == "/tokenize":
            return self._tokenize(json.loads(seen.body))
        if path == "/v1/models" and self.models:
            listed = [{"id": name, "object": "model", "owned_by": self.batch} for name in self.models]
            return Reply(pieces=(json.dumps({"object": "list", "data": listed}).encode(),))
        await self._misbehave()
        if self.faults.reply is not None:
            return self.faults.reply
        if path in ("/v1/chat/completions", "/v1/completions"):
            return await self._complete(path, json.loads(seen.body))
        if path == "/v1/responses":
            return await self._respond(json.loads(seen.body))
        return Reply(
            headers=(("content-type", "application/json"), ("X-Upstream", "yes")), pieces=(b'{"path":1}',)
        )

    async def _misbehave(self) -> None:
        if self.faults.drop_times > 0:
            self.faults.drop_times -= 1
            raise Drop
        if self.faults.drop:
            raise Drop
        if self.faults.hang:
            await asyncio.Event().wait()

    def _info(self) -> Reply:
        if not self.plugin:
            return Reply(status=404, pieces=(b'{"detail":"Not Found"}',))
        info = {
            "v": 1,
            "version": "0.1.0",
            "engine": self.batch,
            "supported": self.supported,
            "reason": None if self.supported else "hybrid attention",
            "epoch": 0,
            "block_size": 128,
            "tail_tokens_min": 4,
            "tail_tokens_max": 4096,
        }
        return Reply(pieces=(json.dumps(info).encode(),))

    def _tokenize(self, body: Mapping[str, Any]) -> Reply:
        roles = [message["role"] for message in body.get("messages", ())]
        if self.faults.refuse_template or (self.faults.refuse_later_system and "system" in roles[1:]):
            return Reply(status=400, pieces=(b'{"error":{"message":"roles must alternate"}}',))
        tokens = self.render(body)
        return Reply(
            pieces=(json.dumps({"count": len(tokens), "max_model_len": 8192, "tokens": tokens}).encode(),)
        )

    def render(self, body: Mapping[str, Any]) -> list[int]:
        """Return the token ids of a chat, or of a prompt that consists of them already."""
        if isinstance(body.get("prompt"), list):
            return list(body["prompt"])
        words = WORD.findall(str(body.get("prompt", "")))
        if body.get("tools"):
            words += ["<tools>", *WORD.findall(json.dumps(body["tools"])), "</tools>"]
        for message in body.get("messages", ()):
            words += ["<start>", message["role"], *WORD.findall(_text(message.get("content"))), "<end>"]
            if self.faults.print_call_ids:
                words += [call["id"] for call in message.get("tool_calls") or ()]
        if "messages" in body and body.get("add_generation_prompt", True):
            words += ["<start>", "assistant"]
        return [self._vocabulary.setdefault(word, len(self._vocabulary)) for word in words]

    async def _complete(self, path: str, body: Mapping[str, Any]) -> Reply:
        tokens = self.render(body)
        report = await self._reuse(body, tokens)
        usage = usage_of(len(tokens), len(self.words), report)
        kind = "chat.completion" if path.endswith("chat/completions") else "text_completion"
        if body.get("stream"):
            return self._stream(body, kind, usage)
        answer: dict[str, Any] = {
            "id": "cmpl-1",
            "object": kind,
            "created": 1,
            "model": body.get("model"),
            "choices": [self._choice(kind)],
            "usage": usage,
        }
        if body.get("return_token_ids") or "prompt_logprobs" in body:
            if self.faults.refuse_replays:
                return Reply(status=400, pieces=(b'{"error":{"message":"max_logprobs is 0"}}',))
            said = [self._vocabulary.setdefault(word, len(self._vocabulary)) for word in self.words]
            is_wrong = self.faults.wrong_tails and report is not None and report.reason is Reason.HIT
            answer = with_candidates(answer, body, tokens, said, wrong=is_wrong)
        headers = (("Content-Type", "application/json"), ("X-Upstream", "yes"))
        return Reply(
            headers=headers,
            pieces=(json.dumps(answer).encode(),),
            cut=self.faults.cut,
            first_delay_seconds=self.first_delay_seconds,
        )

    async def _respond(self, body: Mapping[str, Any]) -> Reply:
        """Answer as a response, rendered as the chat that it stands for; its usage has no report."""
        chat = {**body, "messages": _messages_of(body)}
        if body.get("tools"):
            chat["tools"] = [_chat_tool(tool) for tool in body["tools"]]
        tokens = self.render(chat)
        report = await self._reuse(body, tokens)
        cached = report.prefix_tokens + report.suffix_tokens if report else 0
        usage = {"input_tokens": len(tokens), "input_tokens_details": {"cached_tokens": cached}}
        answer = {"id": "resp-1", "object": "response", "output": [], "usage": usage}
        if not body.get("stream"):
            return Reply(pieces=(json.dumps(answer).encode(),))
        event = {"type": "response.completed", "response": answer}
        text = f"event: response.completed\ndata: {json.dumps(event)}\n\n"
        return Reply(headers=EVENT_STREAM, pieces=(text.encode(),), framing="chunked")

    def _choice(self, kind: str) -> dict[str, Any]:
        text = " ".join(self.words)
        if kind == "text_completion":
            return {"index": 0, "text": text, "finish_reason": "stop", "logprobs": None}
        return {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}

    def _stream(self, body: Mapping[str, Any], kind: str, usage: Mapping[str, Any]) -> Reply:
        model = body.get("model")
        chunks = [chunk_of(kind, model, [choice_of(kind, word)]) for word in self.words]
        if self.deltas:
            choices = ({"index": 0, "delta": delta, "finish_reason": None} for delta in self.deltas)
            chunks = [chunk_of(kind, model, [choice]) for choice in choices]
        if (body.get("stream_options") or {}).get("include_usage"):
            chunks.append({**chunk_of(kind, model, []), "usage": usage})
        events = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks]
        cut = self.faults.cut
        return Reply(
            headers=(*EVENT_STREAM, ("X-Upstream", "yes")),
            pieces=tuple(events[:2] if cut else [*events, b"data: [DONE]\n\n"]),
            framing="chunked",
            delay_seconds=self.delay_seconds,
            first_delay_seconds=self.first_delay_seconds,
            cut=cut,
        )

    async def _reuse(self, body: Mapping[str, Any], tokens: list[int]) -> Report | None:
        """Do what the hint asks and report it; without the plugin there is no report."""
        if not self.plugin or not self.supported:
            return None
        parameters = body.get("kv_transfer_params") or {}
        if HINT_FIELD not in parameters:
            return self._report(tokens, Reason.NOT_ASKED)
        try:
            hint = parse_hint(parameters[HINT_FIELD])
        except HintError:
            return self._report(tokens, Reason.BAD_HINT)
        if hint.op is Operation.OFF:
            return self._report(tokens, Reason.OFF)
        key = (body["cache_salt"], hint.epoch, tuple(tokens[len(tokens) - hint.tail_tokens :]))
        if hint.op is Operation.BUILD:
            await asyncio.sleep(self.build_seconds)
            if self.faults.refuse_build:
                return self._report(tokens, Reason.POOL_FULL)
            self.built.add(key)
            return self._report(tokens, Reason.BUILT)
        if key in self.built:
            hit = self._report(tokens, Reason.HIT, hint.tail_tokens - hint.last)
            salt = "another" if self.faults.foreign_tails else body["cache_salt"]
            return replace(hit, owner=owner_of(salt))
        return self._report(tokens, Reason.NOT_BUILT)

    def _report(self, tokens: list[int], reason: Reason, suffix: int = 0) -> Report:
        return Report(
            prefix_tokens=0,
            suffix_tokens=suffix,
            computed_tokens=len(tokens) - suffix,
            reason=reason,
            engine=self.batch,
        )


def _text(content: object) -> str:
    """Return a content's text, that of its parts joined."""
    if isinstance(content, list):
        return " ".join(str(part.get("text", part)) for part in content)
    return str(content)


def _messages_of(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of a chat that stands for a response."""
    found = body["input"]
    items = [{"role": "user", "content": found}] if isinstance(found, str) else found
    instructions = body.get("instructions")
    return [{"role": "system", "content": instructions}, *items] if instructions else items


def _chat_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a response's tool as a chat has it."""
    function = {name: value for name, value in tool.items() if name != "type"}
    return {"type": "function", "function": function}


def usage_of(prompt: int, completion: int, report: Report | None) -> dict[str, Any]:
    """Return an answer's usage."""
    usage: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if report is not None:
        cached = report.prefix_tokens + report.suffix_tokens
        usage["prompt_tokens_details"] = {"cached_tokens": cached, HINT_FIELD: report.to_mapping()}
    return usage


def chunk_of(kind: str, model: object, choices: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one chunk of a stream."""
    name = kind + ".chunk" if kind == "chat.completion" else kind
    return {"id": "cmpl-1", "object": name, "created": 1, "model": model, "choices": choices}


def choice_of(kind: str, word: str) -> dict[str, Any]:
    """Return the choice of a chunk that carries one word."""
    if kind == "chat.completion":
        return {"index": 0, "delta": {"role": "assistant", "content": word + " "}, "finish_reason": None}
    return {"index": 0, "text": word + " ", "finish_reason": None, "logprobs": None}


@asynccontextmanager
async def running_engine(engine: FakeEngine | None = None) -> AsyncIterator[FakeEngine]:
    """Run an engine for the length of a block."""
    engine = engine or FakeEngine()
    await engine.server.start()
    try:
        yield engine
    finally:
        await engine.server.stop()
