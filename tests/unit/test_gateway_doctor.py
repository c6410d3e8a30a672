"""`sternpost doctor` names the first place where predicted, reported and timed reuse part."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Final

import httpx
import pytest

from sternpost_core.clock import SystemClock
from sternpost_core.errors import OperatingError, SettingsError
from sternpost_core.hint import Reason, Report
from sternpost_fakes.engine import FakeEngine, running_engine
from sternpost_fakes.gateway import running_gateway
from sternpost_gateway.doctor.command import COMMAND, order_of, probe_until_settled, report_lines
from sternpost_gateway.doctor.diagnosis import Place, diagnose
from sternpost_gateway.doctor.probe import Seen, first_model, made_up_chat

HIT: Final = Report(prefix_tokens=0, suffix_tokens=900, computed_tokens=100, reason=Reason.HIT)

COLD: Final = Seen(
    status=200, first_token_seconds=1.0, policy="a/p", predicted=0, prompt_tokens=1000, cached_tokens=0
)
WARM: Final = replace(COLD, first_token_seconds=0.2, predicted=900, cached_tokens=900, report=HIT)


@pytest.mark.parametrize(
    ("first", "last", "place"),
    [
        pytest.param(COLD, WARM, None, id="all agree"),
        pytest.param(WARM, replace(WARM, first_token_seconds=0.3), None, id="warm from the start"),
        pytest.param(
            COLD,
            replace(WARM, bypass="tail_first", predicted=0, report=None),
            None,
            id="the prefix store alone",
        ),
        pytest.param(COLD, replace(WARM, status=503), Place.GATEWAY, id="an error"),
        pytest.param(COLD, replace(WARM, policy=None), Place.GATEWAY, id="no policy"),
        pytest.param(COLD, replace(WARM, bypass="killed"), Place.GATEWAY, id="switched off"),
        pytest.param(COLD, replace(WARM, report=None), Place.ENGINE, id="no plugin"),
        pytest.param(COLD, replace(WARM, report=None, cached_tokens=None), Place.ENGINE, id="no details"),
        pytest.param(COLD, replace(WARM, bypass="building"), Place.STORE, id="never built"),
        pytest.param(
            COLD, replace(WARM, report=replace(HIT, reason=Reason.COPY_FAILED)), Place.STORE, id="not copied"
        ),
        pytest.param(COLD, replace(WARM, predicted=0), Place.ROUTER, id="not predicted"),
        pytest.param(COLD, replace(WARM, first_token_seconds=0.9), Place.SPLICE, id="no time saved"),
    ],
)
def test_the_first_place_is_named(first: Seen, last: Seen, place: Place | None) -> None:
    """Whatever comes behind it is not looked at."""
    finding = diagnose(first, last)

    assert place == (finding.place if finding is not None else None)


@pytest.mark.parametrize(
    ("engine", "place"),
    [
        pytest.param(FakeEngine(), None, id="with the plugin"),
        pytest.param(FakeEngine(plugin=False), Place.GATEWAY, id="without the plugin"),
    ],
)
async def test_a_real_gateway_is_probed(tmp_path: Path, engine: FakeEngine, place: Place | None) -> None:
    """The tail is learned and built in between; a fake engine's times say nothing, and are set."""
    async with (
        running_engine(engine),
        running_gateway(tmp_path, [engine.url]) as gateway,
        httpx.AsyncClient(base_url=gateway.url, trust_env=False, timeout=20) as client,
    ):
        first, last = await probe_until_settled(client, made_up_chat("qwen"), SystemClock(), 0.05)

    finding = diagnose(first, replace(last, first_token_seconds=first.first_token_seconds / 2))

    assert place == (finding.place if finding is not None else None), finding
    assert ("agents/support", "agents/support") == (first.policy, last.policy)


async def test_without_a_model_there_is_nothing_to_ask() -> None:
    """The error says what to do."""
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json={"data": []}))
    async with httpx.AsyncClient(base_url="http://gateway", transport=transport) as client:
        with pytest.raises(OperatingError, match="--model"):
            await first_model(client)


@pytest.mark.parametrize(
    ("flags", "text", "said"),
    [
        pytest.param(["--gateway", "gateway"], "{}", "gateway", id="no URL"),
        pytest.param(["--chat"], "[1]", "--chat", id="no object"),
        pytest.param(["--chat"], '{"messages": "hello"}', "messages", id="no messages"),
        pytest.param(["--chat"], "{", "--chat", id="no JSON"),
    ],
)
def test_flags_that_mean_nothing_are_refused_by_name(
    flags: list[str], text: str, said: str, tmp_path: Path
) -> None:
    """Before anything is sent."""
    (tmp_path / "chat.json").write_text(text)
    parser = argparse.ArgumentParser()
    COMMAND.add_arguments(parser)

    with pytest.raises(SettingsError, match=said):
        order_of(parser.parse_args([*flags, str(tmp_path / "chat.json")] if flags == ["--chat"] else flags))


def test_the_report_says_what_was_seen_and_what_to_do() -> None:
    """Three figures for each probe, the place, and the advice."""
    last = replace(WARM, bypass="killed", predicted=0)

    lines = list(report_lines(COLD, last, diagnose(COLD, last)))

    assert [
        "first: policy a/p, predicted 0, reported 0 of 1000 tokens, first token after 1000 ms, bypass none",
        "last: policy a/p, predicted 0, reported 900 of 1000 tokens, first token after 200 ms, bypass killed",
        "they part at the gateway: bypass killed",
        "what to do: the guide of the gateway says what it means",
    ] == lines
