"""`sternpost up` with the real vLLM, as a person's first requests find it."""

import httpx
import openai
import pytest

from sternpost_core.errors import SettingsError
from sternpost_operator.local.checks import PortUse, check_ports
from sternpost_running.up import RunningUp

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

QUESTION = "What is the capital of France?"


@pytest.mark.parametrize("stream", [pytest.param(False, id="whole"), pytest.param(True, id="streamed")])
def test_chat_is_answered_through_the_gateway(stream: bool, up: RunningUp) -> None:
    """The official client gets the right answer at the address of the ready line."""
    with openai.OpenAI(base_url=up.base_url, api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(
            model=up.model,
            messages=[{"role": "user", "content": QUESTION}],
            temperature=0,
            max_tokens=20,
            stream=stream,
        )
        if isinstance(answer, openai.Stream):
            text = "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices)
        else:
            text = answer.choices[0].message.content or ""

    assert "Paris" in text


def test_gateway_lists_the_engines_model(up: RunningUp, http: httpx.Client) -> None:
    """What the gateway does not change it passes through."""
    models = http.get(f"{up.base_url}/models").json()

    assert [up.model] == [model["id"] for model in models["data"]]


def test_ready_line_is_the_whole_standard_output(up: RunningUp) -> None:
    """A script reads one line: the address, how many engines, and where policies and logs lie."""
    state = up.folder / "state"
    expected = f"ready: {up.base_url} (1 engine, policies {up.policies}, logs {state / 'logs'})\n"

    assert expected == (up.folder / "out").read_text()


def test_ports_of_a_running_up_are_refused(up: RunningUp) -> None:
    """A second `up` on the same ports would name both flags."""
    ports = [httpx.URL(url).port or 0 for url in (up.gateway_url, up.engine_url)]
    flags = ["--port", "--engine-port-base"]

    with pytest.raises(SettingsError) as error_info:
        check_ports([PortUse(flag, "127.0.0.1", port) for flag, port in zip(flags, ports, strict=True)])
    assert flags == [fault.path for fault in error_info.value.faults]
