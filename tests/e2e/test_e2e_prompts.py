"""What the gateway does to prompts, before a real engine: responses, marked prompts, the chat template."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import httpx
import pytest

from sternpost_running.up import RunningUp

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

WAIT_SECONDS_MAX: Final = 90.0
POLL_SECONDS: Final = 0.3

POLICY: Final = """
apiVersion: sternpost.dev/v1alpha1
kind: CachePolicy
metadata: {{name: prompts, namespace: local}}
spec:
  match: {{models: [{model}]}}
  poolRef: {{name: local}}
  prompt:
    layout: FixedTail
    canonicalize: Pin
    volatile: [{{name: clock, detect: Timestamp, action: Relocate}}]
    tail: {{source: {source}, minTokens: 256}}
  suffixCache: {{correction: None}}
"""

RULES: Final = " ".join(
    f"Rule {number}: the keeper answers in one sentence and does not speak of lamp {number * 13 % 97}."
    for number in range(24)
)
LAST: Final = 32


def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(POLL_SECONDS)


@pytest.fixture
def with_source(up: RunningUp, http: httpx.Client) -> Iterator[Callable[[str], None]]:
    """A function that puts a policy with a tail source in the place of the usual one, for one test."""
    (path,) = up.policies.glob("*.yaml")
    before = path.read_text()

    def put(source: str) -> None:
        path.write_text(POLICY.format(model=up.model, source=source))
        until(lambda: "local/prompts" in http.get(f"{up.gateway_url}/readyz?verbose").text)

    try:
        yield put
    finally:
        path.write_text(before)
        until(lambda: "local/prompts" not in http.get(f"{up.gateway_url}/readyz?verbose").text)


def asked(http: httpx.Client, up: RunningUp, path: str, body: dict[str, Any]) -> httpx.Response:
    """Ask through the gateway."""
    answer = http.post(f"{up.gateway_url}{path}", json={"model": up.model, "temperature": 0, **body})
    assert 200 == answer.status_code, answer.text
    return answer


def reuse(answer: httpx.Response) -> int:
    """Return the tail tokens that are predicted to be reused."""
    return int(answer.headers["x-sternpost-reuse"])


def test_tail_of_a_response_is_reused(
    up: RunningUp, http: httpx.Client, with_source: Callable[[str], None]
) -> None:
    """The chat that a response stands for has the tokens that the engine makes of the response."""
    with_source("LastSystemMessage")

    def ask(question: str) -> httpx.Response:
        items = [{"role": "user", "content": question}, {"role": "system", "content": RULES}]
        body = {"instructions": "You keep a lighthouse.", "input": items, "max_output_tokens": 4}
        return asked(http, up, "/v1/responses", body)

    until(lambda: reuse(ask("Who are you?")) > 0)
    answer = ask("Where is the lamp oil kept, and who may fetch it?")
    cached = answer.json()["usage"]["input_tokens_details"]["cached_tokens"]

    assert reuse(answer) > 256
    assert reuse(answer) <= cached < answer.json()["usage"]["input_tokens"]


def test_marked_prompt_is_reused(
    up: RunningUp, http: httpx.Client, with_source: Callable[[str], None]
) -> None:
    """A completion's tail has the same tokens whatever stands in front of the marker."""
    with_source("Marker")

    def ask(question: str) -> httpx.Response:
        prompt = f"{question}\n<!-- sternpost:tail -->\n{RULES}\nAnswer:"
        return asked(http, up, "/v1/completions", {"prompt": prompt, "max_tokens": 4})

    until(lambda: reuse(ask("Who are you?")) > 0)
    answer = ask("Where is the lamp oil kept, and who may fetch it?")
    report = answer.json()["usage"]["prompt_tokens_details"]["sternpost"]

    assert ("hit", reuse(answer)) == (report["reason"], report["suffix_tokens"])


def test_chat_template_is_asked_for(
    up: RunningUp, http: httpx.Client, with_source: Callable[[str], None]
) -> None:
    """The small model's template renders every message in its place, and no tool call."""
    with_source("LastSystemMessage")
    messages = [
        {"role": "system", "content": "Now: 2026-11-29 09:00:01\nYou keep a lighthouse."},
        {"role": "user", "content": "Who are you?"},
    ]

    def known() -> dict[str, Any]:
        asked(http, up, "/v1/chat/completions", {"messages": messages, "max_tokens": 2})
        found: dict[str, Any] = http.get(f"{up.gateway_url}/sternpost/v1/templates").json()
        return found

    def newest_prefix() -> dict[str, Any]:
        # Policies of earlier tests are shown, too.
        (policy,) = [one for one in known()["policies"] if one["policy"] == "local/prompts"]
        found: dict[str, Any] = policy["versions"]["prefix"][0]
        return found

    until(lambda: bool(known()["chatTemplates"]))
    until(lambda: newest_prefix()["tokensFrom"] == "engine")
    shown = known()
    (template,) = shown["chatTemplates"]

    assert (up.model, True, False) == (
        template["model"],
        template["takesLaterSystemMessage"],
        template["printsToolCallIds"],
    )
    assert 5 < newest_prefix()["tokens"] < 40
