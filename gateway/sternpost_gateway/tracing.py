"""
What a request's trace is told, and by whom; without tracing all of it is nothing, and costs nothing.

No text of a prompt or of an answer is ever told: names, counts and times only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from enum import StrEnum
from types import TracebackType
from typing import Final, Protocol

from sternpost_gateway.headers import Headers

Fact = str | bool | int | float

REQUEST: Final[ContextVar[Mapping[str, str]]] = ContextVar("request", default={})  # noqa: B039
"""What log lines are told about the request that they are written for; the default is never changed."""

REQUEST_ID: Final = "request_id"
TRACE_ID: Final = "trace_id"
"""The names of ids in logs and exemplars."""


class Stage(StrEnum):
    """What becomes an event of a trace, in the order of a request; the end is the span's own."""

    RECEIVED = "sternpost.received"
    POLICY_MATCHED = "sternpost.policy_matched"
    ROUTED = "sternpost.routed"
    ADMITTED = "sternpost.admitted"
    FIRST_BYTE = "sternpost.first_byte"


class Trace(Protocol):
    """
    What becomes known of one request, as it goes.

    `is_recording`: whether it is worth while to say anything. `trace_id` is in hexadecimal, empty without a
    trace. `exemplar` is what a histogram keeps beside an observation, None where nobody could look it up.
    """

    @property
    def is_recording(self) -> bool:
        """Say whether anything is kept."""

    @property
    def trace_id(self) -> str:
        """Return the id that is the same in every process that the request passes."""

    @property
    def exemplar(self) -> Mapping[str, str] | None:
        """Return the labels of an exemplar."""

    def named(self, name: str) -> None:
        """Take the name that requests of this kind share."""

    def event(self, stage: Stage, facts: Mapping[str, Fact] | None = None) -> None:
        """Note that a stage is reached, now."""

    def know(self, facts: Mapping[str, Fact]) -> None:
        """Take what is known of the request as a whole."""

    def failed(self, kind: str) -> None:
        """Note that the request has failed on this side, and how."""

    def propagated(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Return an engine's request headers with the trace's context in the place of the client's."""


class Tracing(Protocol):
    """Where traces come from."""

    def request(self, method: str, path: str, headers: Headers) -> AbstractContextManager[Trace]:
        """Trace a request for the length of a block."""

    async def close(self) -> None:
        """Hand over what is still held, within a limited time."""


class NoTrace:
    """A trace that nothing comes of."""

    __slots__ = ()

    is_recording = False
    trace_id = ""
    exemplar: Mapping[str, str] | None = None

    def __enter__(self) -> NoTrace:
        """Return itself: there is nothing to begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, place: TracebackType | None
    ) -> None:
        """Do nothing."""

    def named(self, name: str) -> None:
        """Do nothing."""

    def event(self, stage: Stage, facts: Mapping[str, Fact] | None = None) -> None:
        """Do nothing."""

    def know(self, facts: Mapping[str, Fact]) -> None:
        """Do nothing."""

    def failed(self, kind: str) -> None:
        """Do nothing."""

    def propagated(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Return the headers as they are, a client's own trace context among them."""
        return headers


NO_TRACE: Final = NoTrace()
"""Where a request is not traced."""


class NoTracing:
    """Traces nothing."""

    def request(self, method: str, path: str, headers: Headers) -> AbstractContextManager[Trace]:
        """Return the trace that nothing comes of."""
        return NO_TRACE

    async def close(self) -> None:
        """Do nothing."""


NO_TRACING: Final = NoTracing()
"""Where tracing is off, which is the default."""


@contextmanager
def logged_as(request_id: str, trace: Trace) -> Iterator[None]:
    """Let lines that are logged within a block name the request that they are written for."""
    token = REQUEST.set({REQUEST_ID: request_id, TRACE_ID: trace.trace_id})
    try:
        yield
    finally:
        REQUEST.reset(token)


def text_headers(headers: Headers, names: Sequence[bytes]) -> dict[str, str]:
    """Return those of the headers that have one of these names; of a repeated one the first."""
    found: dict[str, str] = {}
    for name, value in headers:
        if name in names:
            found.setdefault(name.decode("latin-1"), value.decode("latin-1"))
    return found
