"""The gateway's own paths, beside those for engines; what is refused there has the shape of all errors."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Lifespan, Receive, Scope, Send

from sternpost_gateway.client import drain, is_last
from sternpost_gateway.errors import MethodNotAllowed, NotFound, answer_of


def own_paths(routes: Sequence[BaseRoute], lifespan: Lifespan[Starlette]) -> Starlette:
    """Return an application of these routes, whose life is that of the gateway."""
    handlers = {HTTPStatus.METHOD_NOT_ALLOWED: _wrong_method}
    own = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    # A target may be no path at all, as that of `OPTIONS *`, which a mount at the root would not take.
    own.router.default = _nowhere
    own.router.redirect_slashes = False
    return own


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer for every path that is neither below `/v1` nor one of our own."""
    answer = answer_of(NotFound("there is nothing at this path; models are served below /v1"))
    await send({"type": "http.response.start", "status": answer.status, "headers": list(answer.headers)})
    await send({"type": "http.response.body", "body": answer.body, "more_body": True})
    if is_last(scope):
        await drain(receive)
    await send({"type": "http.response.body"})


async def _wrong_method(request: Request, error: Exception) -> Response:
    """Answer for a path that does not take a method."""
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    allowed = headers.get("Allow", "none")
    answer = answer_of(MethodNotAllowed(f"{request.method} is not taken here; allowed: {allowed}"))
    return Response(answer.body, answer.status, headers, "application/json")
