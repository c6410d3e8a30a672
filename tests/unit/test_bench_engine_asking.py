"""One streamed request of the engine's benchmark."""

import json
from typing import Any

import httpx
import pytest

from bench.engine.asking import Place, ask, has_content, make_sample, parse_event
from bench.engine.scenarios import ANSWER_TOKENS
from sternpost_core.errors import OperatingError
from sternpost_core.hint import Hint, Operation
from sternpost_fakes.bench_engine import FakeEngine, usage_of
from sternpost_fakes.clock import FakeClock

PLACE = Place("s", 3, True)
ROLE = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
WORD = {"choices": [{"delta": {"content": "Hello"}}]}
CHAT = "/v1/chat/completions"


class Stream(httpx.AsyncByteStream):
    """Events, each a second after the one before."""

    def __init__(self, clock: FakeClock, events: list[dict[str, Any] | str]) -> None:
        self._clock = clock
        self._events = events

    async def __aiter__(self) -> Any:
        for event in self._events:
            self._clock.advance(1.0)
            data = event if isinstance(event, str) else json.dumps(event)
            yield f"data: {data}\n\n".encode()


def engine_that_streams(clock: FakeClock, *events: dict[str, Any] | str) -> FakeEngine:
    """Return an engine that answers every chat with these events."""
    return FakeEngine({CHAT: lambda body: httpx.Response(200, stream=Stream(clock, list(events)))})


async def test_the_first_word_ends_the_wait_and_the_last_event_the_answer() -> None:
    """The event with the role alone is no word."""
    clock = FakeClock()
    usage = {"choices": [], "usage": usage_of(prompt=90, prefix=10, suffix=50, computed=30)}
    fake = engine_that_streams(clock, ROLE, WORD, WORD, usage, "[DONE]")

    sample = await ask(
        fake.client(), clock, [{"role": "user", "content": "x"}], Hint(op=Operation.OFF), PLACE
    )

    assert (2.0, 5.0) == (sample.ttft, sample.total)
    assert (("s", 3), True, 90, 10, 50, 30, "hit") == (
        sample.key,
        sample.measured,
        sample.prompt_tokens,
        sample.prefix_tokens,
        sample.suffix_tokens,
        sample.computed_tokens,
        sample.reason,
    )
    body = fake.asked[0][1]
    assert (ANSWER_TOKENS, True, True) == (body["max_tokens"], body["ignore_eos"], body["stream"])
    assert "off" == body["kv_transfer_params"]["sternpost"]["op"]


async def test_a_plain_engine_gets_no_hint() -> None:
    """It would not know the field's meaning."""
    clock = FakeClock()
    fake = engine_that_streams(clock, WORD, {"choices": [], "usage": {"prompt_tokens": 5}})

    await ask(fake.client(), clock, [], None, PLACE)

    assert "kv_transfer_params" not in fake.asked[0][1]


@pytest.mark.parametrize(
    ("events", "words"),
    [
        pytest.param([ROLE, "[DONE]"], "ended before", id="no word"),
        pytest.param([WORD, "[DONE]"], "ended before", id="no usage"),
        pytest.param([{"error": {"message": "out of blocks"}}], "out of blocks", id="an error in the stream"),
        pytest.param(["{"], "JSONDecodeError", id="no JSON"),
    ],
)
async def test_an_answer_that_is_not_whole_is_an_error(
    events: list[dict[str, Any] | str], words: str
) -> None:
    """It has no latency."""
    clock = FakeClock()

    with pytest.raises(OperatingError, match=words):
        await ask(engine_that_streams(clock, *events).client("patched"), clock, [], None, PLACE)


async def test_a_refused_request_is_an_error() -> None:
    """Its status is named."""
    fake = FakeEngine({CHAT: lambda body: httpx.Response(503)})

    with pytest.raises(OperatingError, match="503"):
        await ask(fake.client(), FakeClock(), [], None, PLACE)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param('data: {"a": 1}', {"a": 1}, id="an event"),
        pytest.param("data: [DONE]", None, id="the end"),
        pytest.param(": ping", None, id="a comment"),
        pytest.param("", None, id="an empty line"),
    ],
)
def test_lines_of_a_stream_are_told_apart(line: str, expected: dict[str, int] | None) -> None:
    """Only events count."""
    assert expected == parse_event(line)


def test_an_event_without_choices_has_no_content() -> None:
    """As the one with the usage."""
    assert not has_content({"choices": []})
    assert has_content(WORD)


def test_cached_tokens_are_a_plain_engines_prefix() -> None:
    """What it did not find it computed."""
    usage = {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 64}}

    sample = make_sample(PLACE, usage, ttft=1.0, total=2.0)

    assert (64, 0, 36, "plain") == (
        sample.prefix_tokens,
        sample.suffix_tokens,
        sample.computed_tokens,
        sample.reason,
    )
