"""Chats by OpenAI's own client, one after the other for each of a few users, in the background of a test."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import openai

TAIL: Final = " ".join(f"rule-{number}" for number in range(300))
"""300 tokens of an engine to which a word is a token."""

PREFIX: Final = "You are a deckhand."
STREAMED: Final[Mapping[str, Any]] = {"stream": True, "stream_options": {"include_usage": True}}
LOOK_SECONDS: Final = 0.2
"""Between two looks at which addresses there are."""

ANSWER_SECONDS_MAX: Final = 30.0
END_SECONDS_MAX: Final = 45.0
FAILURES_KEPT: Final = 20


@dataclass(frozen=True, slots=True)
class Stream:
    """What one user does: chats about a model, in sessions that take turns, `pause_seconds` between two."""

    model: str
    sessions: Sequence[str]
    pause_seconds: float
    tenant: str = "acme"


@dataclass(slots=True)
class ChatLoad:
    """
    Sends what `streams` say through all gateways by turns, until stopped.

    `find` returns the gateways' base URLs, or raises `httpx.HTTPError`, and then those before count on.
    """

    find: Callable[[], Sequence[str]]
    streams: list[Stream]
    answered: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    _urls: Sequence[str] = ()
    _ended: set[str] = field(default_factory=set)
    _turns: Iterator[int] = field(default_factory=itertools.count)
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Send until stopped; for a thread."""
        asyncio.run(self._run())

    def end(self, model: str) -> None:
        """Have nobody chat about a model any more; others go on."""
        self._ended.add(model)

    def stop(self) -> None:
        """End after the chats that have begun."""
        self._stop.set()

    async def _run(self) -> None:
        async with openai.DefaultAsyncHttpxClient(trust_env=False, timeout=ANSWER_SECONDS_MAX) as http:
            client = openai.AsyncOpenAI(
                api_key="none", base_url="http://nowhere/v1", max_retries=0, http_client=http
            )
            looking = asyncio.create_task(self._look())
            users = [asyncio.create_task(self._chat_on(client, stream)) for stream in self.streams]
            await asyncio.gather(*users)
            looking.cancel()

    async def _look(self) -> None:
        while True:
            with suppress(httpx.HTTPError):
                self._urls = await asyncio.to_thread(self.find) or self._urls
            await asyncio.sleep(LOOK_SECONDS)

    async def _chat_on(self, client: openai.AsyncOpenAI, stream: Stream) -> None:
        for session in itertools.cycle(stream.sessions):
            if self._stop.is_set() or stream.model in self._ended:
                return
            if self._urls:
                await self._chat(client, stream, session)
            await asyncio.sleep(stream.pause_seconds)

    async def _chat(self, client: openai.AsyncOpenAI, stream: Stream, session: str) -> None:
        turn = next(self._turns)
        url = self._urls[turn % len(self._urls)]
        started = time.monotonic()
        try:
            answer = await client.with_options(base_url=f"{url}/v1").chat.completions.create(
                **chat(stream.model, f"question {turn}", session, stream.tenant), **STREAMED
            )
            words = [chunk async for chunk in answer]
            assert words, "an answer has events"
        except (openai.OpenAIError, httpx.HTTPError, AssertionError) as error:
            self.failed[stream.model] += 1
            seconds = time.monotonic() - started
            self.failures.append(f"{url} {stream.model} after {seconds:.2f} s: {error!r}")
            del self.failures[:-FAILURES_KEPT]
        else:
            self.answered[stream.model] += 1


def chat(model: str, question: str, session: str, tenant: str = "acme") -> dict[str, Any]:
    """Return the arguments of a chat that ends with the fixed tail."""
    messages = [
        {"role": "system", "content": PREFIX},
        {"role": "user", "content": question},
        {"role": "system", "content": TAIL},
    ]
    headers = {"x-session-id": session, "x-tenant-id": tenant}
    return {"model": model, "messages": messages, "extra_headers": headers}


@dataclass(frozen=True, slots=True)
class Asked:
    """An answer: what its engine says that it has reused, and its headers."""

    report: Mapping[str, Any]
    headers: Mapping[str, str]

    @property
    def reason(self) -> str:
        """Why the tail was reused, or was not; empty where the engine does not say."""
        return str(self.report.get("reason", ""))


def ask(url: str, model: str, *, question: str = "where to?", tenant: str = "acme", **more: Any) -> Asked:
    """Chat through a gateway, in a session of its own; `more` goes to OpenAI's client."""
    with openai.OpenAI(api_key="none", base_url=f"{url}/v1", max_retries=0) as client:
        raw = client.chat.completions.with_raw_response.create(**chat(model, question, "one", tenant), **more)
    usage = raw.parse().usage
    details = usage.prompt_tokens_details if usage else None
    return Asked((details.model_extra or {}).get("sternpost", {}) if details else {}, raw.headers)


@contextmanager
def running_load(find: Callable[[], Sequence[str]], *streams: Stream) -> Iterator[ChatLoad]:
    """Let users chat for the length of a block."""
    load = ChatLoad(find, list(streams))
    thread = threading.Thread(target=load.run, name="load", daemon=True)
    thread.start()
    try:
        yield load
    finally:
        load.stop()
        thread.join(END_SECONDS_MAX)
