"""What brings a spliced answer closer to the exact one, on the real vLLM: recompute, match, calibrate."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from sternpost_running.engine import Answer, RunningEngine, Tail, running_engine

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

LAST: Final = 32
LOGPROB_TOLERANCE: Final = 1e-2
"""One token of the tail is still as it was after the scaffold."""

MEANS: Final = 3
"""One per middle length."""

CALIBRATION_SECONDS_MAX: Final = 400.0
POLL_SECONDS: Final = 1.0

ARTICLES: Final = (
    "anchor",
    "compass",
    "lantern",
    "whistle",
    "hammock",
    "bucket",
    "ladder",
    "kettle",
    "saddle",
)

RULES: Final = (
    "The articles and their codes:\n"
    + "\n".join(f"| {name} | {name[0].upper()}-{4100 + 37 * row} |" for row, name in enumerate(ARTICLES))
    + "\n"
    + " ".join(
        f"Rule {number}: write short sentences and leave out point {number * 7}." for number in range(20)
    )
    + "\nAnswer with the code of the article that the customer asks for."
)

QUESTIONS: Final = (
    "What is the code of the whistle?",
    "My sister lost her lantern on a boat, and I would like to order the same one for her birthday.",
    "Where do I find the number of the saddle, and is there a smaller one?",
    "It rained, so the hammock is wet. Which article was it again?",
    "Kettle, please.",
    "Do you sell ladders?",
)


@pytest.fixture(scope="module")
def engine(model_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    """A real engine that takes two samples per mean."""
    config = {
        "kv_connector": "SternpostConnector",
        "kv_connector_module_path": "sternpost_engine.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"calibration_samples": 2},
    }
    log = tmp_path_factory.mktemp("engine") / "engine.log"
    with running_engine(model_directory, log, "--kv-transfer-config", json.dumps(config)) as running:
        yield running


@pytest.fixture(scope="module")
def tail(engine: RunningEngine) -> Tail:
    """A tail with a table, held as it was built."""
    measured = engine.tail(RULES)
    assert engine.build(measured)["reason"] == "built"
    return measured


@pytest.fixture(scope="module")
def insert(engine: RunningEngine) -> int:
    """Where in the scaffold a middle would stand."""
    empty = engine.tokens([{"role": "user", "content": ""}], closed=False)
    full = engine.tokens([{"role": "user", "content": "A"}], closed=False)
    return next(place for place, (one, other) in enumerate(zip(empty, full, strict=False)) if one != other)


def _exact(engine: RunningEngine, tail: Tail, question: str) -> Answer:
    return engine.ask(question, tail, tokens=4, hint={"op": "off"}, cache_salt=f"exact {question}")


def _distance(exact: Answer, spliced: Answer) -> float:
    """How far the likeliest first tokens' log-probabilities lie apart, in nats."""
    pairs = zip(exact.logprobs, spliced.logprobs, strict=True)
    return sum(abs(one - other) for one, other in pairs) / len(exact.logprobs)


def test_computing_the_whole_tail_afresh_gives_the_exact_answer(engine: RunningEngine, tail: Tail) -> None:
    """With a head that leaves one token to copy, the answer is the exact one but for that token's share."""
    # A question of its own, for its exact blocks cover the prompt from now on.
    question = "May I write to the shop?"
    exact = _exact(engine, tail, question)

    spliced = engine.ask(question, tail, tokens=4, hint={"head": len(tail.tokens) - LAST - 1})

    assert ("hit", 1) == (spliced.report["reason"], spliced.report["suffix_tokens"])
    assert exact.text == spliced.text
    assert pytest.approx(exact.logprobs, abs=LOGPROB_TOLERANCE) == spliced.logprobs


@pytest.mark.parametrize(
    ("question", "cap", "at_least"),
    [
        pytest.param("And the whistle, what is its code?", 64, 4, id="one row"),
        pytest.param("The whistle, the saddle and the bucket?", 64, 12, id="three rows"),
        pytest.param("The whistle, the saddle and the bucket!", 5, 4, id="a cap"),
        pytest.param("Good morning to you.", 64, 0, id="nothing that the tail holds"),
    ],
)
def test_what_the_middle_names_is_computed_afresh(
    engine: RunningEngine, tail: Tail, insert: int, question: str, cap: int, at_least: int
) -> None:
    """The named rows ride along as rows of the same forward, and the engine's own count holds them."""
    middle = len(engine.tokens([{"role": "user", "content": question}], closed=False))

    report = engine.ask(question, tail, hint={"match": cap, "prefix_tokens": insert}).report

    matched = report["computed_tokens"] - middle - LAST
    assert "hit" == report["reason"]
    assert at_least <= matched <= cap
    assert len(tail.tokens) - LAST - matched == report["suffix_tokens"]
    if at_least == 0:
        assert 0 == matched


def test_a_calibrated_tail_is_closer_to_the_exact_one(engine: RunningEngine, tail: Tail, insert: int) -> None:
    """Means over the generic middles beat the scaffold's KV, on questions that are in no calibration text."""
    hint: dict[str, Any] = {"correction": "calibrated"}
    assert engine.build(tail, hint={**hint, "insert": insert})["reason"] == "built"
    deadline = time.monotonic() + CALIBRATION_SECONDS_MAX
    while engine.metric("sternpost_suffix_means") < MEANS:
        assert time.monotonic() < deadline, "the means were not ready in time"
        time.sleep(POLL_SECONDS)

    exact = [_exact(engine, tail, question) for question in QUESTIONS]
    as_built = [engine.ask(question, tail, tokens=4) for question in QUESTIONS]
    calibrated = [engine.ask(question, tail, tokens=4, hint=hint) for question in QUESTIONS]

    assert {"hit"} == {answer.report["reason"] for answer in [*as_built, *calibrated]}
    assert sum(map(_distance, exact, calibrated)) < sum(map(_distance, exact, as_built))
