"""One prompt asked in one arm: what is sent, and what is kept of the answer."""

from typing import Any

import pytest

from bench.common.tails import Tail
from bench.quality.arms import EXACT, FLOOR, LAST, MATCH, REUSING
from bench.quality.asking import (
    ANSWER_TOKENS_MAX,
    Question,
    Reading,
    Reference,
    ask_reading,
    ask_reference,
    by_token,
    hint_of,
)
from sternpost_core.errors import OperatingError
from sternpost_core.hint import Correction, Operation
from sternpost_fakes.bench_engine import FakeEngine, answer_with, usage_of

TAIL = Tail("rules", (), (), True, scaffold=(1, 2), tokens=tuple(range(100)), insert=1)
QUESTION = Question(tokens=(1, 2, 3), tail_tokens=80, answers=(7, 8))
REFERENCE = Reference(tokens=(5, 9), likeliest=((5, 6), (9, 7)))
MATCHING = next(arm for arm in REUSING if arm.match)


def completion(tops: list[dict[str, float]], usage: dict[str, Any]) -> FakeEngine:
    """Return an engine whose every completion has these log-probabilities."""
    choice = {"token_ids": [5, 9], "logprobs": {"top_logprobs": tops}}
    return FakeEngine({"/v1/completions": answer_with({"choices": [choice], "usage": usage})})


async def test_a_reference_is_the_greedy_answer_and_its_likeliest_tokens() -> None:
    """The padding token, whose log-probability could not be asked for, is left out."""
    fake = completion(
        [{"token_id:6": -1.0, "token_id:5": -0.1, "token_id:0": -3.0}, {"token_id:9": -0.2}], usage_of()
    )

    reference = await ask_reference(fake.client(), [1, 2])

    assert Reference(tokens=(5, 9), likeliest=((5, 6), (9,))) == reference
    body = fake.asked[0][1]
    assert ("off", ANSWER_TOKENS_MAX) == (body["kv_transfer_params"]["sternpost"]["op"], body["max_tokens"])
    assert reference == Reference.from_record(reference.to_record())


async def test_a_reading_has_each_position_in_the_references_order() -> None:
    """Candidates are read at the first position; all log-probabilities are asked for in one request."""
    tops = [
        {"token_id:5": -0.5, "token_id:6": -1.5, "token_id:7": -2.0, "token_id:8": -3.0, "token_id:9": -9.0},
        {"token_id:5": -8.0, "token_id:6": -7.0, "token_id:7": -0.7, "token_id:8": -6.0, "token_id:9": -0.9},
    ]
    fake = completion(tops, usage_of(prompt=90, prefix=10, suffix=40, computed=40))

    reading = await ask_reading(fake.client(), MATCHING, QUESTION, hint_of(MATCHING, TAIL, "k"), REFERENCE)

    assert ((-2.0, -3.0), ((-0.5, -1.5), (-0.9, -0.7))) == (reading.answers, reading.positions)
    assert (90, 80, 40, 40, "hit") == (
        reading.prompt_tokens,
        reading.tail_tokens,
        reading.suffix_tokens,
        reading.computed_tokens,
        reading.reason,
    )
    assert 0.5 == reading.recompute_share
    body = fake.asked[0][1]
    assert ([5, 6, 7, 8, 9], {"bench_forced": [5, 9]}, 2) == (
        body["logprob_token_ids"],
        body["vllm_xargs"],
        body["max_tokens"],
    )
    assert reading == Reading.from_record(reading.to_record())


@pytest.mark.parametrize("reason", ["not_built", "tail_too_short", "busy"])
async def test_a_reusing_arm_that_was_computed_exactly_is_an_error(reason: str) -> None:
    """Its figures would be the exact arm's, and too good."""
    top = {"token_id:5": -0.5, "token_id:6": -1.5, "token_id:7": -2.0, "token_id:8": -3.0, "token_id:9": -9.0}
    fake = completion([top, top], usage_of(reason=reason))

    with pytest.raises(OperatingError, match=reason):
        await ask_reading(fake.client(), MATCHING, QUESTION, hint_of(MATCHING, TAIL, ""), REFERENCE)


async def test_an_answer_with_other_positions_is_an_error() -> None:
    """A forced answer that ended early would be compared with the wrong tokens."""
    fake = completion([{"token_id:5": -0.5}], usage_of(reason="off"))

    with pytest.raises(OperatingError, match="1 positions, not 2"):
        await ask_reading(fake.client(), EXACT, QUESTION, hint_of(EXACT, TAIL, ""), REFERENCE)


def test_an_arms_hint_is_what_a_gateway_would_send() -> None:
    """Exact arms switch reuse off; reusing arms name correction, kind and what is computed afresh."""
    off, read = hint_of(EXACT, TAIL, ""), hint_of(MATCHING, TAIL, "letters")

    assert Operation.OFF is off.op is hint_of(FLOOR, TAIL, "").op
    assert (Operation.READ, 100, LAST, MATCH, "letters") == (
        read.op,
        read.tail_tokens,
        read.last,
        read.match,
        read.kind,
    )
    assert {Correction.NONE, Correction.CALIBRATED} == {hint_of(arm, TAIL, "").correction for arm in REUSING}


def test_token_names_become_ids() -> None:
    """The engine names tokens by id when it is asked to."""
    assert {5: -0.5, 12: -1.0} == by_token({"token_id:5": -0.5, "token_id:12": -1.0})
