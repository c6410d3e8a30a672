"""One streamed request, and what it showed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

import httpx

from bench.common.engine_api import Engine, Messages, report_of, transfer
from bench.engine.scenarios import ANSWER_TOKENS
from sternpost_core.clock import Clock
from sternpost_core.errors import OperatingError
from sternpost_core.hint import Hint

DATA: Final = "data: "
DONE: Final = "[DONE]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """
    A request that was answered whole; times in seconds.

    Prefix, suffix and computed tokens are the engine's own count and add up to the prompt's.
    """

    session: str
    turn: int
    measured: bool
    ttft: float
    total: float
    prompt_tokens: int
    prefix_tokens: int
    suffix_tokens: int
    computed_tokens: int
    reason: str

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Read a record."""
        return cls(**record)

    def to_record(self) -> dict[str, Any]:
        """Return what is written."""
        return asdict(self)

    @property
    def key(self) -> tuple[str, int]:
        """What pairs the two engines' samples."""
        return self.session, self.turn


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request stands in its session, and whether it is measured."""

    session: str
    turn: int
    measured: bool


async def ask(engine: Engine, clock: Clock, messages: Messages, hint: Hint | None, place: Place) -> Sample:
    """
    Ask, and time the first token and the whole answer.

    Raises:
        OperatingError: the answer did not come whole.
    """
    body = {
        "model": engine.model,
        "messages": list(messages),
        "max_tokens": ANSWER_TOKENS,
        # All answers are of one length, so that latencies compare.
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **transfer(hint),
    }
    started = clock.monotonic()
    first: float | None = None
    usage: Mapping[str, Any] | None = None
    try:
        async with engine.http.stream("POST", "/v1/chat/completions", json=body) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                event = parse_event(line)
                if event is None:
                    continue
                usage = event.get("usage") or usage
                if first is None and has_content(event):
                    first = clock.monotonic()
    except (httpx.HTTPError, ValueError) as error:
        raise OperatingError(f"{engine.name}: {place.session}: {type(error).__name__} {error}") from error
    if first is None or usage is None:
        raise OperatingError(f"{engine.name}: {place.session}: the stream ended before the answer did")
    return make_sample(place, usage, ttft=first - started, total=clock.monotonic() - started)


def parse_event(line: str) -> dict[str, Any] | None:
    """Return the event in a line of a stream; None for a line that holds none."""
    if not line.startswith(DATA) or line == f"{DATA}{DONE}":
        return None
    event: dict[str, Any] = json.loads(line.removeprefix(DATA))
    if "error" in event:
        raise ValueError(str(event["error"])[:300])
    return event


def has_content(event: Mapping[str, Any]) -> bool:
    """Tell whether an event brings a part of the answer, as the first one, with the role alone, does not."""
    return any((choice.get("delta") or {}).get("content") for choice in event.get("choices", ()))


def make_sample(place: Place, usage: Mapping[str, Any], *, ttft: float, total: float) -> Sample:
    """Return what a request showed; an engine without the plugin reports cached tokens alone."""
    report = report_of(usage)
    prompt = usage["prompt_tokens"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Sample(
        session=place.session,
        turn=place.turn,
        measured=place.measured,
        ttft=ttft,
        total=total,
        prompt_tokens=prompt,
        prefix_tokens=report.prefix_tokens if report else cached,
        suffix_tokens=report.suffix_tokens if report else 0,
        computed_tokens=report.computed_tokens if report else prompt - cached,
        reason=report.reason.value if report else "plain",
    )
