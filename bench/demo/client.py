"""
One streamed request, as a user of the `openai` package makes it, and what is read from its answer.

Nothing is tried a second time: what fails is a row with an error, and the demonstration counts it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

import httpx
import httpx2
import openai
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletionChunk

from bench.demo.progress import Progress
from bench.demo.rows import Answer, Arm, Phase, Row
from bench.demo.workload import Question, Workload
from sternpost_core.errors import OperatingError
from sternpost_core.hint import HINT_FIELD, parse_report

ANSWER_TOKENS_MAX: Final = 20
"""Enough to see whether two answers agree; longer ones would only measure decoding, which is the same."""

REQUEST_SECONDS_MAX: Final = 60.0
"""A request that takes longer has failed; the slowest here wait behind three others on two cores."""


class AskFailed(OperatingError):
    """A request got an error, or no whole answer."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request is sent to, as which arm."""

    arm: Arm
    client: openai.AsyncOpenAI
    model: str


@dataclass(frozen=True, slots=True)
class Asker:
    """Asks the workload's questions, and hands what each request showed to `record` at once."""

    workload: Workload
    progress: Progress
    record: Callable[[Row], None]

    async def ask(
        self, target: Target, phase: Phase, question: Question, answer_tokens_max: int = ANSWER_TOKENS_MAX
    ) -> Row:
        """Ask one question; a failure is a row, too."""
        started = self.progress.elapsed()
        answer: Answer | None = None
        error = ""
        try:
            answer = await self._answer(target, question, answer_tokens_max)
        except AskFailed as failure:
            error = str(failure)
        row = Row(
            phase=phase,
            arm=target.arm,
            question=question.id,
            started_seconds=started,
            answer=answer,
            error=error,
        )
        self.record(row)
        return row

    async def _answer(self, target: Target, question: Question, answer_tokens_max: int) -> Answer:
        started = self.progress.elapsed()
        try:
            stream = await target.client.chat.completions.create(
                model=target.model,
                messages=self.workload.messages(question),
                max_tokens=answer_tokens_max,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
            )
            return await self._read(stream, started)
        # The package maps what fails before the stream, and lets through what cuts it.
        except (openai.OpenAIError, httpx2.HTTPError) as error:
            raise AskFailed(f"{type(error).__name__}: {error}") from error

    async def _read(self, stream: AsyncIterator[ChatCompletionChunk], started: float) -> Answer:
        pieces: list[str] = []
        first: float | None = None
        finished = False
        usage: CompletionUsage | None = None
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                finished = finished or choice.finish_reason is not None
                # An answer may be empty; then its end is what the user waited for.
                if choice.delta.content or choice.finish_reason:
                    first = self.progress.elapsed() if first is None else first
                    pieces.append(choice.delta.content or "")
        if first is None or not finished or usage is None:
            raise AskFailed("the stream ended before the answer did")
        ended = self.progress.elapsed()
        return _answer(usage, "".join(pieces), ttft=first - started, total=ended - started)


def make_client(origin: str) -> openai.AsyncOpenAI:
    """Return a client of the API at an origin such as `http://127.0.0.1:8080`."""
    return openai.AsyncOpenAI(
        base_url=f"{origin}/v1", api_key="unused", max_retries=0, timeout=REQUEST_SECONDS_MAX
    )


async def tokenize(http: httpx.AsyncClient, engine: str, model: str, text: str) -> tuple[int, ...]:
    """Return the tokens of an answer, by the engine's own tokenizer."""
    body = {"model": model, "prompt": text, "add_special_tokens": False}
    response = await http.post(f"{engine}/tokenize", json=body)
    response.raise_for_status()
    return tuple(response.json()["tokens"])


def _answer(usage: CompletionUsage, text: str, *, ttft: float, total: float) -> Answer:
    details = usage.prompt_tokens_details
    report = parse_report((details.model_extra or {}).get(HINT_FIELD)) if details else None
    if report is None:
        # An engine without the plugin says only how many tokens its prefix cache held.
        cached = (details.cached_tokens if details else None) or 0
        prefix, suffix, computed, reason, engine = cached, 0, usage.prompt_tokens - cached, "unreported", ""
    else:
        prefix, suffix, computed = report.prefix_tokens, report.suffix_tokens, report.computed_tokens
        reason, engine = report.reason.value, report.engine
    return Answer(
        ttft_seconds=ttft,
        total_seconds=total,
        prompt_tokens=usage.prompt_tokens,
        prefix_tokens=prefix,
        suffix_tokens=suffix,
        computed_tokens=computed,
        reason=reason,
        engine=engine,
        text=text,
    )
