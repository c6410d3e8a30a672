"""
Websockets: a request that asks for one goes to an engine as it is, and its bytes both ways as they come.

The gateway reads the head of the request, to know who asks and for which model, and of the engine's answer
whether it has agreed. Nothing that comes after is looked at, re-framed or counted by event.
"""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import ExitStack
from typing import Final
from urllib.parse import parse_qs

from starlette.types import Scope

from sternpost_core.errors import SternpostError
from sternpost_core.rollout import Arm
from sternpost_gateway.client import is_surplus, target_of
from sternpost_gateway.dialer import Dialer, origin_of
from sternpost_gateway.engine_paths import is_for_engines
from sternpost_gateway.errors import (
    ClientGone,
    ConnectFailed,
    Disconnected,
    FirstByteTimeout,
    NotFound,
    UpstreamCut,
    UpstreamError,
    answer_of,
)
from sternpost_gateway.fleet import Engine
from sternpost_gateway.headers import request_id_of
from sternpost_gateway.metrics import NO_POLICY
from sternpost_gateway.pipeline import ATTEMPTS_MAX, Parts, plain
from sternpost_gateway.receive import Received
from sternpost_gateway.record import CLIENT_GONE
from sternpost_gateway.router import Routed
from sternpost_gateway.tunnel import TUNNEL, Stream, answer_bytes, relay, request_bytes

logger = logging.getLogger(__name__)

SWITCHING: Final = 101
HEAD_END: Final = b"\r\n\r\n"

_STATUS: Final = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,9})[ \t]*\r\n", re.IGNORECASE)


class Tunnels:
    """The ASGI application for requests that ask for a websocket."""

    def __init__(self, parts: Parts, dialer: Dialer) -> None:
        self._parts = parts
        self._dialer = dialer

    async def __call__(self, scope: Scope) -> None:
        """Serve one websocket, to its end."""
        client: Stream = scope["extensions"][TUNNEL]
        received = received_of(scope, self._parts.clock.monotonic())
        try:
            outcome = await self._serve(scope, client, received)
        except ClientGone:
            outcome = CLIENT_GONE
        except Exception as error:  # noqa: BLE001
            # The outermost boundary of an exchange: whatever went wrong, its client gets an answer.
            answer = answer_of(error)
            outcome = answer.code
            if not isinstance(error, SternpostError):
                logger.error("request %s failed: %s", received.request_id, type(error).__name__)
            client.writer.write(answer_bytes(answer, received.request_id))
        finally:
            await client.close()
        self._parts.metrics.requests.labels(NO_POLICY, Arm.ALL.value, outcome).inc()

    async def _serve(self, scope: Scope, client: Stream, received: Received) -> str:
        parts = self._parts
        if not is_for_engines(received.path):
            raise NotFound("there is nothing at this path; models are served below /v1")
        certified = "client_cert_name" in scope["extensions"].get("tls", {})
        await parts.callers.identify(received.headers, certified=certified)
        with parts.admission.request(is_surplus=is_surplus(scope)), ExitStack() as stack:
            engine = await self._reach(received, stack)
            try:
                return await self._exchange(client, engine, received)
            finally:
                await engine.close()

    async def _reach(self, received: Received, stack: ExitStack) -> Stream:
        """Open a connection to an engine; to another one, once, where that fails."""
        parts = self._parts
        tried: list[Engine] = []
        again = stack.enter_context(ExitStack())
        while True:
            routed = parts.router.route(plain(received), tried)
            tried.append(routed.engine)
            try:
                engine = await self._dialer.dial(routed.engine.url)
            except ConnectFailed as error:
                self._note_failure(routed, error)
                others = [view for view in parts.router.views() if view.engine not in tried]
                may_retry = bool(others) and len(tried) < ATTEMPTS_MAX
                give_back = await parts.admission.take_retry() if may_retry else None
                if give_back is None:
                    raise
                again.callback(give_back)
                parts.metrics.retries.inc()
            else:
                again.close()
                stack.enter_context(parts.fleet.flight(routed.engine))
                engine.writer.write(self._head(routed.engine, received))
                return engine

    def _head(self, engine: Engine, received: Received) -> bytes:
        headers = self._parts.forward.headers(received, engine)
        return request_bytes(received.method, received.target, origin_of(engine.url).authority, headers)

    def _note_failure(self, routed: Routed, error: UpstreamError) -> None:
        logger.warning("engine %s: %s", routed.engine.url, error)
        self._parts.router.failed(routed)
        self._parts.fleet.failed(routed.engine)

    async def _exchange(self, client: Stream, engine: Stream, received: Received) -> str:
        """Pass on the engine's answer and, where it agrees, everything after; return the outcome."""
        timeouts = self._parts.settings.timeouts
        head = await self._answer_head(client, engine)
        status = status_of(head)
        body = b"" if status == SWITCHING else await _body(engine, head, timeouts.idle_seconds)
        try:
            await client.send(head + body, timeouts.write_stall_seconds)
        except (OSError, TimeoutError):
            raise ClientGone("left before the answer") from None
        if status == SWITCHING:
            await relay(
                client,
                engine,
                idle_seconds=timeouts.idle_seconds,
                stall_seconds=timeouts.write_stall_seconds,
            )
        return f"{status // 100}xx"

    async def _answer_head(self, client: Stream, engine: Stream) -> bytes:
        """Wait for the engine's answer, or for the client to leave."""
        answering = asyncio.ensure_future(engine.reader.readuntil(HEAD_END))
        leaving = asyncio.ensure_future(client.reader.read(1))
        try:
            await asyncio.wait(
                {answering, leaving},
                timeout=self._parts.settings.timeouts.first_byte_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if answering.done():
                return answering.result()
            if leaving.done():
                raise ClientGone("left, or spoke, before the engine had agreed")
            raise FirstByteTimeout("the engine did not answer in time")
        except asyncio.LimitOverrunError:
            raise UpstreamCut("the head of the engine's answer is too long") from None
        except (OSError, asyncio.IncompleteReadError):
            raise Disconnected("the engine ended the connection before it answered") from None
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)


def received_of(scope: Scope, arrived: float) -> Received:
    """Return the request of a scope as all stages know it; clients name the model in the query."""
    models = parse_qs(scope["query_string"].decode("latin-1")).get("model", [])
    headers = tuple(scope["headers"])
    return Received(
        method=scope["method"],
        path=scope["path"],
        target=target_of(scope),
        headers=headers,
        request_id=request_id_of(headers),
        arrived=arrived,
        has_body=False,
        model=models[0] if models else None,
    )


def status_of(head: bytes) -> int:
    """
    Return the status of an answer's head.

    Raises:
        UpstreamCut: it has none.
    """
    found = _STATUS.match(head)
    if found is None:
        raise UpstreamCut("the engine's answer is not HTTP")
    return int(found[1])


async def _body(engine: Stream, head: bytes, seconds_max: float) -> bytes:
    """Return the body of a refusal, as long as it says that it is; without a length it is left out."""
    found = _LENGTH.search(head)
    if found is None:
        return b""
    try:
        async with asyncio.timeout(seconds_max):
            return await engine.reader.readexactly(int(found[1]))
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        raise UpstreamCut("the engine's answer ended before it was complete") from None
