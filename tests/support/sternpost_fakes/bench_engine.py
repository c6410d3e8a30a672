"""An engine as the benchmarks see it over HTTP: its tokens are words, its answers are scripted."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from bench.common.engine_api import Engine

OPEN = "<open>"
CLOSE = "<close>"
ANSWER = "<answer>"


@dataclass(slots=True)
class FakeEngine:
    """
    Answers `/tokenize` by itself and what else it is asked by `answers`, a function per path.

    Each word is one token, numbered in order of first use; a message is its words between two marks.
    """

    answers: Mapping[str, Callable[[dict[str, Any]], httpx.Response]] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    def client(self, name: str = "fake") -> Engine:
        """Return the benchmarks' view of this engine."""
        http = httpx.AsyncClient(transport=httpx.MockTransport(self._handle), base_url="http://engine")
        return Engine(name, "model", 1, http)

    def tokens(self, text: str) -> list[int]:
        """Return the words' numbers."""
        return [self.numbers.setdefault(word, len(self.numbers) + 1) for word in text.split()]

    def render(self, body: Mapping[str, Any]) -> str:
        """Return the text of a conversation, or of a prompt."""
        if "prompt" in body:
            return str(body["prompt"])
        pieces = [f"{OPEN} {message['content']} {CLOSE}" for message in body["messages"]]
        if body["continue_final_message"]:
            pieces[-1] = pieces[-1].removesuffix(f" {CLOSE}")
        return " ".join([*pieces, *([ANSWER] if body["add_generation_prompt"] else [])])

    def _handle(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content) if request.content else {}
        path = request.url.path
        self.asked.append((path, body))
        if path == "/tokenize":
            return httpx.Response(200, json={"tokens": self.tokens(self.render(body))})
        return self.answers[path](body)


def answer_with(answer: Mapping[str, Any]) -> Callable[[dict[str, Any]], httpx.Response]:
    """Return a function that answers with this JSON whatever it is asked."""
    return lambda body: httpx.Response(200, json=dict(answer))


def usage_of(
    *, prompt: int = 100, prefix: int = 0, suffix: int = 0, computed: int = 100, reason: str = "hit"
) -> dict[str, Any]:
    """Return the usage of an engine with the plugin."""
    report = {
        "v": 1,
        "prefix_tokens": prefix,
        "suffix_tokens": suffix,
        "computed_tokens": computed,
        "reason": reason,
        "engine": "e",
    }
    details = {"cached_tokens": prefix + suffix, "sternpost": report}
    return {"prompt_tokens": prompt, "prompt_tokens_details": details}
