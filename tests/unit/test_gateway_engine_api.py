"""Control calls: what is sent, and which answers are believed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import httpx
import pytest
from prometheus_client import CollectorRegistry

from sternpost_core.content import ContentId
from sternpost_core.hint import Hint, Operation, Reason
from sternpost_fakes.clock import FakeClock
from sternpost_gateway.builder import TailBuilder, Wish
from sternpost_gateway.bypass import Bypass
from sternpost_gateway.engine_api import (
    ANSWER_BYTES_MAX,
    ControlFailed,
    ControlRefused,
    EngineApi,
    build_body,
    report_of,
)
from sternpost_gateway.fleet import Engine, Fleet, Health, Info, Plugin
from sternpost_gateway.metrics import Metrics
from sternpost_gateway.prefill_budget import BUILD_SHARE, PrefillBudget
from sternpost_gateway.settings import Timeouts
from sternpost_gateway.tails import Refused, TailKey, Tails, TailState
from sternpost_gateway.tokens import TailFacts, Template

ENGINE = Engine("http://engine")
KEY = TailKey("agents/support", ContentId("t"), "salt", 7)
FACTS = TailFacts((1, 2), (3, 4), 1, ContentId("s"))
TEMPLATE = Template(template_id=ContentId("t"), model=b'"qwen"', opening=(), tail=b"{}", options=())
WISH = Wish(template=TEMPLATE, key=KEY, tokens_min=1)
REPORT = {
    "v": 1,
    "prefix_tokens": 0,
    "suffix_tokens": 0,
    "computed_tokens": 4,
    "reason": "built",
    "engine": "b1",
}
ANSWER = {"usage": {"prompt_tokens_details": {"sternpost": REPORT}}}

Answer = Callable[[httpx.Request], httpx.Response]


class Endless(httpx.AsyncByteStream):
    """A body without an end; `given` is how much of it was read."""

    given = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            self.given += 1024 * 1024
            yield b"x" * 1024 * 1024


def api(answer: Answer) -> EngineApi:
    """Return an API that is answered by a function."""
    return EngineApi(httpx.AsyncClient(transport=httpx.MockTransport(answer)), Timeouts())


def answering(status: int = 200, content: object = None) -> Answer:
    """Return a function that always gives one answer."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return lambda request: httpx.Response(status, content=body)


def unreachable(request: httpx.Request) -> httpx.Response:
    """Fail as a network does."""
    raise httpx.ConnectError("no route", request=request)


def failing(error: type[httpx.TransportError]) -> Answer:
    """Return an answer that fails in one of the client's ways."""

    def answer(request: httpx.Request) -> httpx.Response:
        raise error("as told", request=request)

    return answer


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(answering(200), Health.UP, id="ok"),
        pytest.param(answering(503), Health.DOWN, id="unhealthy"),
        pytest.param(unreachable, Health.DOWN, id="nobody-listens"),
        pytest.param(failing(httpx.ReadTimeout), Health.SILENT, id="too-slow"),
        pytest.param(failing(httpx.ConnectTimeout), Health.SILENT, id="too-slow-to-connect"),
        pytest.param(failing(httpx.RemoteProtocolError), Health.SILENT, id="closed-between-two-requests"),
    ],
)
async def test_health_tells_a_no_from_silence(answer: Answer, expected: Health) -> None:
    """An engine that says no, or is not there, is down; one that says nothing may only be busy."""
    assert expected is await api(answer).health(ENGINE)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(answering(404), Info(plugin=Plugin.ABSENT), id="no-plugin"),
        pytest.param(
            answering(200, {"v": 1, "supported": True, "engine": "b1", "tail_tokens_max": 9}),
            Info(plugin=Plugin.READY, batch="b1", tail_tokens_max=9),
            id="ready",
        ),
        pytest.param(
            answering(200, {"v": 1, "supported": False, "reason": "hybrid", "engine": "b1"}),
            Info(plugin=Plugin.UNSUPPORTED, batch="b1", reason="hybrid"),
            id="unsupported",
        ),
        pytest.param(
            answering(200, {"v": 1, "supported": True, "engine": "b1", "tail_tokens_max": "many"}),
            Info(plugin=Plugin.READY, batch="b1"),
            id="wrong-count",
        ),
    ],
)
async def test_info_is_read(answer: Answer, expected: Info) -> None:
    """What an engine says is taken, and what is missing or wrong is taken for unknown."""
    assert expected == await api(answer).info(ENGINE)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(answering(500), id="error"),
        pytest.param(answering(200, {"v": 2, "supported": True}), id="other-version"),
        pytest.param(answering(200, b"<html>"), id="no-json"),
        pytest.param(answering(200, []), id="no-object"),
        pytest.param(unreachable, id="unreachable"),
    ],
)
async def test_info_that_cannot_be_understood_is_none(answer: Answer) -> None:
    """An answer of another kind says nothing about the plugin."""
    with pytest.raises(ControlFailed):
        await api(answer).info(ENGINE)


async def test_answer_without_an_end_is_none() -> None:
    """Whatever is asked for, no more is read than any answer has."""
    body = Endless()
    asked = api(lambda request: httpx.Response(200, stream=body))

    assert Health.SILENT is await asked.health(ENGINE)
    for ask in (asked.info(ENGINE), asked.models(ENGINE), asked.tokenize(ENGINE, b"{}")):
        with pytest.raises(ControlFailed, match="answered with more than"):
            await ask
    assert body.given < 5 * ANSWER_BYTES_MAX


async def test_engine_that_dribbles_is_not_waited_for() -> None:
    """Each byte comes in time, and the last one never."""
    timeouts = Timeouts(probe_seconds=0.1)

    async def dribble() -> AsyncIterator[bytes]:
        while True:
            await asyncio.sleep(0.01)
            yield b" "

    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=dribble()))
    asked = EngineApi(httpx.AsyncClient(transport=transport), timeouts)

    assert Health.SILENT is await asked.health(ENGINE)
    with pytest.raises(ControlFailed, match="did not answer"):
        await asked.info(ENGINE)


async def test_tokens_are_read() -> None:
    """Token ids come as they are."""
    assert (1, 2) == await api(answering(200, {"tokens": [1, 2]})).tokenize(ENGINE, b"{}")


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        pytest.param(answering(400, {"error": {}}), ControlRefused, id="refused"),
        pytest.param(answering(500), ControlFailed, id="failed"),
        pytest.param(answering(200, {"tokens": "1 2"}), ControlFailed, id="no-list"),
        pytest.param(answering(200, {"tokens": [1, -2]}), ControlFailed, id="negative"),
        pytest.param(answering(200, {"tokens": [1.5]}), ControlFailed, id="no-integers"),
        pytest.param(answering(200, {}), ControlFailed, id="missing"),
        pytest.param(unreachable, ControlFailed, id="unreachable"),
    ],
)
async def test_refusals_and_failures_of_tokenize_differ(answer: Answer, kind: type[Exception]) -> None:
    """A refusal is about the conversation and lasts; a failure is about the moment."""
    with pytest.raises(kind):
        await api(answer).tokenize(ENGINE, b"{}")


def test_build_body_holds_scaffold_and_tail_only() -> None:
    """A build's prompt is scaffold + tail, under the key's salt, with one token to sample."""
    body = json.loads(build_body(TEMPLATE.model, KEY, FACTS, Hint(op=Operation.BUILD)))

    assert ("qwen", [1, 2, 3, 4], 1, 0, "salt") == tuple(
        body[name] for name in ("model", "prompt", "max_tokens", "temperature", "cache_salt")
    )
    assert "build" == body["kv_transfer_params"]["sternpost"]["op"]


async def test_build_report_is_read() -> None:
    """What the engine says about the build comes back."""
    report = await api(answering(200, ANSWER)).build(ENGINE, b'"m"', KEY, FACTS, Hint(op=Operation.BUILD))

    assert Reason.BUILT is report.reason


@pytest.mark.parametrize(
    "usage",
    [None, 3, {}, {"prompt_tokens_details": None}, {"prompt_tokens_details": {"sternpost": {"v": 2}}}],
)
def test_usage_without_report_has_none(usage: object) -> None:
    """An engine without the plugin reports nothing."""
    assert report_of(usage) is None


def make_builder(answer: Answer, tails: Tails, registry: CollectorRegistry) -> TailBuilder:
    """Return a builder for one ready engine, whose builds are within the budget."""
    fleet = Fleet([ENGINE], tails.forget_engine)
    fleet.probed(ENGINE, Health.UP)
    budget = PrefillBudget(FakeClock(), lambda: 1000.0, BUILD_SHARE)
    return TailBuilder(api(answer), tails, Metrics(registry), budget, fleet)


async def run_builder(answer: Answer, facts: TailFacts | None) -> tuple[Tails, CollectorRegistry]:
    """Want the tail once, wait until nothing is under way, and return what is believed then."""
    tails, registry = Tails(FakeClock()), CollectorRegistry()
    if facts is not None:
        tails.learn(TEMPLATE.template_id, facts)
    builder = make_builder(answer, tails, registry)
    builder.want(ENGINE, WISH)
    builder.want(ENGINE, WISH)
    await builder.idle()
    return tails, registry


def builds(registry: CollectorRegistry, outcome: str) -> float:
    """Return how many builds had an outcome."""
    labels = {"policy": KEY.policy, "outcome": outcome}
    return registry.get_sample_value("sternpost_gateway_builds_total", labels) or 0.0


@pytest.mark.parametrize(
    ("answer", "outcome", "state"),
    [
        pytest.param(answering(200, ANSWER), "built", TailState.BUILT, id="built"),
        pytest.param(answering(400), "failed", TailState.ABSENT, id="refused"),
        pytest.param(answering(500), "failed", TailState.ABSENT, id="failed"),
        pytest.param(unreachable, "failed", TailState.ABSENT, id="unreachable"),
        pytest.param(answering(200, {"usage": {}}), "failed", TailState.ABSENT, id="no-report"),
    ],
)
async def test_build_is_believed_by_its_report_alone(answer: Answer, outcome: str, state: TailState) -> None:
    """A tail is held to be built when the engine says so; two wishes make one build."""
    tails, registry = await run_builder(answer, FACTS)

    assert (state, 1.0) == (tails.state(ENGINE, KEY), builds(registry, outcome))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        pytest.param(answering(400), Bypass.TAIL_REFUSED, id="refused"),
        pytest.param(unreachable, Bypass.TAIL_UNKNOWN, id="unreachable"),
        pytest.param(answering(200, {"tokens": []}), Bypass.TAIL_UNSTABLE, id="unstable"),
    ],
)
async def test_tokens_that_cannot_be_had_are_remembered(answer: Answer, reason: Bypass) -> None:
    """Why there are no tokens is known to the requests that follow, and nothing is built."""
    tails, _ = await run_builder(answer, None)
    found = tails.facts(TEMPLATE.template_id)

    assert isinstance(found, Refused) and reason is found.reason
    assert TailState.ABSENT is tails.state(ENGINE, KEY)


async def test_short_tail_is_not_built() -> None:
    """What no request would read is not built either."""
    tails = Tails(FakeClock())
    tails.learn(TEMPLATE.template_id, FACTS)
    builder = make_builder(unreachable, tails, CollectorRegistry())
    builder.want(ENGINE, Wish(template=TEMPLATE, key=KEY, tokens_min=3))
    await builder.idle()

    assert tails.begin_build(ENGINE, KEY)
