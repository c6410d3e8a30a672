"""The small model's own tokenizer and chat template, as an engine would render what the gateway asks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from sternpost_core.policy import Policy
from sternpost_engine.model_fetch import default_directory, is_model
from sternpost_fakes.clock import FakeClock
from sternpost_fakes.gateway_scene import Scene, policy
from sternpost_gateway.chat_template import ChatTemplate, ChatTemplates
from sternpost_gateway.engine_api import EngineApi
from sternpost_gateway.fleet import Engine
from sternpost_gateway.marker import MARKER
from sternpost_gateway.receive import CHAT_PATH, COMPLETIONS_PATH, RESPONSES_PATH
from sternpost_gateway.settings import Timeouts
from sternpost_gateway.tokens import (
    EMPTY_TEXT,
    FIRST_TEXT,
    SECOND_TEXT,
    Renderings,
    TailFacts,
    tail_facts,
    tokenize_body,
)

pytestmark = pytest.mark.engine

Render = Callable[[Mapping[str, Any]], list[int]]

RULES: Final = " ".join(f"Rule {number}: the keeper answers in one sentence." for number in range(30))
DEVELOPER: Final = {"role": "developer", "content": RULES}
MARKED: Final = f"{MARKER}\n{RULES}"
QUESTIONS: Final = ("Who are you?", "x", "Where is the oil kept, and who may fetch it: tell.", "")


@pytest.fixture(scope="module")
def render() -> Render:
    """Return what renders a chat or a prompt into tokens, as the model's own files say."""
    directory = default_directory(os.environ)
    if not is_model(directory):
        pytest.fail("the tests against vLLM need the small model: run `sternpost model fetch`")
    tokenizer: Any = Tokenizer.from_file(str(directory / "tokenizer.json"))
    template = _template(directory)

    def tokens(body: Mapping[str, Any]) -> list[int]:
        if "prompt" in body:
            return list(tokenizer.encode(body["prompt"]).ids)
        generation = body.get("add_generation_prompt", True)
        text = template.render(messages=body["messages"], add_generation_prompt=generation)
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    return tokens


def _template(directory: Path) -> Any:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string((directory / "chat_template.jinja").read_text(encoding="utf-8"))


def marked() -> Policy:
    """Return a policy whose tails are marked."""
    return policy(prompt={"layout": "FixedTail", "tail": {"source": "Marker"}})


def chat(question: str) -> dict[str, Any]:
    """Return a chat that ends with the rules."""
    return {
        "messages": [
            {"role": "system", "content": "You keep."},
            {"role": "user", "content": question},
            DEVELOPER,
        ]
    }


def response(question: str) -> dict[str, Any]:
    """Return a response that asks for the same."""
    return {"instructions": "You keep.", "input": [{"role": "user", "content": question}, DEVELOPER]}


SHAPES = [
    pytest.param(CHAT_PATH, chat, chat, policy(), id="chat"),
    pytest.param(RESPONSES_PATH, response, chat, policy(), id="response"),
    pytest.param(
        RESPONSES_PATH,
        lambda question: {"input": f"{question}\n{MARKED}"},
        lambda question: {"messages": [{"role": "user", "content": f"{question}\n{MARKED}"}]},
        marked(),
        id="marked-response",
    ),
    pytest.param(
        COMPLETIONS_PATH,
        lambda question: {"prompt": f"{question}\n{MARKED}"},
        lambda question: {"prompt": f"{question}\n{MARKED}"},
        marked(),
        id="marked-completion",
    ),
]


@pytest.mark.parametrize(("path", "ask", "rendered", "chosen"), SHAPES)
def test_tail_has_the_same_tokens_after_any_question(
    render: Render,
    path: str,
    ask: Callable[[str], dict[str, Any]],
    rendered: Callable[[str], dict[str, Any]],
    chosen: Policy,
) -> None:
    """The tokens that the gateway finds out are those that every real prompt ends with."""
    found = facts(render, Scene(body={"model": "qwen", **ask("Hm?")}, path=path, policy=chosen))

    assert len(found.tail) > 300 and len(found.scaffold) > 0
    for question in QUESTIONS:
        assert found.tail == tuple(render(rendered(question))[-len(found.tail) :])


def facts(render: Render, scene: Scene) -> TailFacts:
    """Return what the gateway would find out about a prompt's tail."""
    wish = scene.plan().wish
    assert wish is not None, "nothing speaks against reuse"
    asked = [(EMPTY_TEXT, False), (EMPTY_TEXT, True), (FIRST_TEXT, True), (SECOND_TEXT, True)]
    bodies = [tokenize_body(wish.template, text, with_tail=with_tail) for text, with_tail in asked]
    found = tail_facts(Renderings(*[render(json.loads(body)) for body in bodies]))
    assert found is not None, "the tail's tokens do not depend on what stands before it"
    return found


async def test_template_says_what_it_does(render: Render) -> None:
    """This model's template renders every message in its place, and no tool call."""

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"tokens": render(json.loads(request.content))})

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    templates = ChatTemplates(EngineApi(client, Timeouts()), FakeClock())
    templates.want(Engine("http://engine"), "SmolLM2-135M-Instruct")
    await templates.idle()

    expected = ChatTemplate(takes_later_system=True, prints_call_ids=False)
    assert expected == templates.of("SmolLM2-135M-Instruct")
