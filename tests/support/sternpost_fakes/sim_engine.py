"""
An engine in virtual time: a prefix cache of blocks, a suffix store, and a model of how long computing takes.

A prompt's tokens are its words. Prefills run one after the other at a fixed rate; a request that comes later
finds the blocks that earlier ones left. Faults are attributes that a run sets at any time.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sternpost_core.hint import HINT_FIELD, Hint, Operation, Reason, Report, parse_hint
from sternpost_fakes.engine import chunk_of, usage_of
from sternpost_fakes.replays import with_candidates

CONNECT_SECONDS = 0.001
WORDS_OUT = 2


class EngineDied(Exception):
    """The process ended while it was at work."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What an engine can do: tokens per second, seconds per word out, tokens of cache, tokens per block."""

    prefill_rate: float = 4000.0
    word_seconds: float = 0.02
    cache_tokens: int = 8192
    block_tokens: int = 16


@dataclass(slots=True)
class Seen:
    """One request that arrived: when, whose, and what the gateway asked for."""

    at: float
    request_id: str
    salt: str
    hint: Hint | None
    prompt_tokens: int
    first_word: str
    began: bool = False
    computed_tokens: int = 0
    held_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Built:
    """A tail that was built: from when to when, and with how many tokens."""

    began: float
    ended: float
    tokens: int


@dataclass(slots=True)
class Work:
    """A prompt on its way through the engine."""

    tokens: tuple[int, ...]
    salt: str
    seen: Seen
    report: Report | None = None


@dataclass(slots=True, eq=False)
class SimEngine:
    """One engine. `alive`, `hanging`, `failing`, `slowness`, `lying` and `spoilt` are its faults."""

    url: str
    vocabulary: dict[str, int]
    machine: Machine = Machine()
    alive: bool = True
    hanging: bool = False
    failing: bool = False
    lying: bool = False
    spoilt: bool = False
    slowness: float = 1.0
    starts: int = 1
    seen: list[Seen] = field(default_factory=list)
    replays: list[Seen] = field(default_factory=list)
    builds: list[tuple[float, str]] = field(default_factory=list)
    built: list[Built] = field(default_factory=list)
    blocks: OrderedDict[int, None] = field(default_factory=OrderedDict)
    tails: set[tuple[str, int, tuple[int, ...]]] = field(default_factory=set)
    _prefill: asyncio.Lock = field(default_factory=asyncio.Lock)
    _sleeping: set[asyncio.Future[None]] = field(default_factory=set)

    @property
    def batch(self) -> str:
        """Return the batch id of this start."""
        return f"{self.url}-{self.starts}"

    def die(self) -> None:
        """End the process; whatever it was doing fails at once."""
        self.alive = False
        for sleeping in tuple(self._sleeping):
            if not sleeping.done():
                sleeping.set_exception(EngineDied())

    def start(self) -> None:
        """Begin anew, with empty stores."""
        self.alive = True
        self.starts += 1
        self.blocks.clear()
        self.tails.clear()
        self._prefill = asyncio.Lock()

    def render(self, body: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the tokens of a chat, or of a prompt that consists of them already."""
        if isinstance(body.get("prompt"), list):
            return tuple(body["prompt"])
        words = []
        for message in body.get("messages", ()):
            words += ["<start>", message["role"], *str(message["content"]).split(), "<end>"]
        if body.get("add_generation_prompt", True):
            words += ["<start>", "assistant"]
        return tuple(self.vocabulary.setdefault(word, len(self.vocabulary)) for word in words)

    async def build(self, body: Mapping[str, Any], now: float) -> Report:
        """Build a tail, as a prompt of its own."""
        hint = parse_hint(body["kv_transfer_params"][HINT_FIELD])
        tokens = self.render(body)
        self.builds.append((now, f"{self.starts} {body['cache_salt']} {hint.epoch} {hash(tokens)}"))
        async with self._prefill:
            await self.sleep(self.slowness * len(tokens) / self.machine.prefill_rate)
        self.built.append(Built(now, asyncio.get_running_loop().time(), len(tokens)))
        self.tails.add((body["cache_salt"], hint.epoch, tokens[len(tokens) - hint.tail_tokens :]))
        return self._report(0, 0, len(tokens), Reason.BUILT)

    async def replay(self, body: Mapping[str, Any], now: float) -> dict[str, Any]:
        """Answer one request of a shadow replay: on reused KV, or by judging tokens on the exact path."""
        raw = (body.get("kv_transfer_params") or {}).get(HINT_FIELD)
        hint = parse_hint(raw) if raw is not None else None
        tokens, salt = self.render(body), body.get("cache_salt", "")
        seen = Seen(now, "replay", salt, hint, len(tokens), "")
        self.replays.append(seen)
        report = await self.prefill(Work(tokens, salt, seen))
        await self.sleep(WORDS_OUT * self.machine.word_seconds)
        kind = "chat.completion" if "messages" in body else "text_completion"
        answer = {"object": kind, "choices": [{}], "usage": usage_of(len(tokens), WORDS_OUT, report)}
        is_wrong = self.spoilt and report.reason is Reason.HIT
        return with_candidates(answer, body, tokens, range(WORDS_OUT), wrong=is_wrong)

    def arrive(self, body: Mapping[str, Any], request_id: str, now: float) -> Work:
        """Take a request in."""
        raw = (body.get("kv_transfer_params") or {}).get(HINT_FIELD)
        tokens = self.render(body)
        hint = parse_hint(raw) if raw is not None else None
        users = [item["content"] for item in body["messages"] if item["role"] == "user"]
        salt = body.get("cache_salt", "")
        seen = Seen(now, request_id, salt, hint, len(tokens), users[0].split()[0])
        self.seen.append(seen)
        return Work(tokens, salt, seen)

    async def prefill(self, work: Work) -> Report:
        """Compute a prompt when those before it are computed; return what was reused."""
        if self.hanging:
            await asyncio.get_running_loop().create_future()
        async with self._prefill:
            suffix, reason = self._suffix(work)
            held = self._held(work)
            computed = max(1, len(work.tokens) - held - suffix)
            work.seen.computed_tokens, work.seen.held_tokens = computed, held
            await self.sleep(self.slowness * computed / self.machine.prefill_rate)
            self._store(work, len(work.tokens) - suffix)
        report = self._report(len(work.tokens) - suffix - computed, suffix, computed, reason)
        return self._report(len(work.tokens), 0, 0, reason) if self.lying else report

    async def pieces(self, body: Mapping[str, Any], report: Report) -> AsyncIterator[bytes]:
        """Yield the answer, one word after the other, then the usage if it was asked for."""
        model = body.get("model")
        prompt = report.prefix_tokens + report.suffix_tokens + report.computed_tokens
        usage = usage_of(prompt, WORDS_OUT, report)
        if not body.get("stream"):
            await self.sleep(WORDS_OUT * self.machine.word_seconds)
            choice = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
            yield json.dumps(
                {"id": "1", "object": "chat.completion", "choices": [choice], "usage": usage}
            ).encode()
            return
        for number in range(WORDS_OUT):
            if number:
                await self.sleep(self.machine.word_seconds)
            choice = {"index": 0, "delta": {"content": "ok "}, "finish_reason": None}
            yield _event(chunk_of("chat.completion", model, [choice]))
        if (body.get("stream_options") or {}).get("include_usage"):
            yield _event({**chunk_of("chat.completion", model, []), "usage": usage})
        yield b"data: [DONE]\n\n"

    async def sleep(self, seconds: float) -> None:
        """
        Let time pass for a piece of work.

        Raises:
            EngineDied: the process has ended meanwhile.
        """
        if not self.alive:
            raise EngineDied
        loop = asyncio.get_running_loop()
        sleeping: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(seconds, _wake, sleeping)
        self._sleeping.add(sleeping)
        try:
            await sleeping
        finally:
            timer.cancel()
            self._sleeping.discard(sleeping)

    def _suffix(self, work: Work) -> tuple[int, Reason]:
        hint = work.seen.hint
        if hint is None:
            return 0, Reason.NOT_ASKED
        if hint.op is not Operation.READ:
            return 0, Reason.OFF
        tail = work.tokens[len(work.tokens) - hint.tail_tokens :]
        if (work.salt, hint.epoch, tail) not in self.tails:
            return 0, Reason.NOT_BUILT
        return max(0, hint.tail_tokens - hint.head - hint.last), Reason.HIT

    def _chain(self, work: Work, tokens: int) -> list[int]:
        size, chain, parent = self.machine.block_tokens, [], hash(work.salt.encode()[-8:])
        for start in range(0, tokens - tokens % size, size):
            # Tuples of numbers hash alike in every process.
            parent = hash((parent, work.tokens[start : start + size]))
            chain.append(parent)
        return chain

    def _held(self, work: Work) -> int:
        held = 0
        for block in self._chain(work, len(work.tokens) - 1):
            if block not in self.blocks:
                break
            self.blocks.move_to_end(block)
            held += self.machine.block_tokens
        return held

    def _store(self, work: Work, tokens: int) -> None:
        for block in reversed(self._chain(work, tokens)):
            self.blocks[block] = None
            self.blocks.move_to_end(block)
        while len(self.blocks) * self.machine.block_tokens > self.machine.cache_tokens:
            self.blocks.popitem(last=False)

    def _report(self, prefix: int, suffix: int, computed: int, reason: Reason) -> Report:
        return Report(
            prefix_tokens=max(0, prefix),
            suffix_tokens=suffix,
            computed_tokens=computed,
            reason=reason,
            engine=self.batch,
        )


def _wake(sleeping: asyncio.Future[None]) -> None:
    with suppress(asyncio.InvalidStateError):
        sleeping.set_result(None)


def _event(chunk: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"
