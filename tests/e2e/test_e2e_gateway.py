"""The gateway before a real engine: invisible without a policy; with one, a tail is computed once."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import httpx
import openai
import pytest

from sternpost_running.up import RunningUp

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

UNMATCHED: Final = """
apiVersion: sternpost.dev/v1alpha1
kind: CachePolicy
metadata: {name: elsewhere, namespace: local}
spec:
  match: {models: [another-model]}
  poolRef: {name: local}
"""

LAST: Final = 32
"""The last tail tokens that the default policy has computed afresh."""

WAIT_SECONDS_MAX: Final = 90.0
POLL_SECONDS: Final = 0.2

RULES: Final = " ".join(
    f"Rule {number}: the porter answers in one sentence and does not speak of door {number * 11 % 97}."
    for number in range(24)
)


@pytest.fixture
def unmatched(up: RunningUp, http: httpx.Client) -> Iterator[None]:
    """A policy folder in which nothing matches the engine's model."""
    (policy,) = up.policies.glob("*.yaml")
    before = policy.read_text()
    policy.write_text(UNMATCHED)
    _until(lambda: "local/elsewhere" in http.get(f"{up.gateway_url}/readyz?verbose").text)
    try:
        yield
    finally:
        policy.write_text(before)
        _until(lambda: "local/elsewhere" not in http.get(f"{up.gateway_url}/readyz?verbose").text)


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(POLL_SECONDS)


def _curl(url: str, body: str | None) -> tuple[str, bytes]:
    """Return status and body, with what the engine draws anew for every answer blanked out."""
    command = ["curl", "--silent", "--no-buffer", "--write-out", "\n%{http_code} %{content_type}", url]
    command += ["--header", "x-request-id: same-for-both", "--header", "content-type: application/json"]
    command += ["--data-binary", body] if body is not None else []
    raw = subprocess.run(command, check=True, capture_output=True, timeout=60).stdout
    content, _, status = raw.rpartition(b"\n")
    return status.decode(), _settled(content)


def _settled(content: bytes) -> bytes:
    content = re.sub(rb'"created": ?\d+', b'"created":0', content)
    return re.sub(rb"modelperm-[0-9a-f]+", b"modelperm-0", content)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param(
            "/v1/chat/completions",
            '{"model": "SmolLM2-135M-Instruct", "max_tokens": 9, "temperature": 0.0,\n'
            ' "messages": [{"role": "user", "content": "Gr\\u00fc\\u00dfe, wer bist du?"}]}',
            id="a chat",
        ),
        pytest.param(
            "/v1/chat/completions",
            '{"stream":true,"model":"SmolLM2-135M-Instruct","max_tokens":9,"temperature":0,'
            '"messages":[{"role":"user","content":"Who are you?"}],"stream_options":{"include_usage":true}}',
            id="a streamed chat",
        ),
        pytest.param(
            "/v1/completions",
            '{"model":"SmolLM2-135M-Instruct","prompt":"One, two,","max_tokens":5,"temperature":0}',
            id="a completion",
        ),
        pytest.param(
            "/v1/chat/completions",
            '{"model":"no-such-model","messages":[{"role":"user","content":"?"}]}',
            id="an error of the engine",
        ),
        pytest.param("/v1/no/such/path", "{}", id="an unknown path"),
        pytest.param("/v1/models", None, id="a list"),
    ],
)
def test_curl_gets_the_same_bytes_as_from_the_engine(
    up: RunningUp, unmatched: None, path: str, body: str | None
) -> None:
    """Where no policy matches, nobody can tell the gateway from the engine."""
    # Once before, so that both answers below find the same blocks in the prefix store.
    _curl(f"{up.engine_url}{path}", body)

    assert _curl(f"{up.engine_url}{path}", body) == _curl(f"{up.gateway_url}{path}", body)


@pytest.mark.parametrize("stream", [False, True])
def test_the_openai_client_gets_the_same_bytes_as_from_the_engine(
    up: RunningUp, unmatched: None, stream: bool
) -> None:
    """The official client's raw response is the engine's."""

    def ask(base_url: str) -> bytes:
        with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
            response = client.chat.completions.with_raw_response.create(
                model=up.model,
                messages=[{"role": "user", "content": "Name two colours."}],
                temperature=0,
                max_tokens=8,
                stream=stream,
                extra_headers={"x-request-id": "same-for-both"},
            )
            return _settled(response.http_response.read())

    ask(f"{up.engine_url}/v1")

    assert ask(f"{up.engine_url}/v1") == ask(up.base_url)


def _chat(client: openai.OpenAI, model: str, question: str) -> Mapping[str, Any]:
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}, {"role": "system", "content": RULES}],
        temperature=0,
        max_tokens=4,
    )
    assert answer.usage is not None
    usage: Mapping[str, Any] = answer.usage.model_dump()
    return usage


def test_an_ordinary_client_sees_its_tail_computed_once(up: RunningUp, http: httpx.Client) -> None:
    """The gateway has the tail built; from then on middle and last tokens alone are computed."""
    with openai.OpenAI(base_url=up.base_url, api_key="none", max_retries=0) as client:
        first = _chat(client, up.model, "Where does the first door lead?")["prompt_tokens_details"]
        number = iter(range(1000))

        def hit() -> Mapping[str, Any] | None:
            question = f"Where does door {next(number)} lead, and who has its key?"
            usage = _chat(client, up.model, question)
            report = usage["prompt_tokens_details"]["sternpost"]
            messages = [{"role": "user", "content": question}]
            return {**usage, "messages": messages} if report["reason"] == "hit" else None

        usage: Mapping[str, Any] | None = None
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while usage is None:
            assert time.monotonic() < deadline, "the tail was not built in time"
            usage = hit()

    middle = http.post(
        f"{up.engine_url}/tokenize",
        json={"model": up.model, "messages": usage["messages"], "add_generation_prompt": False},
    ).json()["count"]
    report = usage["prompt_tokens_details"]["sternpost"]
    assert "hit" != first["sternpost"]["reason"]
    assert middle + LAST == report["computed_tokens"]
    assert usage["prompt_tokens"] - middle - LAST == report["suffix_tokens"]


def test_a_kill_acts_on_the_next_request(up: RunningUp, http: httpx.Client) -> None:
    """K1 stops suffix reads at once, and clearing it lets them begin again."""
    url = f"{up.gateway_url}/sternpost/v1/kill"
    token = {"authorization": f"Bearer {up.admin_token}"}
    with openai.OpenAI(base_url=up.base_url, api_key="none", max_retries=0) as client:
        try:
            killed = http.post(url, headers=token, json={"level": "NoSuffixReads", "reason": "drill"})
            report = _chat(client, up.model, "Who killed it?")["prompt_tokens_details"]["sternpost"]
        finally:
            cleared = http.post(url, headers=token, json={"level": "None", "reason": "drill is over"})

        assert (200, 200) == (killed.status_code, cleared.status_code)
        assert (0, "off") == (report["suffix_tokens"], report["reason"])
        number = iter(range(1000))
        _until(
            lambda: (
                _chat(client, up.model, f"Is it alive, for the time number {next(number)}?")[
                    "prompt_tokens_details"
                ]["sternpost"]["reason"]
                == "hit"
            )
        )


def test_malformed_json_is_refused_in_the_shape_that_clients_read(up: RunningUp, http: httpx.Client) -> None:
    """The official error type comes out of it, with a stable code."""
    response = http.post(f"{up.base_url}/chat/completions", content=b'{"model": "x", "messages": [}')

    assert (400, "invalid_json") == (response.status_code, response.json()["error"]["code"])
