"""The warm-up and the measured phase."""

import io
import itertools
import json
from collections import Counter
from collections.abc import Sequence

import httpx2
import pytest

from bench.demo.client import Asker
from bench.demo.measure import BURST, WARM_UP_REQUESTS, Targets, is_warm, measure, warm_up
from bench.demo.progress import Progress
from bench.demo.rows import Arm, Row
from bench.demo.workload import Question, Turn, Workload
from sternpost_core.errors import OperatingError
from sternpost_fakes.clock import FakeClock
from sternpost_fakes.demo_api import Handler, answered, make_target

QUESTIONS = tuple(Question(f"q{number}", (Turn("user", f"Question {number}?"),)) for number in range(4))


class Gateway:
    """Answers from two engines in turn; each reuses the tail from its `cold`th request on."""

    def __init__(
        self, clock: FakeClock, *, cold: int, engines: Sequence[str] = ("engine-a", "engine-b")
    ) -> None:
        self.requests: list[str] = []
        self._clock = clock
        self._cold = cold
        self._engines = itertools.cycle(engines)
        self._seen: Counter[str] = Counter()

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self._clock.advance(1.0)
        engine = next(self._engines)
        self._seen[engine] += 1
        self.requests.append(json.loads(request.content)["messages"][0]["content"])
        return answered(suffix=900 if self._seen[engine] > self._cold else 0, engine=engine)


class Log:
    """Notes who was asked what, and answers without reuse."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []

    def handler(self, name: str, *, suffix: int = 0) -> Handler:
        """Return the handler of one server."""

        def handle(request: httpx2.Request) -> httpx2.Response:
            self.requests.append((name, json.loads(request.content)["messages"][0]["content"]))
            return answered(suffix=suffix)

        return handle


def make_asker(clock: FakeClock) -> Asker:
    """Return an asker of four questions."""
    rows: list[Row] = []
    progress = Progress(clock, clock.monotonic(), io.StringIO())
    return Asker(Workload("Be brief.", QUESTIONS), progress, rows.append)


def make_targets(log: Log, gateway: Handler) -> Targets:
    """Return two engines, and a gateway."""
    engines = tuple(make_target(Arm.BASELINE, log.handler(name)) for name in ("first", "second"))
    return Targets(engines, make_target(Arm.STERNPOST, gateway))


async def test_every_question_is_asked_once_in_each_arm() -> None:
    """The arms follow ABBA, and each engine is asked first as often as second."""
    log = Log()
    targets = make_targets(log, log.handler("gateway", suffix=900))

    rows = await measure(make_asker(FakeClock()), targets, QUESTIONS)

    assert [
        ("first", "Question 0?"),
        ("gateway", "Question 0?"),
        ("gateway", "Question 1?"),
        ("first", "Question 1?"),
        ("second", "Question 2?"),
        ("gateway", "Question 2?"),
        ("gateway", "Question 3?"),
        ("second", "Question 3?"),
    ] == log.requests
    assert ["q0", "q0", "q1", "q1", "q2", "q2", "q3", "q3"] == [row.question for row in rows]


async def test_warm_up_ends_when_both_engines_reuse_the_tail() -> None:
    """Each engine is asked by itself, then the gateway, in bursts once an engine reuses the tail."""
    clock, log = FakeClock(), Log()
    gateway = Gateway(clock, cold=2)

    rows = await warm_up(make_asker(clock), make_targets(log, gateway), itertools.count(1))

    straight = Counter(name for name, _ in log.requests)
    assert {"first": WARM_UP_REQUESTS, "second": WARM_UP_REQUESTS} == straight
    singly = 5
    assert singly + BURST == len(gateway.requests)
    assert len(rows) == len(log.requests) + len(gateway.requests)


async def test_no_question_of_the_warm_up_comes_twice() -> None:
    """Each question has a ticket's number, so that no prefix cache knows its beginning."""
    clock, log = FakeClock(), Log()
    gateway = Gateway(clock, cold=2)

    await warm_up(make_asker(clock), make_targets(log, gateway), itertools.count(1))

    contents = [content for _, content in log.requests] + gateway.requests
    assert len(contents) == len(set(contents))


@pytest.mark.parametrize(
    ("cold", "engines", "reused"),
    [
        pytest.param(10_000, ("engine-a", "engine-b"), "0 of 2", id="never-reused"),
        pytest.param(0, ("engine-a",), "1 of 2", id="one-engine-alone"),
    ],
)
async def test_warm_up_that_never_ends_is_given_up(cold: int, engines: Sequence[str], reused: str) -> None:
    """What was waited for, and how many engines came to it, is said."""
    clock = FakeClock()
    targets = make_targets(Log(), Gateway(clock, cold=cold, engines=engines))

    with pytest.raises(OperatingError, match=rf"{reused} engines reused the rules' KV within 120 s.*off \("):
        await warm_up(make_asker(clock), targets, itertools.count(1))


@pytest.mark.parametrize(
    ("hits", "expected"),
    [
        pytest.param({}, False, id="none"),
        pytest.param({"a": 9}, False, id="one-engine"),
        pytest.param({"a": 9, "b": 2}, False, id="one-too-seldom"),
        pytest.param({"a": 3, "b": 3}, True, id="both"),
    ],
)
def test_every_engine_must_be_warm(hits: dict[str, int], expected: bool) -> None:
    """Many hits of one engine do not stand for the other's."""
    assert expected == is_warm(Counter(hits), 2)
