"""Clients in virtual time: each sends one request through the gateway's own ASGI entrance."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message

from sternpost_fakes.virtual_time import VirtualClock


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """
    One request: when it comes, whose it is, and what it says.

    The first user message begins with the tenant's name, so that an engine's side can tell whose it was.
    With `leaves_after`, the client is gone after so many seconds.
    """

    number: int
    at: float
    tenant: str
    session: str
    system: str
    user: str
    tail: str = ""
    stream: bool = True
    leaves_after: float | None = None

    def body(self) -> bytes:
        """Return the request's body."""
        messages = [
            {"role": "system", "content": self.system},
            {"role": "user", "content": f"{self.tenant} {self.user}"},
        ]
        if self.tail:
            messages.insert(1, {"role": "system", "content": self.tail})
            messages.insert(1, {"role": "user", "content": f"{self.tenant} before"})
        fields: dict[str, Any] = {"model": "qwen", "messages": messages}
        return json.dumps({**fields, "stream": True} if self.stream else fields).encode()


@dataclass(slots=True)
class Told:
    """What became of a request: `status` is 0 while nothing has come; times are in virtual seconds."""

    ask: Ask
    began: float
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    first: float | None = None
    ended: float | None = None
    text: bytes = b""
    left: bool = False

    @property
    def outcome(self) -> str:
        """Return the one word for how it ended; "hung" if it has not."""
        if self.left:
            return "left"
        if self.ended is None:
            return "hung"
        if self.status != 200:
            return str(self.status)
        whole = self.text.endswith(b"data: [DONE]\n\n") if self.ask.stream else self.text.endswith(b"}")
        return "whole" if whole else "cut"

    @property
    def seconds(self) -> float:
        """Return the time to the first byte."""
        return (self.first if self.first is not None else float("inf")) - self.began


async def ask(app: ASGIApp, request: Ask, clock: VirtualClock, log: list[Told]) -> None:
    """Send a request at its time; what becomes of it is in the log from the beginning."""
    await asyncio.sleep(max(0.0, request.at - clock.monotonic()))
    told = Told(request, clock.monotonic())
    log.append(told)
    gone = asyncio.Event()
    if request.leaves_after is not None:
        asyncio.get_running_loop().call_later(request.leaves_after, gone.set)
    messages = [{"type": "http.request", "body": request.body(), "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await gone.wait()
        told.left = told.ended is None
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            told.status = message["status"]
            told.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        told.text += message.get("body", b"")
        if told.first is None and message.get("body"):
            told.first = clock.monotonic()
        if not message.get("more_body", False):
            told.ended = clock.monotonic()

    with suppress(Exception):
        # An exception closes the connection, as the end of the application without an answer's end does.
        await app(_scope(request), receive, send)
    if told.ended is None and not told.left:
        told.ended = clock.monotonic()


def _scope(request: Ask) -> dict[str, Any]:
    headers = {
        "content-type": "application/json",
        "content-length": str(len(request.body())),
        "x-request-id": f"r{request.number}",
        "x-tenant-id": request.tenant,
        "x-session-id": request.session,
    }
    return {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "raw_path": b"/v1/chat/completions",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
