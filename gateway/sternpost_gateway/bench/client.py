"""One streamed request to an endpoint of OpenAI's API, and what its answer showed; nothing is tried twice."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count
from typing import Any, Final

import aiohttp

from sternpost_core.clock import Clock
from sternpost_core.hint import HINT_FIELD, parse_report
from sternpost_gateway.bench.sample import Sample
from sternpost_gateway.bench.target import Target
from sternpost_gateway.bench.workload import Call

REQUEST_SECONDS_MAX: Final = 300.0
"""A request that takes longer has failed."""

ERROR_CHARACTERS_MAX: Final = 300
"""So much of an error is kept."""

LINE_BYTES_MAX: Final = 1 << 20
"""Of one event in a stream."""

DIGEST_CHARACTERS: Final = 16

DATA: Final = b"data:"
DONE: Final = b"[DONE]"

SESSION_HEADER: Final = "x-session-id"

RESPONSES_PATH: Final = "/v1/responses"
RESPONSE_PIECE: Final = "response.output_text.delta"
RESPONSE_ENDS: Final = frozenset({"response.completed", "response.incomplete"})
"""The events of a response that bring a piece of it, and that end it."""


class AskFailed(Exception):
    """A request got an error, or no whole answer."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request stands: its session, its turn, and whether it is measured."""

    session: str
    turn: int
    measured: bool


@dataclass(slots=True)
class Answer:
    """What has been read of an answer so far; moments on the clock."""

    first: float | None = None
    last: float = 0.0
    pieces: list[str] = field(default_factory=list)
    finished: bool = False
    usage: Mapping[str, Any] | None = None

    def take(self, event: Mapping[str, Any], now: float) -> None:
        """Take in an event that came at a moment."""
        self.usage = _mapping(event.get("usage")) or self.usage
        for choice in map(_mapping, _list(event.get("choices"))):
            self._take_piece(_piece(choice), ends=choice.get("finish_reason") is not None, now=now)
        if event.get("type") == RESPONSE_PIECE:
            self._take_piece(str(event.get("delta") or ""), ends=False, now=now)
        elif str(event.get("type")) in RESPONSE_ENDS:
            self.usage = _mapping(_mapping(event.get("response")).get("usage"))
            self._take_piece("", ends=True, now=now)

    def _take_piece(self, piece: str, *, ends: bool, now: float) -> None:
        self.finished = self.finished or ends
        # An answer may be empty; then its end is what the client waited for.
        if (piece or ends) and self.first is None:
            self.first = now
        if piece:
            self.pieces.append(piece)
            self.last = now


class Client:
    """
    Asks a target, for one unit.

    `salt` is what no other unit has: sessions are named by it, so that a gateway does not take one for
    another unit's, and so are the salts of requests that are to reuse nothing.
    """

    def __init__(self, http: aiohttp.ClientSession, clock: Clock, salt: str) -> None:
        self._http = http
        self._clock = clock
        self._salt = salt
        self._numbers = count()

    async def ask(self, target: Target, call: Call, place: Place, began: float) -> Sample:
        """Ask once; a failure is a sample, too. `began` is when the unit did, on the same clock."""
        number = next(self._numbers)
        started = self._clock.monotonic()
        try:
            answer = await self._answer(target, call, place, number)
        except (AskFailed, aiohttp.ClientError, TimeoutError, ValueError) as error:
            text = f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS_MAX]
            return _sample(place, started=started - began, error=text)
        return _answered(place, answer, started, began, self._clock.monotonic())

    async def _answer(self, target: Target, call: Call, place: Place, number: int) -> Answer:
        origin = target.origins[number % len(target.origins)]
        body = json.dumps(self._body(target, call, number), ensure_ascii=False).encode()
        headers = {"content-type": "application/json", SESSION_HEADER: f"{self._salt}-{place.session}"}
        answer = Answer()
        async with self._http.post(
            origin + call.path, data=body, headers={**headers, **target.headers}
        ) as response:
            if response.status != 200:
                text = (await response.text())[:ERROR_CHARACTERS_MAX]
                raise AskFailed(f"{response.status} {text}")
            async for line in response.content:
                answer.finished = answer.finished or _data(line) == DONE
                if event := parse_event(line):
                    answer.take(event, self._clock.monotonic())
        if not answer.finished:
            raise AskFailed("the stream ended before the answer did")
        return answer

    def _body(self, target: Target, call: Call, number: int) -> dict[str, Any]:
        # The members that were there keep their order, for it may be what is measured.
        salt = {"cache_salt": f"{self._salt}-{number}"} if target.salted else {}
        # A response brings its usage unasked, and refuses the option.
        options = {} if call.path == RESPONSES_PATH else {"stream_options": {"include_usage": True}}
        streamed = {"model": target.model, "stream": True, **options}
        return {**call.body, **streamed, **target.extra, **salt}


def open_session() -> aiohttp.ClientSession:
    """Return the connection pool of a run: no bound on connections, and no proxy from the environment."""
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS_MAX),
        connector=aiohttp.TCPConnector(limit=0),
        read_bufsize=LINE_BYTES_MAX,
    )


def parse_event(line: bytes) -> dict[str, Any] | None:
    """
    Return the event in a line of a stream; None for a line that holds none.

    Raises:
        AskFailed: the event is an error.
        ValueError: it is not JSON.
    """
    data = _data(line)
    if not data or data == DONE:
        return None
    event = json.loads(data)
    if not isinstance(event, dict):
        raise AskFailed("an event of the stream is no object")
    if event.get("error"):
        raise AskFailed(str(event["error"]))
    return event


def token_counts(usage: Mapping[str, Any] | None) -> dict[str, Any]:
    """
    Return the prompt's tokens by source, as `Sample` names them.

    An engine with the plugin reports all; others say at most how many tokens they had cached.
    """
    usage = usage or {}
    # Chats and completions name their tokens in one way, responses in another.
    details = _mapping(usage.get("prompt_tokens_details") or usage.get("input_tokens_details"))
    prompt = _count(usage.get("prompt_tokens") or usage.get("input_tokens"))
    cached = min(_count(details.get("cached_tokens")), prompt)
    answered = _count(usage.get("completion_tokens") or usage.get("output_tokens"))
    found = {"prompt_tokens": prompt, "answer_tokens": answered}
    report = parse_report(details.get(HINT_FIELD))
    if report is None:
        return {**found, "prefix_tokens": cached, "computed_tokens": prompt - cached, "reason": "unreported"}
    return {
        **found,
        "prefix_tokens": report.prefix_tokens,
        "suffix_tokens": report.suffix_tokens,
        "computed_tokens": report.computed_tokens,
        "reason": report.reason.value,
    }


def _data(line: bytes) -> bytes:
    return line.removeprefix(DATA).strip() if line.startswith(DATA) else b""


def _piece(choice: Mapping[str, Any]) -> str:
    delta = _mapping(choice.get("delta"))
    return str(delta.get("content") or delta.get("reasoning_content") or choice.get("text") or "")


def _mapping(value: object) -> Mapping[str, Any]:
    # What an endpoint sends need not be what the API promises.
    return value if isinstance(value, dict) else {}


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _answered(place: Place, answer: Answer, started: float, began: float, ended: float) -> Sample:
    first = ended if answer.first is None else answer.first
    gaps = len(answer.pieces) - 1
    return _sample(
        place,
        started=started - began,
        ttft=first - started,
        total=ended - started,
        between=(answer.last - first) / gaps if gaps > 0 else None,
        answer=sha256("".join(answer.pieces).encode()).hexdigest()[:DIGEST_CHARACTERS],
        **token_counts(answer.usage),
    )


def _sample(place: Place, **found: Any) -> Sample:
    return Sample(session=place.session, turn=place.turn, measured=place.measured, **found)
