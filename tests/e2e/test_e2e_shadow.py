"""Shadow replays before a real engine: a right tail stays, one whose stored KV is spoilt is demoted."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from sternpost_running import engine as engines
from sternpost_running.gateway import GatewayProcess, running_gateways

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

POLICY: Final = """
apiVersion: sternpost.dev/v1alpha1
kind: CachePolicy
metadata: {{name: shadowed, namespace: local}}
spec:
  match: {{models: [{model}]}}
  poolRef: {{name: local}}
  prompt:
    layout: FixedTail
    tail: {{source: LastSystemMessage, minTokens: 256}}
  suffixCache: {{correction: None}}
  rollout: {{analysis: {{minShadowAgreement: 0.8, maxShadowKl: 0.5}}}}
  shadow: {{sampleRate: 1}}
"""
"""Limits for a model of 135 million parameters whose tails are not calibrated."""

SPOILT_FOLDER: Final = Path(engines.__file__).parent / "spoilt"
QUESTIONS: Final = (
    "Who keeps the lamp?",
    "What is the capital of France?",
    "Name a colour of the sea.",
    "How do ships find the harbour at night?",
    "Tell me about the weather in autumn.",
    "Which tools does a carpenter need?",
    "Why is the sky blue?",
    "What do sailors eat?",
)
WAIT_SECONDS_MAX: Final = 120.0
POLL_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Scene:
    """A gateway before an engine; while `spoilt` exists, what the engine stores is wrong."""

    gateway: GatewayProcess
    model: str
    spoilt: Path


@pytest.fixture(scope="module")
def scene(model_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Run one engine and one gateway for all tests of this file."""
    folder = tmp_path_factory.mktemp("shadow")
    spoilt = folder / "spoilt"
    environment = {
        "PYTHONPATH": os.pathsep.join([str(SPOILT_FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "STERNPOST_TEST_SPOILT": str(spoilt),
    }
    (folder / "policies").mkdir()
    (folder / "policies" / "shadowed.yaml").write_text(POLICY.format(model=model_directory.name))
    with (
        engines.running_engine(model_directory, folder / "engine.log", environment=environment) as engine,
        running_gateways(
            folder, 1, "--policies", str(folder / "policies"), "--engine", engine.url, "--shadow-share", "1"
        ) as (gateway,),
    ):
        until(lambda: bool(gateway.details().get("ready")))
        yield Scene(gateway, engine.model, spoilt)


def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(POLL_SECONDS)


def rules(name: str) -> str:
    """Return a tail that is long enough, and another one for each name."""
    return " ".join(
        f"Rule {number}: the {name} answers in one sentence and does not speak of lamp {number * 13 % 97}."
        for number in range(14)
    )


def ask(scene: Scene, tail: str, question: str) -> str | None:
    """Ask with a tail; return the reason for which it was not read, None if it was."""
    messages = [{"role": "user", "content": question}, {"role": "system", "content": tail}]
    body: dict[str, Any] = {"model": scene.model, "messages": messages, "max_tokens": 4, "temperature": 0.7}
    answer = scene.gateway.client.post("/v1/chat/completions", json=body, timeout=120.0)
    assert 200 == answer.status_code, answer.text
    bypass: str | None = answer.headers.get("x-sternpost-bypass")
    return bypass


def shown(scene: Scene) -> list[dict[str, Any]]:
    """Return what the gateway tells of the policy's tails."""
    told = scene.gateway.client.get("/sternpost/v1/templates").json()["shadow"]
    found: list[dict[str, Any]] = told.get("local/shadowed", [])
    return found


def settled(scene: Scene) -> int:
    """Return how many samples have come to an outcome."""
    lines = scene.gateway.client.get("/metrics").text.splitlines()
    counts = (line for line in lines if line.startswith("sternpost_gateway_shadow_replays_total{"))
    return int(sum(float(line.rpartition(" ")[2]) for line in counts))


def replay(scene: Scene, tail: str, times: int) -> None:
    """Ask so many times, each after the replay of the one before, until the tail is read no more."""
    until(lambda: ask(scene, tail, "Is it warm?") is None)
    for number in range(times):
        before = settled(scene)
        if ask(scene, tail, f"{number}. {QUESTIONS[number % len(QUESTIONS)]}") is not None:
            return
        until(lambda before=before: settled(scene) > before)  # type: ignore[misc]


def test_tail_that_is_right_stays(scene: Scene) -> None:
    """The real engine's replays agree with its exact path, and the tail goes on being read."""
    tail = rules("keeper")
    replay(scene, tail, 8)
    (found,) = shown(scene)

    assert found["replays"] >= 7
    assert found["agreement"] > 0.8
    assert found["klNats"] < 0.5
    assert ask(scene, tail, "And now?") is None


def test_tail_whose_stored_values_are_spoilt_is_demoted(scene: Scene) -> None:
    """Wrong KV under right tokens is what no comparison of tokens can find; replays do."""
    tail = rules("porter")
    scene.spoilt.touch()
    replay(scene, tail, 40)
    scene.spoilt.unlink()
    demoted = [found for found in shown(scene) if found["demotedAt"] is not None]

    assert "demoted" == ask(scene, tail, "And now?")
    assert 1 == len(demoted)
    assert demoted[0]["agreement"] < 0.8
    assert ask(scene, rules("keeper"), "And the other?") is None
