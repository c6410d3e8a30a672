"""What benchmarks ask of a running engine: tokens, builds of tails, metrics, and to forget its prefixes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from sternpost_core.errors import OperatingError
from sternpost_core.hint import HINT_FIELD, Hint, Report, parse_report

Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Engine:
    """A running engine: its name here, the model that it serves, and its process."""

    name: str
    model: str
    pid: int
    http: httpx.AsyncClient = field(repr=False)

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """
        Post, and return the answer's JSON.

        Raises:
            OperatingError: the engine did not answer, or not with success.
        """
        try:
            response = await self.http.post(path, json=body)
            response.raise_for_status()
            answer: dict[str, Any] = response.json()
            return answer
        except httpx.HTTPStatusError as error:
            text = error.response.text[:500]
            raise OperatingError(f"{self.name}: {path}: {error.response.status_code} {text}") from error
        except (httpx.HTTPError, ValueError) as error:
            raise OperatingError(f"{self.name}: {path}: {type(error).__name__} {error}") from error

    async def chat_tokens(
        self, messages: Messages, *, answering: bool = True, continuing: bool = False
    ) -> tuple[int, ...]:
        """
        Render and tokenize a conversation.

        It ends with the beginning of the model's answer when `answering`; when `continuing`, the last message
        is the beginning of the answer itself.
        """
        body = {
            "model": self.model,
            "messages": list(messages),
            "add_generation_prompt": answering and not continuing,
            "continue_final_message": continuing,
        }
        return tuple((await self.post("/tokenize", body))["tokens"])

    async def text_tokens(self, text: str) -> tuple[int, ...]:
        """Tokenize a text as it stands within a prompt."""
        body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        return tuple((await self.post("/tokenize", body))["tokens"])

    async def complete(self, prompt: Sequence[int], hint: Hint | None, **more: Any) -> dict[str, Any]:
        """Complete a prompt of token ids, greedily."""
        body = {"model": self.model, "prompt": list(prompt), "temperature": 0, **transfer(hint), **more}
        return await self.post("/v1/completions", body)

    async def metric(self, name: str) -> float:
        """Return the sum of a metric's samples; 0 where there are none."""
        try:
            text = (await self.http.get("/metrics")).text
        except httpx.HTTPError as error:
            raise OperatingError(f"{self.name}: /metrics: {error}") from error
        return metric_sum(text, name)

    async def forget_prefixes(self) -> None:
        """Empty the prefix store."""
        try:
            (await self.http.post("/reset_prefix_cache")).raise_for_status()
        except httpx.HTTPError as error:
            raise OperatingError(f"{self.name}: the prefix store was not emptied: {error}") from error


def transfer(hint: Hint | None) -> dict[str, Any]:
    """Return the body field that carries a hint, as a gateway sends it."""
    return {} if hint is None else {"kv_transfer_params": {HINT_FIELD: hint.to_mapping()}}


def report_of(usage: Mapping[str, Any]) -> Report | None:
    """Return the reuse report in an answer's usage; None from an engine without the plugin."""
    return parse_report((usage.get("prompt_tokens_details") or {}).get(HINT_FIELD))


def metric_sum(exposition: str, name: str) -> float:
    """
    Return the sum of a metric's samples over all labels.

    >>> metric_sum('hits_total{a="1"} 2.0\\nhits_total{a="2"} 3.0\\nhits_totals 9.0', "hits_total")
    5.0
    """
    samples = [line.rpartition(" ") for line in exposition.splitlines() if not line.startswith("#")]
    return sum(float(value) for labels, _, value in samples if labels.partition("{")[0] == name)
