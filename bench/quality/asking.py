"""One prompt asked in one arm, and what is kept of the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from bench.common.engine_api import Engine, report_of
from bench.common.tails import Tail
from bench.quality.arms import EXACT, LAST, Arm
from bench.quality.teacher import FORCED
from sternpost_core.errors import OperatingError
from sternpost_core.hint import Hint, Operation, Reason

ANSWER_TOKENS_MAX: Final = 4
"""An answer's tokens that are compared; what follows the answer is small talk."""

LIKELIEST: Final = 16
"""Tokens at each position whose log-probabilities are compared, the exact arm's likeliest."""

LOGPROBS_MAX: Final = 512
"""More than all log-probabilities of a request; the engine's limit is set to it."""

PAD_TOKEN: Final = 0
"""vLLM pads lists of token ids with it within a batch, so its own log-probability cannot be asked for."""

TOKEN_MARK: Final = "token_id:"


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt's token ids, how many of them the tail has, and the candidate answers' first tokens."""

    tokens: tuple[int, ...]
    tail_tokens: int
    answers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reference:
    """The exact arm's greedy answer, and the likeliest tokens at each of its positions."""

    tokens: tuple[int, ...]
    likeliest: tuple[tuple[int, ...], ...]

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Read a record."""
        return cls(tuple(record["tokens"]), tuple(tuple(ids) for ids in record["likeliest"]))

    def to_record(self) -> dict[str, Any]:
        """Return what is written."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """
    What one arm made of a prompt.

    `answers` are the candidates' log-probabilities at the first position, `positions` those of the
    reference's likeliest tokens at each of its positions. The counts are the engine's own.
    """

    answers: tuple[float, ...]
    positions: tuple[tuple[float, ...], ...]
    prompt_tokens: int
    tail_tokens: int
    suffix_tokens: int
    computed_tokens: int
    reason: str

    @property
    def recompute_share(self) -> float:
        """The share of the tail's tokens that were computed."""
        return (self.tail_tokens - self.suffix_tokens) / self.tail_tokens

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Read a record."""
        positions = tuple(tuple(values) for values in record["positions"])
        return cls(**{**record, "answers": tuple(record["answers"]), "positions": positions})

    def to_record(self) -> dict[str, Any]:
        """Return what is written."""
        return asdict(self)


def hint_of(arm: Arm, tail: Tail, kind: str) -> Hint:
    """Return what the gateway would send for this arm."""
    if arm.correction is None:
        return Hint(op=Operation.OFF)
    return tail.read_hint(last=LAST, match=arm.match, correction=arm.correction, kind=kind)


async def ask_reference(engine: Engine, tokens: Sequence[int]) -> Reference:
    """Ask for the exact greedy answer."""
    answer = await engine.complete(
        tokens,
        Hint(op=Operation.OFF),
        max_tokens=ANSWER_TOKENS_MAX,
        logprobs=LIKELIEST,
        return_token_ids=True,
        return_tokens_as_token_ids=True,
    )
    choice = answer["choices"][0]
    tops = [by_token(top) for top in choice["logprobs"]["top_logprobs"]]
    forced = tuple(choice["token_ids"])
    if len(tops) != len(forced) or not forced:
        raise OperatingError(f"{engine.name}: {len(tops)} positions for an answer of {len(forced)} tokens")
    return Reference(forced, tuple(tuple(sorted(top.keys() - {PAD_TOKEN})) for top in tops))


async def ask_reading(
    engine: Engine, arm: Arm, question: Question, hint: Hint | None, reference: Reference
) -> Reading:
    """
    Ask what an arm thinks of the reference's tokens and of the candidate answers.

    Raises:
        OperatingError: the engine did not serve the prompt in the way that the arm stands for.
    """
    wanted = {token for ids in reference.likeliest for token in ids} | set(question.answers)
    answer = await engine.complete(
        question.tokens,
        hint,
        max_tokens=len(reference.tokens),
        logprobs=1,
        logprob_token_ids=sorted(wanted),
        vllm_xargs={FORCED: list(reference.tokens)},
        return_tokens_as_token_ids=True,
    )
    tops = [by_token(top) for top in answer["choices"][0]["logprobs"]["top_logprobs"]]
    if len(tops) != len(reference.likeliest):
        raise OperatingError(f"{engine.name}: {len(tops)} positions, not {len(reference.likeliest)}")
    reading = _reading(answer["usage"], tops, question, reference)
    if arm.correction is not None and reading.reason != Reason.HIT:
        raise OperatingError(f"{arm.name}: a prompt was not served from the suffix store: {reading.reason}")
    return reading


def by_token(top: Mapping[str, float]) -> dict[int, float]:
    """
    Return log-probabilities by token id.

    >>> by_token({"token_id:5": -0.5})
    {5: -0.5}
    """
    return {int(name.removeprefix(TOKEN_MARK)): value for name, value in top.items()}


def _reading(
    usage: Mapping[str, Any], tops: Sequence[Mapping[int, float]], question: Question, reference: Reference
) -> Reading:
    report = report_of(usage)
    pairs = zip(reference.likeliest, tops, strict=True)
    return Reading(
        answers=tuple(tops[0][token] for token in question.answers),
        positions=tuple(tuple(top[token] for token in ids) for ids, top in pairs),
        prompt_tokens=usage["prompt_tokens"],
        tail_tokens=question.tail_tokens,
        suffix_tokens=report.suffix_tokens if report else 0,
        computed_tokens=report.computed_tokens if report else usage["prompt_tokens"],
        reason=report.reason.value if report else EXACT.name,
    )
