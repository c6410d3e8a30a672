"""One request of the bench, and what its answer shows."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.clock import SystemClock
from sternpost_fakes.engine import FakeEngine, Faults, running_engine
from sternpost_fakes.fake_http import Reply
from sternpost_gateway.bench.client import (
    Answer,
    AskFailed,
    Client,
    Place,
    open_session,
    parse_event,
    token_counts,
)
from sternpost_gateway.bench.sample import Sample
from sternpost_gateway.bench.target import Target
from sternpost_gateway.bench.workload import Call

CALL = Call({"temperature": 0, "messages": [{"role": "user", "content": "one two three"}], "max_tokens": 3})
PLACE = Place("s1", 2, True)
NAMES = ("choices", "delta", "usage", "prompt_tokens", "prompt_tokens_details", "cached_tokens", "response")
scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)
DETAIL = {"v": 1, "prefix_tokens": 10, "suffix_tokens": 50, "computed_tokens": 40, "reason": "hit"}


async def asked(engine: FakeEngine, target: Target, times: int = 1) -> list[Sample]:
    """Ask an engine one call after the other."""
    async with open_session() as http:
        clock = SystemClock()
        client = Client(http, clock, "unit")
        return [await client.ask(target, CALL, PLACE, clock.monotonic()) for _ in range(times)]


def target_of(engine: FakeEngine, **more: Any) -> Target:
    """Return the engine as a target."""
    return Target(name="fake", origins=(engine.url,), model="m", **more)


async def test_an_answer_is_timed_counted_and_kept_as_a_digest_only() -> None:
    """The first token comes before the end, and the words of the answer are not in the sample."""
    engine = FakeEngine(words=("ship", "ahoy", "sailor"))
    async with running_engine(engine):
        (sample,) = await asked(engine, target_of(engine))

    assert ("s1", 2, True, "") == (sample.session, sample.turn, sample.measured, sample.error)
    assert 0 < sample.ttft <= sample.total
    assert sample.between is not None
    assert sample.prompt_tokens == sample.prefix_tokens + sample.suffix_tokens + sample.computed_tokens
    assert 0 < sample.prompt_tokens
    assert "ahoy" not in repr(sample)


async def test_members_keep_their_order_and_the_bench_s_come_behind() -> None:
    """The order of a body's members may be what is measured."""
    engine = FakeEngine()
    async with running_engine(engine):
        await asked(engine, target_of(engine, extra={"ignore_eos": True}))

    body = json.loads(engine.chats[0].body)
    expected = ["temperature", "messages", "max_tokens", "model", "stream", "stream_options", "ignore_eos"]
    assert expected == list(body)


async def test_salted_requests_share_nothing_and_sessions_are_named_after_their_unit() -> None:
    """A salt of its own makes vLLM compute a prompt that it has just computed."""
    engine = FakeEngine()
    async with running_engine(engine):
        await asked(engine, target_of(engine, salted=True), times=2)

    salts = [json.loads(chat.body)["cache_salt"] for chat in engine.chats]
    assert ["unit-0", "unit-1"] == salts


async def test_several_origins_take_turns() -> None:
    """As behind a round robin."""
    one, other = FakeEngine(), FakeEngine()
    async with running_engine(one), running_engine(other):
        await asked(one, Target(name="two", origins=(one.url, other.url), model="m"), times=4)

    assert (2, 2) == (len(one.chats), len(other.chats))


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        pytest.param(
            Faults(reply=Reply(status=429, pieces=(b'{"error":"busy"}',))), "AskFailed: 429", id="refused"
        ),
        pytest.param(Faults(drop=True), "ServerDisconnectedError", id="dropped"),
        pytest.param(Faults(cut=True), "ClientPayloadError", id="cut"),
    ],
)
async def test_a_failure_is_a_sample_with_an_error(faults: Faults, said: str) -> None:
    """It counts as failed, and nothing is asked a second time."""
    engine = FakeEngine(faults=faults)
    async with running_engine(engine):
        (sample,) = await asked(engine, target_of(engine))

    assert sample.error.startswith(said), sample.error
    assert 1 == len(engine.chats)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(b"\n", None, id="blank"),
        pytest.param(b": ping\n", None, id="comment"),
        pytest.param(b"event: done\n", None, id="name"),
        pytest.param(b"data: [DONE]\n", None, id="end"),
        pytest.param(b'data: {"choices": []}\r\n', {"choices": []}, id="event"),
        pytest.param(b'data:{"choices": []}\n', {"choices": []}, id="without a space"),
    ],
)
def test_lines_of_a_stream(line: bytes, expected: object) -> None:
    """Only what holds an event is one."""
    assert expected == parse_event(line)


@given(event=json_values, usage=json_values)
def test_whatever_an_endpoint_sends_is_an_answer_or_a_failure(event: object, usage: object) -> None:
    """A run of an hour must not end because one endpoint speaks another dialect."""
    answer = Answer()
    with contextlib.suppress(AskFailed):
        answer.take(parse_event(f"data: {json.dumps(event)}".encode()) or {}, 1.0)
    answer.take({"usage": usage, "choices": [{"delta": event, "text": usage}], "type": event}, 2.0)
    counts = token_counts(answer.usage)

    assert counts["prompt_tokens"] == counts["prefix_tokens"] + counts["computed_tokens"]


def test_an_error_in_the_stream_is_a_failure() -> None:
    """It comes with status 200, when an answer has begun."""
    with pytest.raises(AskFailed, match="out of memory"):
        parse_event(b'data: {"error": {"message": "out of memory"}}')


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        pytest.param(None, (0, 0, 0, 0, "unreported"), id="nothing"),
        pytest.param({"prompt_tokens": 100}, (100, 0, 0, 100, "unreported"), id="no details"),
        pytest.param(
            {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 32}},
            (100, 32, 0, 68, "unreported"),
            id="vLLM",
        ),
        pytest.param(
            {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 60, "sternpost": DETAIL}},
            (100, 10, 50, 40, "hit"),
            id="plugin",
        ),
        pytest.param(
            {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 32}, "output_tokens": 4},
            (100, 32, 0, 68, "unreported"),
            id="responses",
        ),
    ],
)
def test_tokens_by_source(usage: dict[str, Any] | None, expected: tuple[object, ...]) -> None:
    """What an endpoint does not report counts as computed."""
    sample = Sample(session="s", turn=0, measured=True, started=0.0, **token_counts(usage))

    found = (sample.prompt_tokens, sample.prefix_tokens, sample.suffix_tokens, sample.computed_tokens)
    assert expected == (*found, sample.reason)
