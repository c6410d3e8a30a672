"""
The gateway's own endpoints where several workers share a port: whichever worker is asked answers for all.

The metrics of all workers are one page, an order reaches every worker before it is answered, and the kill
level that is shown is that of the worker where least is switched off.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sternpost_core.errors import OperatingError, SternpostError
from sternpost_core.kill import KillLevel
from sternpost_gateway.admin import ASKER_HEADER, KILL_PATH, METRICS_PATH, WARM_PATH, asker_of, small_body
from sternpost_gateway.errors import answer_of
from sternpost_gateway.merged_metrics import merge_pages
from sternpost_gateway.siblings import Said, Siblings

ORDERS: Final = frozenset({KILL_PATH, WARM_PATH})
OK_STATUSES: Final = frozenset({200, 202})
UNANSWERED_STATUS: Final = 500
"""Of an order that a worker has not answered: the order may not count there yet."""

ACCEPT: Final = "accept"
PROMETHEUS_TEXT: Final = "text/plain"
"""What a scrape accepts that reads Prometheus' text format alone."""

AUTHORIZATION: Final = "authorization"
JSON: Final = {"content-type": "application/json"}


class SharedAdmin:
    """An ASGI application around `own`, the endpoints of this worker alone."""

    def __init__(self, own: ASGIApp, siblings: Siblings) -> None:
        self._own = own
        self._siblings = siblings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = scope.get("path")
        if scope["type"] != "http" or path not in ORDERS | {METRICS_PATH}:
            await self._own(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            response = await (self._metrics(request) if path == METRICS_PATH else self._order(request))
        except SternpostError as error:
            answer = answer_of(error)
            response = Response(answer.body, answer.status, headers=JSON)
        await response(scope, receive, send)

    async def _metrics(self, request: Request) -> Response:
        accepted = request.headers.get(ACCEPT, "")
        _, content_type = choose_encoder(accepted)
        page = await shared_page(self._siblings, accepted)
        return Response(page, headers={"content-type": content_type})

    async def _order(self, request: Request) -> Response:
        headers = {ASKER_HEADER: asker_of(request)}
        if AUTHORIZATION in request.headers:
            headers[AUTHORIZATION] = request.headers[AUTHORIZATION]
        body = await small_body(request)
        async with self._siblings.turn():
            return joined(await self._siblings.ask(request.method, request.url.path, headers, body))


async def shared_page(siblings: Siblings, accepted: str = PROMETHEUS_TEXT) -> str:
    """Return the metrics of all workers that answer as one page, in the format of a header `Accept`."""
    said = await siblings.ask("GET", METRICS_PATH, {ACCEPT: accepted})
    return merge_pages({one.worker: one.body.decode() for one in said if one.status == 200})


def joined(said: Sequence[Said]) -> Response:
    """
    Return the answers of all workers as one.

    A worker that does not run is not waited for: it reads what is in force when it starts. One that hangs, or
    refuses what others do, makes the order a failure.

    Raises:
        OperatingError: none has answered.
    """
    answered = [one for one in said if one.status is not None]
    if not answered:
        raise OperatingError("no worker of the gateway has answered")
    refused = [one for one in answered if one.status not in OK_STATUSES]
    chosen = min(refused or answered, key=_switched_off)
    hangs = any(one.runs and one.status is None for one in said)
    workers = [{"worker": one.worker, "status": one.status, "runs": one.runs} for one in said]
    content = json.dumps({**_object(chosen.body), "workers": workers})
    return Response(content, UNANSWERED_STATUS if hangs else chosen.status or UNANSWERED_STATUS, headers=JSON)


def _switched_off(said: Said) -> tuple[int, int]:
    """Return how much is switched off for all, and for the policies together, by what a worker says."""
    state = _object(said.body)
    policies = state.get("policies")
    levels = policies.values() if isinstance(policies, Mapping) else ()
    return _rank(state.get("level")), sum(map(_rank, levels))


def _rank(level: object) -> int:
    return next((known.k for known in KillLevel if known.value == level), 0)


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
