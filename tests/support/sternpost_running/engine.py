"""A real vLLM engine with the plugin, as a process of its own, and what tests ask of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from sternpost_running.ports import free_ports

READY_SECONDS_MAX = 240.0
STOP_SECONDS_MAX = 30.0
POLL_SECONDS = 0.5

THREADS = "1"
"""Of an engine: tests run two at a time, and one thread computes the little that they ask."""

KEEPALIVE_SECONDS = 1.0
"""For which an idle connection is kept: well under vLLM's 5 s, so that a busy machine never meets its end."""


@dataclass(frozen=True, slots=True)
class Tail:
    """A fixed tail as an engine sees it: the message, its scaffold's tokens and its own."""

    message: Mapping[str, str]
    scaffold: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the engine answered: the text, the first token's log-probabilities, and the report."""

    text: str
    logprobs: tuple[float, ...]
    usage: Mapping[str, Any]

    @property
    def report(self) -> Mapping[str, Any]:
        """The reuse report."""
        report: Mapping[str, Any] = self.usage["prompt_tokens_details"]["sternpost"]
        return report


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """Asks a running engine; `model` is the name that it serves."""

    url: str
    model: str
    client: httpx.Client = field(repr=False)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Post and return the JSON of a good answer."""
        response = self.client.post(path, json=body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def tokens(self, messages: Sequence[Mapping[str, str]], *, closed: bool = True) -> tuple[int, ...]:
        """Render and tokenize a conversation, with the generation prompt when `closed`."""
        body = {"model": self.model, "messages": list(messages), "add_generation_prompt": closed}
        return tuple(self.post("/tokenize", body)["tokens"])

    def tail(self, text: str, before: Sequence[Mapping[str, str]] = ()) -> Tail:
        """Measure a tail that is a system message after `before`, or after an empty user message."""
        message = {"role": "system", "content": text}
        opening = list(before) or [{"role": "user", "content": ""}]
        scaffold = self.tokens(opening, closed=False)
        whole = self.tokens([*opening, message])
        assert whole[: len(scaffold)] == scaffold, "tokenisation never merges across a message boundary"
        return Tail(message, scaffold, whole[len(scaffold) :])

    def build(self, tail: Tail, *, prompt: Sequence[int] | None = None, **more: Any) -> Mapping[str, Any]:
        """Ask for a build and return its report."""
        hint = {
            "v": 1,
            "op": "build",
            "prefix_tokens": len(tail.scaffold),
            "tail_tokens": len(tail.tokens),
            "scaffold": "s",
            **more.pop("hint", {}),
        }
        body = {
            "model": self.model,
            "prompt": list(prompt if prompt is not None else tail.scaffold + tail.tokens),
            "max_tokens": 1,
            "temperature": 0,
            "kv_transfer_params": {"sternpost": hint},
            **more,
        }
        report: Mapping[str, Any] = self.post("/v1/completions", body)["usage"]["prompt_tokens_details"][
            "sternpost"
        ]
        return report

    def ask(self, question: str, tail: Tail, *, tokens: int = 1, hint: object = None, **more: Any) -> Answer:
        """Ask a question with a tail behind it; `hint` replaces keys of a plain read."""
        body = self.body(question, tail, tokens=tokens, hint=hint, **more)
        answer = self.post("/v1/chat/completions", body)
        choice = answer["choices"][0]
        first = choice["logprobs"]["content"][0]["top_logprobs"]
        return Answer(
            choice["message"]["content"],
            tuple(candidate["logprob"] for candidate in first),
            answer["usage"],
        )

    def body(
        self, question: str, tail: Tail, *, tokens: int = 1, hint: object = None, **more: Any
    ) -> dict[str, Any]:
        """Return the body that `ask` posts."""
        read = {"v": 1, "op": "read", "tail_tokens": len(tail.tokens), "scaffold": "s", "last": 32}
        sent = {**read, **hint} if isinstance(hint, Mapping) else (read if hint is None else hint)
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": question}, dict(tail.message)],
            "max_tokens": tokens,
            "temperature": 0,
            "logprobs": True,
            "top_logprobs": 5,
            "kv_transfer_params": {"sternpost": sent},
            **more,
        }

    def stream(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Post a streaming request and yield its events."""
        with self.client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
            assert response.status_code == 200
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    yield json.loads(line.removeprefix("data: "))

    def metric(self, name: str, **labels: str) -> float:
        """Return a sample of /metrics by its name and some of its labels; 0 where it is not there."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        for line in self.client.get("/metrics").text.splitlines():
            if line.startswith(name + "{") and all(pair in line for pair in wanted):
                return float(line.rpartition(" ")[2])
        return 0.0

    def forget_prefixes(self) -> None:
        """Empty the prefix store."""
        assert self.client.post("/reset_prefix_cache").status_code == 200


@contextmanager
def running_engine(
    model: Path, log: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[RunningEngine]:
    """
    Start an engine, wait until it is ready, and end it with its whole process group.

    `environment` adds to that of the tests.
    """
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "sternpost_core", "engine", "--model", str(model), "--port", str(port)]
    # The development routes let a test empty the prefix store.
    variables = {**os.environ, "VLLM_SERVER_DEV_MODE": "1", **(environment or {})}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--threads", THREADS, "--", *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=variables,
            start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        kept = httpx.Limits(keepalive_expiry=KEEPALIVE_SECONDS)
        with httpx.Client(base_url=url, timeout=120.0, limits=kept) as client:
            _await_ready(process, client, log)
            yield RunningEngine(url, model.name, client)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _await_ready(process: subprocess.Popen[bytes], client: httpx.Client, log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS_MAX
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the engine ended:\n{log.read_text()[-3000:]}"
        try:
            if client.get("/health", timeout=1.0).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(POLL_SECONDS)
    raise AssertionError(f"the engine is not ready:\n{log.read_text()[-3000:]}")
